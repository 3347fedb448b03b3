package signature

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

const (
	// maxSignatures is the maximum number of signatures of a request. A sender that rotates its
	// secret sends two.
	maxSignatures = 10
	// maxValue is the maximum length of a value with a signature, a timestamp or an ID, in bytes.
	maxValue = 4096
)

// format is the form of a value with signatures.
type format struct {
	separator string // between entries; "" if there is only one
	entries   []entry
	timed     bool // whether one entry is the timestamp
}

// entry is a signature, or the timestamp, behind a prefix.
type entry struct {
	prefix string
	time   bool
}

// parseFormat parses a [Scheme.Format].
func parseFormat(text string) (format, error) {
	for _, separator := range []string{"", " ", ";", ","} {
		texts := []string{text}
		if separator != "" {
			texts = strings.Split(text, separator)
		}
		f := format{separator: separator}
		for _, text := range texts {
			e, ok := parseEntry(strings.TrimSpace(text))
			if !ok {
				f.entries = nil
				break
			}
			if !slices.Contains(f.entries, e) {
				f.entries = append(f.entries, e)
			}
		}
		if f.entries != nil {
			err := f.check(text)
			return f, err
		}
	}
	return format{}, fmt.Errorf("format %q must be {signature}, behind a prefix or not, or several entries that end in {signature} or {timestamp}, such as t={timestamp},v1={signature}", text)
}

func parseEntry(text string) (entry, bool) {
	prefix, isSignature := strings.CutSuffix(text, "{signature}")
	if !isSignature {
		prefix, _ = strings.CutSuffix(text, "{timestamp}")
	}
	return entry{prefix, !isSignature}, prefix != text && !strings.ContainsAny(prefix, "{}")
}

func (f *format) check(text string) error {
	signatures := 0
	for _, e := range f.entries {
		if !e.time {
			signatures++
			continue
		}
		if f.timed {
			return fmt.Errorf("format %q has two timestamps; one is signed", text)
		}
		f.timed = true
		if e.prefix == "" || slices.Contains(f.entries, entry{prefix: e.prefix}) {
			return fmt.Errorf("format %q needs a name before {timestamp} that no signature has, such as t={timestamp}", text)
		}
	}
	if signatures == 0 {
		return fmt.Errorf("format %q has no {signature}", text)
	}
	// Longest prefix first: that of a bare {signature} is empty, and matches everything.
	slices.SortStableFunc(f.entries, func(a, b entry) int { return len(b.prefix) - len(a.prefix) })
	return nil
}

// read returns the timestamp and the signatures in a value. It ignores unknown entries, which may be
// of another version of the scheme. Two timestamps are an error, because only one is signed.
func (f format) read(value string) (timestamp string, signatures []string, err error) {
	rest, more := value, true
	for more {
		text := rest
		if more = false; f.separator != "" {
			text, rest, more = strings.Cut(rest, f.separator)
			text = strings.Trim(text, " \t")
		}
		at := slices.IndexFunc(f.entries, func(e entry) bool { return strings.HasPrefix(text, e.prefix) })
		if at < 0 {
			continue
		}
		switch found := text[len(f.entries[at].prefix):]; {
		case !f.entries[at].time:
			signatures = append(signatures, found)
		case timestamp != "":
			return "", nil, errors.New("has two timestamps")
		default:
			timestamp = found
		}
	}
	switch {
	case len(signatures) == 0:
		return "", nil, errors.New("has no signature of a known form")
	case len(signatures) > maxSignatures:
		return "", nil, fmt.Errorf("has more than %d signatures", maxSignatures)
	}
	return timestamp, signatures, nil
}
