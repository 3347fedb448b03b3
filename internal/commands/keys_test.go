package commands

import (
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/keyscommand"
)

func TestAddressesOfAdminAPIs(t *testing.T) {
	for text, want := range map[string]keyscommand.Address{
		"localhost:2019":        {Network: "tcp", Address: "localhost:2019"},
		"localhost":             {Network: "tcp", Address: "localhost:2019"},
		":2020":                 {Network: "tcp", Address: ":2020"},
		"[::1]:2019":            {Network: "tcp", Address: "[::1]:2019"},
		"tcp4/localhost:2019":   {Network: "tcp4", Address: "localhost:2019"},
		"unix//run/a.sock":      {Network: "unix", Address: "/run/a.sock", Socket: true},
		"unix//run/a.sock|0600": {Network: "unix", Address: "/run/a.sock", Socket: true},
		"unix/a.sock":           {Network: "unix", Address: "a.sock", Socket: true},
	} {
		if got, err := parseAdminAddress(text); got != want || err != nil {
			t.Errorf("%s is %+v, %v; want %+v", text, got, err, want)
		}
	}
	// Caddy takes each of these for the name of a host or of a network.
	for text, says := range map[string]string{
		"off":                   "there is no admin API",
		"/run/a.sock":           "did you mean unix//run/a.sock?",
		"unix:/run/a.sock":      "did you mean unix//run/a.sock?",
		"unix:///run/a.sock":    "did you mean unix//run/a.sock?",
		"2019":                  "localhost:2019",
		"localhost:2019-2020":   "not one address",
		"http://localhost:2019": "not one address",
		"localhost:2019/dedup":  "not one address",
	} {
		if got, err := parseAdminAddress(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s is %+v, %v; want an error that says %s", text, got, err, says)
		}
	}
}
