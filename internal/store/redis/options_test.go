package redis

import (
	"reflect"
	"strings"
	"testing"
)

func TestParseURL(t *testing.T) {
	for text, want := range map[string]Options{
		"redis://localhost":                       {Addresses: []string{"localhost:6379"}},
		"redis://localhost:6380/2":                {Addresses: []string{"localhost:6380"}, DB: 2},
		"redis://localhost?db=4":                  {Addresses: []string{"localhost:6379"}, DB: 4},
		"redis://user:pa%2Fss@[::1]:6380":         {Addresses: []string{"[::1]:6380"}, Username: "user", Password: "pa/ss"},
		"redis://:secret@localhost":               {Addresses: []string{"localhost:6379"}, Password: "secret"},
		"unix:///run/redis.sock":                  {Addresses: []string{"/run/redis.sock"}},
		"unix://user:secret@/run/redis.sock?db=1": {Addresses: []string{"/run/redis.sock"}, Username: "user", Password: "secret", DB: 1},
	} {
		got, err := ParseURL(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
	o, err := ParseURL("rediss://:secret@redis.example.com/1")
	if err != nil {
		t.Fatal(err)
	}
	if o.TLS == nil || o.TLS.ServerName != "redis.example.com" || o.TLS.InsecureSkipVerify {
		t.Errorf("rediss: TLS is %+v, want a check of redis.example.com", o.TLS)
	}
}

// TestParseURLErrors has the word s3cret wherever a password may stray to.
func TestParseURLErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                                       "another scheme",
		"localhost:6379":                         "another scheme",
		"s3cret":                                 "another scheme",
		"http://:s3cret@localhost":               "another scheme",
		"redis:s3cret":                           "cannot be read",
		"redis://:s3cret/s3cret@host":            "percent-encoded",
		"redis://:s3cret#s3cret@host":            "percent-encoded",
		"redis://:s3cret?s3cret@host":            "",
		"redis://:s3cret%s3cret@host":            "percent-encoded",
		"redis://:s3cret s3cret@host":            "percent-encoded",
		"redis://user/s3cret@host":               "percent-encoded",
		"redis://:s3cret@host:99999":             "port",
		"redis://:s3cret@host/s3cret":            "cannot be read",
		"redis://:s3cret@host/-1":                "negative",
		"redis://:s3cret@host/1?db=2":            "twice",
		"redis://:s3cret@host?s3cret=1":          "parameter other than db",
		"redis://:s3cret@host?db=s3cret":         "cannot be read",
		"redis://:s3cret@host?pool_size=":        "parameter other than db",
		"rediss://:s3cret@host?skip_verify=true": "parameter other than db",
		"unix://":                                "cannot be read",
		"unix://:s3cret@host/path":               "absolute",
		"unix://s3cret":                          "absolute",
	} {
		_, err := ParseURL(text)
		if err == nil {
			t.Errorf("%q is accepted", text)
			continue
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
		if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: the error shows a password: %v", text, err)
		}
	}
}

func TestOptionErrors(t *testing.T) {
	for want, o := range map[string]Options{
		"got 0":          {},
		"got 2":          {Addresses: []string{"a:1", "b:1"}},
		`"localhost"`:    {Addresses: []string{"localhost"}},
		`"run/redis"`:    {Addresses: []string{"run/redis"}},
		`":6379"`:        {Addresses: []string{":6379"}},
		"db -1":          {Addresses: []string{"a:1"}, DB: -1},
		"timeout -500ms": {Addresses: []string{"a:1"}, Timeout: -DefaultTimeout},
	} {
		if _, err := Open(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v; want an error with %q", o, err, want)
		}
	}
}

func TestListErrors(t *testing.T) {
	s := closeAtEnd(t, openWith(t, Options{Addresses: []string{"127.0.0.1:1"}}))
	for _, cursor := range []string{"x", "-1", "1,", "1,abc", ",", "1," + strings.Repeat("g", 64)} {
		if _, _, err := s.List(ctx, cursor, 10); err == nil || !strings.Contains(err.Error(), cursor) {
			t.Errorf("cursor %q: %v; want an error that names it", cursor, err)
		}
	}
	if _, _, err := s.List(ctx, "", 0); err == nil || !strings.Contains(err.Error(), "limit 0") {
		t.Errorf("limit 0: %v", err)
	}
}
