package caddymodule

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/caddy-dedup/caddy-dedup/internal/exchange"
)

func checkHeaderNames(setting string, names []string) error {
	for i, name := range names {
		if !httpguts.ValidHeaderFieldName(name) {
			return fmt.Errorf("%s: %q is not the name of a header field", setting, withoutPassword(name))
		}
		if strings.Contains(name, "*") { // a name may have it, and none has
			return fmt.Errorf("%s: %q stands for no other fields; name each of them", setting, name)
		}
		if slices.ContainsFunc(names[:i], func(other string) bool { return strings.EqualFold(other, name) }) {
			return fmt.Errorf("%s: %s is named twice", setting, name)
		}
	}
	return nil
}

func checkKeepHeader(names []string) error {
	for _, name := range names {
		if exchange.NeverKept(http.CanonicalHeaderKey(name)) {
			return fmt.Errorf("keep_header: %s speaks of one connection or one request and can never be kept", name)
		}
	}
	return checkHeaderNames("keep_header", names)
}
