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
	if o.TLS == nil {
		t.Fatal("rediss: no TLS")
	}
	if config, err := o.TLS(); err != nil || config.ServerName != "" || config.InsecureSkipVerify {
		t.Errorf("rediss: TLS is %+v, %v; want a check of the host that is dialed", config, err)
	}
}

// TestParseURLErrors has the word s3cret wherever a password may end up in a wrong
// URL.
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
		"redis://s3cret!:6379":                   "host that is none",
		"redis://s3cret,@h,s3cret":               "host that is none",
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

// TestParseURLs has several URLs of one Redis.
func TestParseURLs(t *testing.T) {
	o, err := ParseURLs("redis://u:s3cret@a:1", "redis://u:s3cret@b:2", "redis://u:s3cret@c:3")
	want := Options{Addresses: []string{"a:1", "b:2", "c:3"}, Username: "u", Password: "s3cret"}
	if err != nil || !reflect.DeepEqual(o, want) || !o.clustered() {
		t.Errorf("%+v, %v; want a cluster, %+v", o, err, want)
	}
	if o, err := ParseURLs("rediss://a:1", "rediss://b:2"); err != nil || o.TLS == nil {
		t.Errorf("%+v, %v; want TLS", o, err)
	}
	for _, other := range []string{"redis://:s3cret2@b", "rediss://:s3cret@b", "redis://:s3cret@b/1", "redis://u:s3cret@b", "unix://:s3cret@/b"} {
		_, err := ParseURLs("redis://:s3cret@a", other)
		if err == nil || !strings.Contains(err.Error(), "must be the same") || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("with %s: %v", other, err)
		}
	}
}

func TestOptionErrors(t *testing.T) {
	several := []string{"a:1", "b:1"}
	for _, test := range []struct {
		want string
		o    Options
	}{
		{"needs an address", Options{}},
		{`"localhost"`, Options{Addresses: []string{"localhost"}}},
		{`"run/redis"`, Options{Addresses: []string{"run/redis"}}},
		{`":6379"`, Options{Addresses: []string{":6379"}}},
		{`"b"`, Options{Addresses: []string{"a:1", "b"}}},
		{"is a URL or has a user", Options{Addresses: []string{"redis://:s3cret@a:6379"}}},
		{"is a URL or has a user", Options{Addresses: []string{":s3cret@a:6379"}}},
		{"is a URL or has a user", Options{Addresses: []string{"a:1", "s3cret@a:6379"}}},
		{"is a URL or has a user", Options{Addresses: []string{"redis://s3cret"}}},
		{`"a:1" is named twice`, Options{Addresses: []string{"a:1", "b:1", "a:1"}}},
		{`"A:1" is named twice`, Options{Addresses: []string{"a:1", "A:1"}, Sentinel: "main"}},
		{"db -1", Options{Addresses: []string{"a:1"}, DB: -1}},
		{"timeout -500ms", Options{Addresses: []string{"a:1"}, Timeout: -DefaultTimeout}},
		{"wait_replicas -1", Options{Addresses: []string{"a:1"}, WaitReplicas: -1}},
		{"database 0 alone", Options{Addresses: several, DB: 1}},
		{"database 0 alone", Options{Addresses: several[:1], Cluster: true, DB: 1}},
		{"exclude each other", Options{Addresses: several, Cluster: true, Sentinel: "main"}},
		{"need sentinel", Options{Addresses: several[:1], SentinelPassword: "s3cret"}},
		{"need sentinel", Options{Addresses: several, SentinelUsername: "s3cret"}},
		{"unix socket", Options{Addresses: []string{"a:1", "/run/redis.sock"}}},
		{"unix socket", Options{Addresses: []string{"/run/redis.sock"}, Sentinel: "main"}},
		{"unix socket", Options{Addresses: []string{"/run/redis.sock"}, Cluster: true}},
		{`"a:99999" has a port that is none`, Options{Addresses: []string{"a:99999"}}},
		{`"a:0" has a port that is none`, Options{Addresses: []string{"a:0"}}},
		{`"a:-1" has a port that is none`, Options{Addresses: []string{"a:-1"}}},
		{`"a:+1" has a port that is none`, Options{Addresses: []string{"a:+1"}}},
		{`"a:redis" has a port that is none`, Options{Addresses: []string{"b:1", "a:redis"}, Sentinel: "main"}},
		{`"a b:1" has a host that is neither`, Options{Addresses: []string{"a b:1"}}},
		{`" a:1" has a host that is neither`, Options{Addresses: []string{" a:1"}}},
		{`"a\tb:1" has a host that is neither`, Options{Addresses: []string{"a\tb:1"}}},
		{`"a/b:1" has a host that is neither`, Options{Addresses: []string{"a/b:1"}}},
		{`"a,b:1" has a host that is neither`, Options{Addresses: []string{"a,b:1"}}},
		{`"a..b:1" has a host that is neither`, Options{Addresses: []string{"a..b:1"}}},
		{`"10.0.0.256:1" has a host that is neither`, Options{Addresses: []string{"10.0.0.256:1"}}},
		{`"[a]b:1"`, Options{Addresses: []string{"[a]b:1"}}},
		{`"[::g]:1" has a host that is neither`, Options{Addresses: []string{"[::g]:1"}}},
	} {
		_, err := Open(test.o)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%+v: %v; want an error with %q", test.o, err, test.want)
		}
	}
	for _, o := range []Options{
		{Addresses: several, Sentinel: "main", SentinelUsername: "u", SentinelPassword: "p", DB: 2},
		{Addresses: several, WaitReplicas: 1},
		{Addresses: several[:1], Cluster: true},
		{Addresses: []string{"redis_1.my-net.example.:65535", "[::1]:1", "[fe80::1%eth0]:6379", "10.0.0.1:6379", "3.redis:6379"}},
	} {
		if err := o.Check(); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestListErrors(t *testing.T) {
	s := closeAtEnd(t, openWith(t, Options{Addresses: []string{"127.0.0.1:1"}}))
	for _, cursor := range []string{"x", "-1", "1,", "1,abc", ",", "1," + strings.Repeat("f", 64), "1," + strings.Repeat("g", 64) + ",1,1", "1," + strings.Repeat("f", 64) + ",0,1", "1," + strings.Repeat("f", 64) + ",2001,1", "1," + strings.Repeat("f", 64) + ",1,-1", "1.2", "1.2.x", "g.0.1", "0000000f.-1.1", "1.2.3.4"} {
		if _, _, err := s.List(ctx, cursor, 10); err == nil || !strings.Contains(err.Error(), cursor) {
			t.Errorf("cursor %q: %v; want an error that names it", cursor, err)
		}
	}
	if _, _, err := s.List(ctx, "", 0); err == nil || !strings.Contains(err.Error(), "limit 0") {
		t.Errorf("limit 0: %v", err)
	}
}
