package caddymodule

import (
	"fmt"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// placed is an error behind its place in a Caddyfile.
type placed struct {
	place string
	error
}

func (p placed) Error() string { return p.place + ": " + p.error.Error() }
func (p placed) Unwrap() error { return p.error }

// errorAt returns an error with the place of the current word in front, such as Caddyfile:6.
// Caddy's own errors end with it.
func errorAt(d *caddyfile.Dispenser, format string, args ...any) error {
	return placed{strings.TrimPrefix(d.Err("").Error(), ", at "), fmt.Errorf(format, args...)}
}
