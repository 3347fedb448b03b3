package cli

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

func showCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show" + takesIDs,
		Short: "Shows all that is known of keys",
		Args:  cobra.ArbitraryArgs,
		RunE:  runE(show),

		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().Bool("body", false, "Show the kept responses, too")
	providerFlag(cmd, "Only delivery IDs of this provider, such as github")
	return cmd
}

func show(cmd *cobra.Command, args []string) error {
	s, err := selectKeys(cmd, args)
	if err != nil {
		return err
	}
	failed := s.failed
	withBody, _ := cmd.Flags().GetBool("body")
	print := newPrinter(cmd)
	for _, record := range s.found {
		if withBody {
			if record, err = s.client.withBody(cmd.Context(), record); err != nil {
				failed = errors.Join(failed, fmt.Errorf("%s: %w", record.Key, err))
			}
		}
		print.whole(record)
	}
	for _, line := range differences(s.found) {
		fmt.Fprintln(cmd.ErrOrStderr(), line)
	}
	return failed
}

// differences returns, for each delivery ID with several keys, in what these differ.
func differences(records []admin.Record) (lines []string) {
	byID := make(map[string][]admin.Record)
	for _, r := range records {
		byID[r.DeliveryID] = append(byID[r.DeliveryID], r)
	}
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		differ := func(of func(admin.Record) string) bool {
			return slices.ContainsFunc(byID[id], func(r admin.Record) bool { return of(r) != of(byID[id][0]) })
		}
		if id == "" || !differ(func(r admin.Record) string { return r.Key }) {
			continue
		}
		var in []string
		parts := []column{ofProvider, partsColumn, scopeColumn, routeColumn, {title: "OBSERVE", text: func(r admin.Record) string { return strconv.FormatBool(r.Observed) }}}
		for _, part := range parts {
			if differ(part.text) {
				in = append(in, strings.ToLower(part.title))
			}
		}
		hidden := false // two keys show the same, and have hashes of the rest
		for i, a := range byID[id] {
			hidden = hidden || slices.ContainsFunc(byID[id][:i], func(b admin.Record) bool {
				return a.Key != b.Key && !slices.ContainsFunc(parts, func(part column) bool { return part.text(a) != part.text(b) })
			})
		}
		if hidden {
			in = append(in, "caller, or in another part of the scope that records do not show")
		}
		lines = append(lines, fmt.Sprintf("The keys of %s differ in: %s", printable(id), strings.Join(in, ", ")))
	}
	return lines
}

// selection is what the arguments of a command name.
type selection struct {
	client *adminClient
	found  []admin.Record
	// failed names the arguments without a record, and those that a store did not answer for.
	failed error
	// incomplete reports whether a store did not answer for some of them.
	incomplete bool
}

// selectKeys finds the records that the arguments name. An error about one
// argument does not keep it from finding the others.
func selectKeys(cmd *cobra.Command, args []string) (*selection, error) {
	if len(args) == 0 {
		return nil, wrongUsage("%s takes keys or delivery IDs, and there are none", cmd.Name())
	}
	if i := slices.Index(args, ""); i >= 0 {
		return nil, wrongUsage("argument %d is empty; it is a key or a delivery ID", i+1)
	}
	client, err := findAdmin(cmd)
	if err != nil {
		return nil, err
	}
	provider := cmd.Flag("provider").Value.String()
	s := &selection{client: client}
	seen := make(map[string]bool)
	take := func(records []admin.Record) {
		for _, record := range records {
			if name := record.Key + " " + record.Store; !seen[name] {
				seen[name] = true
				s.found = append(s.found, record)
			}
		}
	}
	var unknown []string
	digits := make(map[string][]admin.Record) // by the digits of lists
	for _, arg := range args {
		records, passedOver, err := client.find(cmd.Context(), arg, provider)
		switch {
		case err != nil && exitStatus(err) == exitUsage:
			return nil, err
		case err != nil:
			s.failed, s.incomplete = errors.Join(s.failed, fmt.Errorf("%q: %w", arg, err)), true
		case len(records) == 0 && listedDigits.MatchString(arg):
			digits[arg] = nil
		case len(records) == 0:
			unknown = append(unknown, strconv.Quote(arg))
		}
		for _, store := range passedOver {
			if !seen[store.Store] {
				seen[store.Store] = true
				s.failed = errors.Join(s.failed, notAsked(store))
			}
		}
		take(records)
	}
	if len(digits) > 0 {
		if err := client.findDigits(cmd.Context(), digits, provider); err != nil {
			s.failed, s.incomplete = errors.Join(s.failed, err), true
		}
	}
	for _, arg := range slices.Sorted(maps.Keys(digits)) {
		switch records := digits[arg]; {
		case len(records) == 0:
			unknown = append(unknown, strconv.Quote(arg))
		case slices.ContainsFunc(records, func(r admin.Record) bool { return r.Key != records[0].Key }):
			s.failed = errors.Join(s.failed, wrongUsage("%s stands in several keys; name one by its 64 digits, which keys list --wide shows", arg))
		default:
			take(records)
		}
	}
	if len(unknown) > 0 {
		of := ""
		if provider != "" {
			of = " of " + provider
			if near := delivery.NearNames(provider); len(near) > 0 && !slices.Contains(near, provider) {
				of += " (did you mean " + delivery.Alternatives(near) + "?)"
			}
		}
		s.failed = errors.Join(s.failed, fmt.Errorf("there is no key and no delivery ID %s%s", strings.Join(unknown, ", "), of))
	}
	return s, nil
}

