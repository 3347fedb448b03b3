package signature

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// readConvoy reads the bare signature of Convoy's simple mode, or the t=1700000000,v1=...,v2=... of
// its advanced mode. There, the project chooses hash and encoding of each version; the length of the
// digest shows which they are.
func readConvoy(a *authentication, value string, now time.Time) string {
	if digest := a.run.decode(value); digest != nil {
		a.digests = append(a.digests, digest)
		return ""
	}
	for text := range strings.SplitSeq(value, ",") {
		name, value, _ := strings.Cut(strings.Trim(text, " \t"), "=")
		switch digest := a.run.decode(value); {
		case name == "t" && a.timestamp != "":
			return a.run.Header + " has two timestamps"
		case name == "t":
			a.timestamp = value
		case digest != nil && len(name) > 1 && name[0] == 'v' && isDigits(name[1:]):
			a.digests = append(a.digests, digest)
		}
	}
	if len(a.digests) == 0 || len(a.digests) > maxSignatures {
		return a.run.Header + " has no signature of a known form, or too many"
	}
	return checkTimestamp(a.timestamp, "s", now, a.run.within)
}

// maxConvoyCompact is the maximum size of a body that is compacted before its signature is verified.
const maxConvoyCompact = 1 << 20

// verifyConvoy checks the signature over the body as received, and then over its compact JSON: Convoy
// signs the compact form, but sends the body as its producer wrote it.
func verifyConvoy(a *authentication, body Body) (string, error) {
	begin := ""
	if a.timestamp != "" {
		begin = a.timestamp + ","
	} else if start := body.start(11); len(start) == 11 && start[10] == ',' && isDigits(start[:10]) {
		// Otherwise a message signed in advanced mode could be replayed as a body of simple mode,
		// without its timestamp.
		return "the body begins with a timestamp", nil
	}
	if a.matches(func(to io.Writer) {
		_, _ = io.WriteString(to, begin)
		for piece := range body.Pieces {
			_, _ = to.Write(piece)
		}
	}) {
		return "", nil
	}
	if body.size() > maxConvoyCompact {
		return fmt.Sprintf("%s over the bytes of the body, and it is larger than %d bytes, so that it has to be compact", noMatch, maxConvoyCompact), nil
	}
	raw, err := body.Whole()
	if err != nil {
		return "", err
	}
	if err := body.Reserve(len(raw)); err != nil {
		return "", err
	}
	compact := bytes.NewBuffer(make([]byte, 0, len(raw)))
	if json.Compact(compact, raw) == nil && compact.Len() < len(raw) && a.matches(func(to io.Writer) {
		_, _ = io.WriteString(to, begin)
		_, _ = to.Write(compact.Bytes())
	}) {
		return "", nil
	}
	return noMatch, nil
}
