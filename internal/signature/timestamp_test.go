package signature_test

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/signature"
)

func TestTolerance(t *testing.T) {
	for name, s := range senders {
		p, _ := signature.ProviderNamed(name)
		if p.Timed() != (s.timed != "") {
			t.Errorf("%s: Timed is %v", name, p.Timed())
		}
		if s.timed == "" {
			if _, err := signature.New(signature.Config{Provider: name, Secrets: []string{cmp.Or(s.secret, textSecret)}, URLs: map[bool][]string{true: {squareURL}}[p.URL()], Within: new(time.Minute)}); err == nil {
				t.Errorf("%s has no timestamp, and a tolerance", name)
			}
			continue
		}
		for _, test := range []struct {
			within, age time.Duration
			ok          bool
		}{
			{0, 1000 * time.Hour, true},
			{0, -1000 * time.Hour, true},
			{time.Minute, time.Minute, true},
			{time.Minute, -time.Minute, true},
			{time.Minute, 61 * time.Second, false},
			{time.Minute, -61 * time.Second, false},
			{-1, p.Within, true}, // -1: as it is without the setting
			{-1, -p.Within, true},
			{-1, p.Within + time.Second, p.Within == 0},
			{-1, -p.Within - time.Second, p.Within == 0},
		} {
			var changes []func(*signature.Config)
			if test.within >= 0 {
				changes = append(changes, within(test.within))
			}
			_, early, err := s.request().verify(t, start.Add(test.age), s.verifier(t, name, changes...))
			if (err == nil) != test.ok || err != nil && early != (s.timed[0] != '/') {
				t.Errorf("%s, within %v, %v old: early is %v, %v", name, test.within, test.age, early, err)
			}
		}
		want := 5 * time.Minute
		switch name {
		case "box", "twitch":
			want = 10 * time.Minute
		case "discord", "prolific", "sendgrid", "zendesk", "zoom":
			want = 0
		}
		if p.Within != want {
			t.Errorf("%s: the default is %v, want %v", name, p.Within, want)
		}
	}
}

// A timestamp has one form, also under within off: else bytes could move between it and what is
// beside it.
func TestMalformedTimestamps(t *testing.T) {
	for name, s := range senders {
		if s.timed == "" || s.timed[0] == '/' {
			continue
		}
		v := s.verifier(t, name, within(0))
		for _, stamp := range []string{
			"now", "Infinity", "1e9", "+1764201600", "-764201600", " 1764201600", "01764201600", "176420160", "17642016000", "1764201600.0", "0x69263d80",
			"1764201600000", "2026-11-26", "2026-11-26T12:00:00", "2026-11-26 12:00:00Z", "2026-11-26T1:00:00Z", "2026-11-26T12:00:00,5Z", "2026-11-26t12:00:00z",
			"12026-11-26T12:00:00Z", "026-11-26T12:00:00Z", "2026-11-26T12:00:00+0000", "2026-11-26T12:00:00+00:00x", "2026-13-26T12:00:00Z", "१७६४२०१६००",
		} {
			r := s.request()
			if s.timed == s.signed {
				value := strings.Replace(r.header.Get(s.timed), seconds(start), stamp, 1)
				r.header.Set(s.timed, value)
			} else {
				r.header.Set(s.timed, stamp)
			}
			if _, early, err := r.verify(t, start, v); err == nil || !early {
				t.Errorf("%s, timestamp %q: early is %v, %v", name, stamp, early, err)
			}
		}
	}
}