// changeCommand returns a command that changes each key. content returns the JSON body of the requests; nil
// for none.
func changeCommand(name, short, done, method, action, long string, content func(*cobra.Command) (any, error)) *cobra.Command {
	cmd := &cobra.Command{
		Use:   name + takesIDs,
		Short: short,
		Long:  long + "\n\nIt is refused while a run is in flight under the key, and where the key has\nchanged since the command looked. More than one key are changed only with\n--yes, or after a question.",
		Args:  cobra.ArbitraryArgs,
		RunE: runE(func(cmd *cobra.Command, args []string) error {
			var send any
			if content != nil {
				var err error
				if send, err = content(cmd); err != nil {
					return err
				}
			}
			return change(cmd, args, done, func(client *adminClient, r admin.Record) error {
				seen := url.Values{admin.ParamState: {r.State}} // one that has changed since then stays as it is
				if r.ExecutionID != "" {
					seen.Set(admin.ParamExecutionID, r.ExecutionID)
				}
				return client.do(cmd.Context(), method, admin.KeysPath+r.Key+action+"?"+seen.Encode(), send, nil)
			})
		}),

		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolP("yes", "y", false, "Do not ask before more than one key is changed")
	providerFlag(cmd, "Only delivery IDs of this provider, such as github")
	return cmd
}

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
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, wrongUsage("--body: %w", err)
		}
		response.Body = string(text)
	}
	switch {
	case len(response.Body) > admin.MaxCompleteBody:
		return nil, wrongUsage("--body is larger than %d bytes, the maximum", admin.MaxCompleteBody)
	case !utf8.ValidString(response.Body): // JSON would replace bytes
		return nil, wrongUsage("--body is not UTF-8")
	}
	return response, nil
}

// change changes each record that the arguments name. One request changes all stores with the same record:
// if two have it, because one Redis has two names in the configuration or both are unreadable, a second
// request would find it changed.
func change(cmd *cobra.Command, args []string, done string, do func(*adminClient, admin.Record) error) error {
	s, err := selectKeys(cmd, args)
	if err != nil {
		return err
	}
	// Observed keys refuse no request, so an ID means only the other keys, if it has any.
	enforced := make(map[string]bool)
	for _, r := range s.found {
		enforced[r.DeliveryID] = enforced[r.DeliveryID] || !r.Observed
	}
	s.found = slices.DeleteFunc(s.found, func(r admin.Record) bool {
		return r.Observed && enforced[r.DeliveryID] && !slices.Contains(args, r.Key)
	})
	if s.incomplete { // the store may have more of the keys
		if len(s.found) == 0 {
			return errors.Join(s.failed, errors.New("nothing was changed"))
		}
		warn(cmd, s.found)
		return errors.Join(s.failed, errors.New("nothing was changed; the keys above were found, and a key in hex can be named alone"))
	}
	if yes, _ := cmd.Flags().GetBool("yes"); len(s.found) > 1 && !yes {
		if err := confirm(cmd, s.found); err != nil {
			return err
		}
	}
	print := newPrinter(cmd)
	inSeveral := inSeveralStores(s.found)
	failed := s.failed
	asked := make(map[string]error) // by key, state and run
	for _, record := range s.found {
		about := record.Key + " " + record.State + " " + record.ExecutionID
		err, was := asked[about]
		if !was {
			err = do(s.client, record)
			asked[about] = err
		}
		switch {
		case err == nil && inSeveral:
			print.changed(done, record, record.Store)
		case err == nil:
			print.changed(done, record, "")
		case !was:
			failed = errors.Join(failed, fmt.Errorf("%s: %w", record.Key, err))
		}
	}
	return failed
}

// inSeveralStores reports whether a key is in more than one store, which only the store then tells apart.
func inSeveralStores(records []admin.Record) bool {
	keys := make(map[string]bool)
	for _, r := range records {
		keys[r.Key] = true
	}
	return len(keys) < len(records)
}

// warn lists records on standard error.
func warn(cmd *cobra.Command, records []admin.Record) {
	table := newTable(cmd.ErrOrStderr())
	table.columns, table.width = changeColumns, 0
	if inSeveralStores(records) {
		table.columns = append(slices.Clone(changeColumns), storeColumn)
	}
	table.rows(records, false)
}

// confirm asks whether all these keys are meant.
func confirm(cmd *cobra.Command, found []admin.Record) error {
	warn(cmd, found)
	fmt.Fprintf(cmd.ErrOrStderr(), "%s these %d keys? [y/N] ", cmd.Name(), len(found))
	line, _ := bufio.NewReader(cmd.InOrStdin()).ReadString('\n') // EOF is not a yes
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	default:
		fmt.Fprintln(cmd.ErrOrStderr())
		return wrongUsage("nothing was changed; --yes changes all %d keys", len(found))
	}
}
