package dashboard

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// plain returns a text of a sender with everything escaped that a browser could obey or that
// is invisible: control characters, and those that change the direction of writing. Lines and
// tabs stay.
func plain(text string) string {
	var out strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&out, `\x%02x`, text[0])
		case unicode.IsPrint(r), r == '\n', r == '\t':
			out.WriteRune(r)
		default:
			out.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		}
		text = text[size:]
	}
	return out.String()
}

// span writes a duration for people, in its two largest units.
func span(d time.Duration) string {
	switch d = d.Abs(); {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	default:
		return fmt.Sprintf("%d d %d h", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	}
}

// when is a time as the page shows it: for the attribute datetime, for people, and relative
// to now.
type when struct{ Machine, Exact, Ago string }

// whenOf shows a time, nil if it is zero.
func whenOf(at, now time.Time) *when {
	if at.IsZero() {
		return nil
	}
	at = at.UTC()
	w := &when{Machine: at.Format(time.RFC3339Nano), Exact: at.Format("2006-01-02 15:04:05"), Ago: "now"}
	if ago := now.Sub(at); ago >= time.Second {
		w.Ago = span(ago) + " ago"
	} else if ago <= -time.Second {
		w.Ago = "in " + span(ago)
	}
	return w
}
