package signature

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"time"
)

// readConvoy reads the bare signature of Convoy's simple mode, or t=1700000000,v1=...,v2=... of
// its advanced mode, where each version is a hash and an encoding of the project's. Both follow
// from the length of the digest.
func readConvoy(a *attempt, value string, now time.Time) string {
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

// verifyConvoy checks the body as it was received, and then its compact JSON: Convoy signs that,
// and sends what its producer has given it.
func verifyConvoy(a *attempt, body Body) (string, error) {
	raw, err := body.Whole()
	if err != nil {
		return "", err
	}
	begin := ""
	if a.timestamp != "" {
		begin = a.timestamp + ","
	} else if len(raw) > 10 && raw[10] == ',' && isDigits(string(raw[:10])) {
		// What is signed in advanced mode, as the body of simple mode, would have no timestamp.
		return "the body begins with a timestamp", nil
	}
	over := func(body []byte) func(io.Writer) {
		return func(to io.Writer) {
			_, _ = io.WriteString(to, begin)
			_, _ = to.Write(body)
		}
	}
	if a.matches(over(raw)) {
		return "", nil
	}
	if err := body.Reserve(len(raw)); err != nil {
		return "", err
	}
	compact := bytes.NewBuffer(make([]byte, 0, len(raw)))
	if json.Compact(compact, raw) == nil && compact.Len() < len(raw) && a.matches(over(compact.Bytes())) {
		return "", nil
	}
	return noMatch, nil
}
