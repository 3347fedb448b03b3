package cli

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
)

func completeCommand() *cobra.Command {
	cmd := changeCommand("complete", "Completes keys: duplicates get a response", "completed", http.MethodPost, "/complete", `
Completes a held, lapsed or released key whose work is known to be done: from
now on duplicates get this response, and nothing runs.`, completion)
	cmd.Flags().Int("status", http.StatusOK, "Status of the response, from 200 to 599")
	complete(cmd, "status", "200", "201", "202", "204")
	cmd.Flags().String("content-type", "", "Content-Type of the response (default: application/json if the body is JSON, else text/plain)")
	complete(cmd, "content-type", "application/json", "text/plain")
	cmd.Flags().String("body", "", "Body of the response, a text or @ and the name of a file with it, up to 1 MiB (default: none)")
	complete(cmd, "body")
	return cmd
}

// completion returns the response that the flags describe.
func completion(cmd *cobra.Command) (any, error) {
	var response admin.CompleteRequest
	response.Status, _ = cmd.Flags().GetInt("status")
	response.ContentType, _ = cmd.Flags().GetString("content-type")
	response.Body, _ = cmd.Flags().GetString("body")
	if name, is := strings.CutPrefix(response.Body, "@"); is {
		text, err := readStart(name, admin.MaxCompleteBody+1)
		if err != nil {
			return nil, wrongUsage("--body: %w", err)
		}
		response.Body = text
	}
	switch {
	case len(response.Body) > admin.MaxCompleteBody:
		return nil, wrongUsage("--body is larger than %d bytes, the maximum", admin.MaxCompleteBody)
	case !utf8.ValidString(response.Body): // JSON would replace bytes
		return nil, wrongUsage("--body is not UTF-8")
	}
	return response, nil
}

// readStart returns the first bytes of a file, up to a number.
func readStart(name string, limit int64) (string, error) {
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(file, limit))
	return string(text), errors.Join(err, file.Close())
}
