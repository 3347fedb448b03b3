package cli

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caddy-dedup/caddy-dedup/caddymodule"
)

// written is what is written for a command line.
type written struct {
	*proxy
	text string
}

// writtenIn returns what is written for a command line where Caddy has its data there, and
// $CADDY_ADMIN says that.
func writtenIn(data, caddyAdmin string, args ...string) (written, error) {
	p, cmd := new(proxy), new(cobra.Command)
	p.defineFlags(cmd)
	if err := errors.Join(cmd.ParseFlags(args), cmd.ValidateRequiredFlags(), cmd.ValidateFlagGroups(), emptyFlag(cmd)); err != nil {
		return written{}, err
	}
	text, err := p.read(cmd.Flags(), data, caddyAdmin)
	return written{p, text}, err
}

// check has Caddy read what is written, as --print does.
func (w written) check(t *testing.T) error {
	for name, value := range w.secrets {
		t.Setenv(name, value)
	}
	if _, err := adapt(w.text); err != nil {
		return err
	}
	if w.isForAnotherMachine() {
		return nil
	}
	return w.provision()
}

func writtenFor(t *testing.T, args ...string) (written, error) {
	t.Helper()
	return writtenIn("/data/caddy", "", args...)
}

// Each file of testdata has a command line in its first line, its words between bars, and
// the Caddyfile that it stands for after it.
func TestCaddyfilesOfFlags(t *testing.T) {
	files, err := filepath.Glob("testdata/*.caddyfile")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			line, want, _ := strings.Cut(string(content), "\n")
			command, ok := strings.CutPrefix(line, "# caddy-dedup proxy ")
			if !ok {
				t.Fatalf("the first line is %q", line)
			}
			w, err := writtenFor(t, strings.Split(strings.ReplaceAll(command, `\n`, "\n"), " | ")...)
			if err != nil {
				t.Fatal(err)
			}
			if w.text != want {
				t.Errorf("it is printed as\n%s", w.text)
			}
			if _, err := adapt(w.text); err != nil {
				t.Error(err)
			}
		})
	}
}

// The Caddyfile, which runs as it is printed, has no secret: variables have them. It keeps the
// placeholders that the flags have.
func TestCaddyfileHasNoSecret(t *testing.T) {
	const secret = "open-sesame"
	for _, c := range []struct {
		args, want []string
		secrets    map[string]string
	}{
		{[]string{"--redis", "redis://:open-sesame@h"}, []string{"store redis redis://:{env.REDIS_PASSWORD}@h\n"}, map[string]string{"REDIS_PASSWORD": secret}},
		{[]string{"--redis", "redis://u:open%40sesame@h", "--redis", "rediss://u:{env.P}@i"}, []string{"redis://u:{env.REDIS_PASSWORD}@h rediss://u:{env.P}@i\n"}, map[string]string{"REDIS_PASSWORD": "open%40sesame"}},
		{[]string{"--redis", "redis://u:open-sesame@h:1", "--redis", "redis://u:open-sesame@h:2"}, []string{"redis://u:{env.REDIS_PASSWORD}@h:1 redis://u:{env.REDIS_PASSWORD}@h:2\n"}, map[string]string{"REDIS_PASSWORD": secret}},
		{[]string{"--redis", "redis://u:{file./run/x}open-sesame@h"}, []string{"redis://u:{file./run/x}{env.REDIS_PASSWORD}@h\n"}, map[string]string{"REDIS_PASSWORD": secret}},
		{[]string{"--redis", "redis://u:{open-sesame@h"}, []string{"redis://u:{env.REDIS_PASSWORD}@h\n"}, map[string]string{"REDIS_PASSWORD": "{open-sesame"}},
		{[]string{"--redis", "{env.LOGIN}:open-sesame@h"}, []string{"store redis {env.LOGIN}:{env.REDIS_PASSWORD}@h\n"}, map[string]string{"REDIS_PASSWORD": secret}},
		{[]string{"--dedup", "store redis unix://u:open-sesame@/run/@redis.sock"}, []string{"unix://u:{env.REDIS_PASSWORD}@/run/@redis.sock\n"}, map[string]string{"REDIS_PASSWORD": secret}},
		{
			[]string{"--dedup", "store redis {\naddress h:1\npassword \"open-sesame x\" # the one of June\nsentinel m\nsentinel_password open-sesame\n}"},
			[]string{"\t\tstore redis {\n\t\t\taddress h:1\n\t\t\tpassword {env.REDIS_PASSWORD}\n\t\t\tsentinel m\n\t\t\tsentinel_password {env.SENTINEL_PASSWORD}\n\t\t}\n"},
			map[string]string{"REDIS_PASSWORD": "open-sesame x", "SENTINEL_PASSWORD": secret},
		},
		{[]string{"--dedup", "store redis {\naddress h:1\n\"password\" \\\n open-sesame\n}"}, []string{"\tpassword {env.REDIS_PASSWORD}\n"}, map[string]string{"REDIS_PASSWORD": secret}},
		{[]string{"--dedup", "store redis {\naddress h:1\npassword <<X\nopen-sesame\nX\n}"}, []string{"\tpassword {env.REDIS_PASSWORD}\n"}, map[string]string{"REDIS_PASSWORD": secret}},
		{[]string{"--dedup", "store redis { address h:1\npassword {env.P}open-sesame\n}"}, []string{"\tpassword {env.P}{env.REDIS_PASSWORD}\n"}, map[string]string{"REDIS_PASSWORD": secret}},
		{[]string{"--redis", "redis://h:1", "--dedup", "key header password # of the site", "--dedup", "key value a:{http.request.header.X}@h"}, []string{"store redis redis://h:1\n", "key header password\n", "key value a:{http.request.header.X}@h\n"}, nil},

		{[]string{"--header-up", "Authorization: Bearer open-sesame"}, []string{"header_up Authorization `Bearer {env.AUTHORIZATION}`\n"}, map[string]string{"AUTHORIZATION": secret}},
		{[]string{"--header-up", "authorization: open-sesame", "--header-up", "Proxy-Authorization: Basic open-sesame=="}, []string{"header_up authorization {env.AUTHORIZATION}\n", "header_up Proxy-Authorization `Basic {env.PROXY_AUTHORIZATION}`\n"}, map[string]string{"AUTHORIZATION": secret, "PROXY_AUTHORIZATION": "open-sesame=="}},
		{[]string{"--header-up", "Cookie: session=open-sesame; a=b", "--header-down", "Set-Cookie: s=open-sesame"}, []string{"header_up Cookie {env.COOKIE}\n", "header_down Set-Cookie {env.SET_COOKIE}\n"}, map[string]string{"COOKIE": "session=open-sesame; a=b", "SET_COOKIE": "s=open-sesame"}},
		{[]string{"--header-up", "X-Api-Key: open-sesame", "--header-down", "X-Api-Key: open-sesame 2"}, []string{"header_up X-Api-Key {env.X_API_KEY}\n", "header_down X-Api-Key {env.X_API_KEY_2}\n"}, map[string]string{"X_API_KEY": secret, "X_API_KEY_2": "open-sesame 2"}},
		{[]string{"--header-up", `X-Token: {"k":"open-sesame\}"}`}, []string{"header_up X-Token {env.X_TOKEN}\n"}, map[string]string{"X_TOKEN": `{"k":"open-sesame}"}`}},
		{[]string{"--header-up", "X-Shop: bearer open-sesame", "--header-up", "X-Other: https://u:open-sesame@h/"}, []string{"header_up X-Shop `bearer {env.X_SHOP}`\n", "header_up X-Other {env.X_OTHER}\n"}, map[string]string{"X_SHOP": secret, "X_OTHER": "https://u:open-sesame@h/"}},
		{[]string{"--header-up", "Authorization: open-sesame", "--header-up", "X-A: {env.AUTHORIZATION}"}, []string{"header_up Authorization {env.AUTHORIZATION_2}\n", "header_up X-A {env.AUTHORIZATION}\n"}, map[string]string{"AUTHORIZATION_2": secret}},
		{[]string{"--header-up", "Authorization: Bearer {file./run/token}", "--header-up", "X-Run: {http.dedup.execution_id}", "--header-down", "Access-Control-Allow-Credentials: true"}, []string{"`Bearer {file./run/token}`\n", "header_up X-Run {http.dedup.execution_id}\n", "header_down Access-Control-Allow-Credentials true\n"}, nil},
	} {
		w, err := writtenFor(t, append(c.args, "--from", ":8080", "--to", ":1")...)
		if err != nil {
			t.Fatalf("%q: %v", c.args, err)
		}
		for _, want := range c.want {
			if !strings.Contains(w.text, want) {
				t.Errorf("%q stands for\n%swant %q in it", c.args, w.text, want)
			}
		}
		if strings.Contains(w.text, "sesame") {
			t.Errorf("%q: it shows the secret:\n%s", c.args, w.text)
		}
		if !maps.Equal(w.secrets, c.secrets) {
			t.Errorf("%q: the variables are %q; want %q", c.args, w.secrets, c.secrets)
		}
		for name := range c.secrets {
			if comment, _, _ := strings.Cut(w.text, "\n{\n"); !strings.Contains(comment, name) {
				t.Errorf("%q: no comment names %s:\n%s", c.args, name, comment)
			}
		}
		if _, err := adapt(w.text); err != nil {
			t.Errorf("%q: %v", c.args, err)
		}
	}
}

// These are credentials, wherever a value looks like any other.
func TestFieldsOfSecrets(t *testing.T) {
	for _, field := range []string{
		"Authorization", "Proxy-Authorization", "Cookie", "Set-Cookie", "X-Api-Key", "Api-Key", "Apikey", "X-Auth-Token", "X-Access-Token",
		"Private-Token", "X-Goog-Api-Key", "Ocp-Apim-Subscription-Key", "X-Vault-Token", "X-Shopify-Access-Token", "X-Amzn-Oidc-Data",
		"Cf-Access-Jwt-Assertion", "X-Webhook-Secret", "X-Hub-Signature-256", "X-Password", "X-CSRF", "X-Session",
	} {
		if w, err := writtenFor(t, "--from", ":8080", "--to", ":1", "--header-up", field+": x-sesame"); err != nil || strings.Contains(w.text, "sesame") {
			t.Errorf("%s: %v; it stands for\n%s", field, err, w.text)
		}
	}
	for _, field := range []string{"X-Shop", "X-Served-By", "Host", "X-Forwarded-Proto", "Cache-Control", "Link", "WWW-Authenticate", "Access-Control-Allow-Headers"} {
		if w, err := writtenFor(t, "--from", ":8080", "--to", ":1", "--header-up", field+": x-sesame"); err != nil || !strings.Contains(w.text, "header_up "+field+" x-sesame\n") {
			t.Errorf("%s: %v; it stands for\n%s", field, err, w.text)
		}
	}
}

// What `caddy reverse-proxy` takes, the command takes, under the same short name.
func TestFlagsOfReverseProxy(t *testing.T) {
	caddys, ours := new(cobra.Command), new(cobra.Command)
	caddycmd.Commands()["reverse-proxy"].CobraFunc(caddys)
	new(proxy).defineFlags(ours)
	seen := 0
	caddys.Flags().VisitAll(func(theirs *pflag.Flag) {
		seen++
		own := ours.Flags().Lookup(theirs.Name)
		if own == nil || own.Shorthand != theirs.Shorthand || own.NoOptDefVal != theirs.NoOptDefVal {
			t.Errorf("--%s (-%s) is not one of ours: %+v", theirs.Name, theirs.Shorthand, own)
		}
	})
	if seen < 10 {
		t.Errorf("caddy reverse-proxy has %d flags", seen)
	}
}

func TestMistakes(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		says []string
	}{
		"no service":                   {nil, []string{"to"}},
		"a URL with a path":            {[]string{"--to", "http://localhost:3000/x"}, []string{"http://localhost:3000/x"}},
		"a user in the service":        {[]string{"--to", "http://u:p@localhost"}, []string{"--to is not an address"}},
		"an empty address":             {[]string{"--to", ":1", "--from", ""}, []string{"--from is empty"}},
		"an address with a path":       {[]string{"--to", ":1", "--from", "example.com/x"}, []string{"--from", `"example.com/x"`, "path"}},
		"a port that is none":          {[]string{"--to", ":1", "--from", ":http-alt"}, []string{"--from", ":http-alt", ":8080"}},
		"a port out of range":          {[]string{"--to", ":1", "--from", ":65536"}, []string{"--from", ":65536", "out of range"}},
		"port 0":                       {[]string{"--to", ":1", "--from", ":0"}, []string{"--from", `":0"`, "1 to 65535"}},
		"a scheme that is none":        {[]string{"--to", ":1", "--from", "ftp://:8080"}, []string{"--from:", "ftp://", "http or https"}},
		"two names to listen on":       {[]string{"--to", ":1", "--from", "a.test,b.test"}, []string{"--from:", `"a.test,b.test"`, "one address"}},
		"a name with a space":          {[]string{"--to", ":1", "--from", "a b"}, []string{"--from:", "space"}},
		"a brace in a name":            {[]string{"--to", ":1", "--from", "{host}:8080"}, []string{"--from:", `"{host}:8080"`, "'{'"}},
		"two ports for probes":         {[]string{"--to", ":1", "--health", ":8081,:8082"}, []string{"--health:", "one address"}},
		"an unknown provider":          {[]string{"--to", ":1", "--provider", "gitbuh"}, []string{"--provider", "gitbuh", "github"}},
		"an unknown word":              {[]string{"--to", ":1", "--dedup", "retenton 3d"}, []string{"--dedup", "retenton", "retention"}},
		"a matcher in a line":          {[]string{"--to", ":1", "--dedup", "github /webhooks/*"}, []string{"--path", "--provider"}},
		"a word as a provider":         {[]string{"--to", ":1", "--provider", "github,observe"}, []string{"observe is a word of the block"}},
		"a line out of the block":      {[]string{"--to", ":1", "--dedup", "}\nrespond 200"}, []string{"--dedup", "respond"}},
		"two places for the state":     {[]string{"--to", ":1", "--redis", "redis://u:open-sesame@a", "--file", "b"}, []string{"[redis file]"}},
		"redis and a store":            {[]string{"--to", ":1", "--redis", "redis://u:open-sesame@a", "--dedup", "store memory"}, []string{"--redis", "--dedup"}},
		"a directory and a store":      {[]string{"--to", ":1", "--file", "b", "--dedup", "store memory"}, []string{"--file", "--dedup"}},
		"a URL as a directory":         {[]string{"--to", ":1", "--file", "redis://:open-sesame@h"}, []string{"--file is a URL", "--redis"}},
		"a URL of something else":      {[]string{"--to", ":1", "--redis", "http://u:open-sesame@a"}, []string{"--redis: ", "redis://"}},
		"a header without a value":     {[]string{"--to", ":1", "--header-up", "X-A:"}, []string{"--header-up", "value 1", "Field: value"}},
		"a header without a colon":     {[]string{"--to", ":1", "--header-up", "X-A: b", "--header-up", "Authorization open-sesame"}, []string{"--header-up", "value 2", "a colon", "Field: value"}},
		"probes at no address":         {[]string{"--to", ":1", "--health", ":x"}, []string{"--health", ":x"}},
		"probes over HTTPS":            {[]string{"--to", ":1", "--health", "example.com"}, []string{"--health", "example.com", ":8081"}},
		"HTTP on 443":                  {[]string{"--to", ":1", "--from", ":443"}, []string{"http://", "violate"}},
		"a port without its colon":     {[]string{"--to", ":1", "--from", "8080"}, []string{"--from", `"8080"`, ": :8080"}},
		"an open block":                {[]string{"--to", ":1", "--dedup", "key parts p {\nheader A"}, []string{"--dedup", "not closed"}},
		"a secret of webhooks":         {[]string{"--to", ":1", "--provider", "github", "--verify", "github=open-sesame"}, []string{"--verify", "secret 1 is not one placeholder"}},
		"a secret, no provider":        {[]string{"--to", ":1", "--provider", "github", "--verify", "open-sesame"}, []string{"--verify: value 1", "github={env.GITHUB_SECRET}"}},
		"a secret of no provider":      {[]string{"--to", ":1", "--provider", "github", "--verify", "open-sesame=open-sesame"}, []string{"--verify", "argument 1 of verify"}},
		"a secret in a line of verify": {[]string{"--to", ":1", "--provider", "github", "--dedup", "verify github {\nsecret open-sesame\n}"}, []string{"--dedup", "secret 1"}},
		"a secret in a line":           {[]string{"--to", ":1", "--dedup", "store redis redis://u:open-sesame@h:286x"}, []string{"--dedup: redis store: the redis URL cannot be read"}},
		"a port of Redis":              {[]string{"--to", ":1", "--redis", "redis://u:open-sesame@h:bad"}, []string{"--redis: redis store: the redis URL cannot be read"}},
		"a value without a scheme":     {[]string{"--to", ":1", "--redis", "{env.TEST_PORT}"}, []string{"--redis: redis store: the redis URL has no scheme"}},
		"a value of another scheme":    {[]string{"--to", ":1", "--redis", "{env.TEST_URL}"}, []string{"--redis: redis store: the redis URL has another scheme"}},
		"a lease, by the flag":         {[]string{"--to", ":1", "--redis", "redis://h", "--dedup", "lease 1s"}, []string{"--dedup: lease: 1s is too short"}},
		"half a placeholder":           {[]string{"--to", ":1", "--file", "/srv/{env.TEST_PORT"}, []string{"--file: store file: a placeholder"}},
		"a secret in a block":          {[]string{"--to", ":1", "--dedup", "store redis {\npassword open-sesame\nfoo bar\n}"}, []string{"--dedup", "foo"}},
		"a secret after a tab":         {[]string{"--to", ":1", "--dedup", "store\tredis redis://:open-sesame@h:1 foo"}, []string{"redis"}},
		"a secret without its kind":    {[]string{"--to", ":1", "--dedup", "store redis://:open-sesame@h:1 foo"}, []string{"--dedup", "store redis <url>"}},
		"a secret without store":       {[]string{"--to", ":1", "--dedup", "redis redis://:open-sesame@h:1"}, []string{"--dedup", "unknown word"}},
		"a secret alone":               {[]string{"--to", ":1", "--dedup", "redis://:open-sesame@h:1"}, []string{"--dedup", "unknown word"}},
		"a secret on another line":     {[]string{"--to", ":1", "--dedup", "retention 3d\nstore redis redis://:open-sesame@h:1 x"}, []string{"x"}},
		"a secret in quotes":           {[]string{"--to", ":1", "--dedup", "\"store\" redis {\npassword \"\" open-sesame\n}"}, []string{"--dedup", "password takes one argument"}},
		"a secret in a heredoc":        {[]string{"--to", ":1", "--dedup", "store\tredis <<X\nredis://:open-sesame@h"}, []string{"--dedup", "heredoc"}},
		"a secret as a provider":       {[]string{"--to", ":1", "--provider", "redis://:open-sesame@h:1"}, []string{"--provider", "not a provider"}},
		"a secret as the service":      {[]string{"--to", "redis://:open-sesame@h:1"}, []string{"--to is not an address"}},
		"a secret with a slash":        {[]string{"--to", ":1", "--redis", "redis://u:12/open-sesame@a", "--file", "b"}, []string{"[redis file]"}},
		"a slash, and no other":        {[]string{"--to", ":1", "--redis", "redis://u:12/open-sesame@a"}, []string{"--redis: "}},
		"a secret without a scheme":    {[]string{"--to", ":1", "--redis", "u:open-sesame@a", "--file", "b"}, []string{"[redis file]"}},
		"one beside a socket":          {[]string{"--to", "unix//run/a.sock,http://u:open-sesame@h"}, []string{"--to is not an address"}},
		"a token as the service":       {[]string{"--to", "localhost:1?token=open-sesame"}, []string{"--to is not an address"}},
		"a secret in the address":      {[]string{"--to", ":1", "--from", "https://u:open-sesame@h"}, []string{"--from is not an address"}},
		"a secret for probes":          {[]string{"--to", ":1", "--health", "http://open-sesame@h:1"}, []string{"--health is not an address"}},
		"a secret in admin":            {[]string{"--to", ":1", "--admin", "http://u:open-sesame@localhost:2019"}, []string{"--admin is not an address"}},
		"a secret to verify":           {[]string{"--to", ":1", "--dedup", "verify github open-sesame"}, []string{"secret 1 is not one placeholder"}},
		"a password in no block":       {[]string{"--to", ":1", "--dedup", "password open-sesame"}, []string{"--dedup", "in store redis"}},
		"a key of encrypt":             {[]string{"--to", ":1", "--dedup", "encrypt open-sesame"}, []string{"--dedup", "encrypt", "global option"}},
		"a path without its slash":     {[]string{"--to", ":1", "--path", "webhooks/*"}, []string{"--path", `"webhooks/*"`, "/webhooks/*"}},
		"paths with a space":           {[]string{"--to", ":1", "--path", "/a /b"}, []string{"--path:", "use --path /a,/b"}},
		"paths in quotes":              {[]string{"--to", ":1", "--path", `"/a,/b",/c`}, []string{`--path: "/a,/b" is several paths`, "use --path /a,/b"}},
		"paths in a variable":          {[]string{"--to", ":1", "--path", "{env.TEST_PATHS}"}, []string{`--path: "/a,/b" is several paths`, "a variable for each"}},
		"paths in one of two":          {[]string{"--to", ":1", "--path", "{env.TEST_PATHS},/c"}, []string{`--path: "/a,/b" is several paths`, "a variable for each"}},
		"a path with a comma behind":   {[]string{"--to", ":1", "--path", "{env.TEST_PATH},/c"}, []string{`--path: "/a," is several paths`}},
		"a path without a value":       {[]string{"--to", ":1", "--path", "/a/{env.TEST_NOT_SET}"}, []string{"--path: the variable TEST_NOT_SET"}},
		"a port as the service":        {[]string{"--to", "3000"}, []string{"--to:", `"3000"`, "localhost:3000"}},
		"a variable as the service":    {[]string{"--to", "{env.TEST_PORT}"}, []string{"--to:", "localhost:{env.TEST_PORT}"}},
		"a service with a path":        {[]string{"--to", "host/path"}, []string{"--to:", `"host/path"`, "path", "localhost:3000"}},
		"a port and a path":            {[]string{"--to", ":1,localhost:3000/x"}, []string{"--to:", `"localhost:3000/x"`, "path"}},
		"a network and a path":         {[]string{"--to", "tcp/localhost:1/x"}, []string{"--to:", "not the address of a service"}},
		"a socket as of nginx":         {[]string{"--to", "unix:/run/x.sock"}, []string{"--to:", `"unix:/run/x.sock"`, "unix//run/x.sock"}},
		"datagrams":                    {[]string{"--to", "unixgram//run/x.sock"}, []string{"--to:", "unix//run/x.sock"}},
		"a file descriptor":            {[]string{"--to", "fd/3"}, []string{"--to:", `"fd/3"`, "file descriptor", "unix//run/service.sock"}},
		"a scheme of no service":       {[]string{"--to", "ftp://localhost"}, []string{"--to:", "http, https or h2c"}},
		"services with a space":        {[]string{"--to", "a:1 b:2"}, []string{"--to:", "comma"}},
		"no service behind a comma":    {[]string{"--to", "localhost:3000,"}, []string{"--to:", "empty"}},
		"admin with a space":           {[]string{"--to", ":1", "--admin", "off x"}, []string{"--admin:", `"off x"`, "unix//"}},
		"a service on no port":         {[]string{"--to", "localhost:0"}, []string{"--to:", "1 to 65535"}},
		"a secret in a variable":       {[]string{"--to", "{env.TEST_URL}"}, []string{"--to is not an address"}},
		"two schemes":                  {[]string{"--to", "https://a", "--to", "http://b"}, []string{"--to: ", "same scheme"}},
		"a port as the admin API":      {[]string{"--to", ":1", "--admin", "2019"}, []string{"--admin:", "localhost:2019"}},
		"itself as the service":        {[]string{"--from", ":8080", "--to", ":3000,localhost:8080"}, []string{`--to: "localhost:8080"`, "--from"}},
		"probes where it listens":      {[]string{"--to", ":1", "--from", ":8080", "--health", ":8080"}, []string{"--health:", "--from", ":8081"}},
		"probes on one address":        {[]string{"--to", ":1", "--from", ":8080", "--health", "127.0.0.1:8080"}, []string{"--health:", "--from"}},
		"admin where it listens":       {[]string{"--to", ":1", "--from", ":8080", "--admin", "localhost:8080"}, []string{"--admin:", "--from"}},
		"a port that is not set":       {[]string{"--to", ":1", "--from", ":{env.TEST_NOT_SET}"}, []string{"--from: the variable TEST_NOT_SET of {env.TEST_NOT_SET} is not set"}},
		"a variable without its colon": {[]string{"--to", ":1", "--from", "{env.TEST_PORT}"}, []string{"--from:", ": :{env.TEST_PORT}"}},
		"a provider in capitals":       {[]string{"--to", ":1", "--provider", "Githb"}, []string{`--provider: "Githb" is not a provider; did you mean github?`}},
		"Redis without a scheme":       {[]string{"--to", ":1", "--redis", "localhost:6379"}, []string{"--redis: ", "redis://"}},
		"settings of two flags":        {[]string{"--to", ":1", "--provider", "github", "--dedup", "key header X"}, []string{"--dedup: "}},
		"HTTPS on 80":                  {[]string{"--to", ":1", "--from", "https://example.com:80"}, []string{"--from:", "violate"}},
		"a path with a query":          {[]string{"--to", ":1", "--path", "/hooks?a=b"}, []string{"--path", `"/hooks?a=b"`}},
		"a URL as a path":              {[]string{"--to", ":1", "--path", "https://u:open-sesame@h/hooks"}, []string{"--path", "/webhooks/*"}},
		"observe twice":                {[]string{"--to", ":1", "--observe", "--dedup", "wait 1s", "--dedup", "observe"}, []string{"--dedup", "observe is repeated"}},
		"a variable in a line":         {[]string{"--to", ":1", "--dedup", "scope {$HOME}"}, []string{"--dedup", "{env.NAME}"}},
		"a variable in a header":       {[]string{"--to", ":1", "--header-up", "Authorization: {$AUTH}"}, []string{"--header-up", "{env.NAME}"}},
		"a value of both quotes":       {[]string{"--to", ":1", "--header-up", "X: a`b\\"}, []string{"--header-up", "backquote"}},
		"admin at a path":              {[]string{"--to", ":1", "--admin", "/tmp/x.sock"}, []string{`"/tmp/x.sock" is not an address`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TEST_PORT", "3000")
			t.Setenv("TEST_URL", "http://u:open-sesame@h")
			t.Setenv("TEST_PATHS", "/a,/b")
			t.Setenv("TEST_PATH", "/a,")
			w, err := writtenFor(t, c.args...)
			if err == nil {
				err = w.check(t)
			}
			if err == nil {
				t.Fatalf("it stands for\n%s", w.text)
			}
			for _, word := range c.says {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("it says %q; want %s in it", err, word)
				}
			}
			if strings.Contains(err.Error(), "open-sesame") {
				t.Errorf("it shows the password: %s", err)
			}
			if place := regexp.MustCompile(`(Caddyfile|--[a-z]+):\d`).FindString(err.Error()); place != "" {
				t.Errorf("it names the place %s, which is in no file of the user: %s", place, err)
			}
		})
	}
}

// What `caddy reverse-proxy` makes of addresses, the command does too.
func TestAddressesOfServices(t *testing.T) {
	for given, want := range map[string]string{
		"localhost:1,localhost:2": "localhost:1 localhost:2",
		"tcp/localhost:1":         "tcp/localhost:1",
		"unix/@abstract":          "unix/@abstract",
		"unix//a path/s.sock":     "`unix//a path/s.sock`",
		"h2c://localhost:1":       "h2c://localhost:1",
		"HTTP://localhost:1":      "HTTP://localhost:1",
		"unix+h2c//run/s.sock":    "unix+h2c//run/s.sock",
		"localhost:3000-3002":     "localhost:3000-3002",
	} {
		w, err := writtenFor(t, "--from", ":8080", "--to", given)
		if err != nil {
			t.Errorf("%s: %v", given, err)
			continue
		}
		if !strings.Contains(w.text, "\treverse_proxy "+want+"\n") {
			t.Errorf("%s: it is written as\n%s", given, w.text)
		}
		if _, err := adapt(w.text); err != nil {
			t.Errorf("%s: %v", given, err)
		}
	}
}

// A certificate has the name of a host, so that where none is given, it is localhost.
func TestAddressesOverHTTPS(t *testing.T) {
	for from, want := range map[string]string{
		"https://:8443":        "\nhttps://localhost:8443 {\n\tdedup\n",
		"HTTPS://:8443":        "\nhttps://localhost:8443 {\n\tdedup\n",
		"https://0.0.0.0:8443": "\nhttps://localhost:8443 {\n\tbind 0.0.0.0\n",
		"https://[::]:8443":    "\nhttps://localhost:8443 {\n\tbind ::\n",
		"https://10.0.0.1":     "\nhttps://10.0.0.1 {\n\tbind 10.0.0.1\n",
	} {
		w, err := writtenFor(t, "--from", from, "--to", ":1")
		if err != nil {
			t.Errorf("%s: %v", from, err)
			continue
		}
		host, _, _ := strings.Cut(strings.TrimPrefix(want, "\nhttps://"), " ")
		host = strings.TrimSuffix(host, ":8443")
		if !strings.Contains(w.text, want) || !strings.Contains(w.text, "respond `this proxy serves "+host+"` 421\n") {
			t.Errorf("%s: it is written as\n%s", from, w.text)
		}
		if err := w.check(t); err != nil {
			t.Errorf("%s: %v", from, err)
		}
	}
}

// A start needs the values of all variables, --print only those in addresses, paths and names.
func TestVariablesWithoutValues(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--verify", "github={env.TEST_NOT_SET}"}, "--verify: verify github: secret: {env.TEST_NOT_SET} is empty"},
		{[]string{"--redis", "{env.TEST_NOT_SET}"}, "--redis: redis store: url: {env.TEST_NOT_SET} is empty"},
		{[]string{"--redis", "redis://u:{env.TEST_NOT_SET}@h"}, "--redis: redis store: url: {env.TEST_NOT_SET} is empty"},
		{[]string{"--file", "{env.TEST_NOT_SET}/x"}, "--file: file store: path {env.TEST_NOT_SET}/x: {env.TEST_NOT_SET} is empty"},
		{[]string{"--dedup", "store file {env.TEST_NOT_SET}/x"}, "--dedup: file store: path {env.TEST_NOT_SET}/x: {env.TEST_NOT_SET} is empty"},
		{[]string{"--dedup", "verify github {env.TEST_NOT_SET}", "--provider", "github"}, "--dedup: verify github: secret: {env.TEST_NOT_SET} is empty"},
	} {
		w, err := writtenFor(t, append(c.args, "--from", ":8080", "--to", ":1")...)
		if err != nil {
			t.Errorf("%q: %v", c.args, err)
			continue
		}
		if err := w.provision(); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%q: %v; want %q", c.args, err, c.want)
		}
		if err := w.check(t); err != nil {
			t.Errorf("%q is not printed: %v", c.args, err)
		}
	}
}

// Where `caddy-dedup keys` looks, the admin API is.
func TestAdminOfTheEnvironment(t *testing.T) {
	for environment, want := range map[string]string{
		"": "unix//data/caddy/dedup-admin-8080.sock|0600", "localhost:2020": "localhost:2020", "off": "off",
	} {
		if w, err := writtenIn("/data/caddy", environment, "--from", ":8080", "--to", ":1"); err != nil || w.admin != want {
			t.Errorf("%q: the admin API is at %s, %v; want %s", environment, w.admin, err, want)
		}
	}
}

// A word of no flag may be a secret that its quotation marks have lost.
func TestWordsOfNoFlag(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--to", ":1"}, ""},
		{[]string{"--from", ":8080", "localhost:3000"}, `"localhost:3000" belongs to none`},
		{[]string{"--observe", "--header-up", "Authorization:", "open-sesame"}, "not shown"},
		{[]string{"--redis", "redis://u:open", "sesame@h"}, "not shown"},
		{[]string{"--dedup", "password", "open-sesame"}, "not shown"},
		{[]string{"--to", ":1", "redis://u:open-sesame@h"}, "not shown"},
		{[]string{"--to", ":1", "github=open-sesame"}, "not shown"},
	} {
		cmd := new(cobra.Command)
		proxyCommand.CobraFunc(cmd)
		if err := cmd.ParseFlags(c.args); err != nil {
			t.Fatal(err)
		}
		err := cmd.Args(cmd, cmd.Flags().Args())
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "sesame")) {
			t.Errorf("%q: %v; want %q", c.args, err, c.want)
		}
	}
}

// A word of the directive that is written as a flag is shown as the line that it stands for.
func TestLinesAsFlags(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--retention", "1d"}, "use --dedup 'retention 1d'"},
		{[]string{"--retention=1d"}, "use --dedup 'retention 1d'"},
		{[]string{"--on-missing", "reject", "--to", ":1"}, "use --dedup 'on_missing reject'"},
		{[]string{"--max_attempts"}, "use --dedup 'max_attempts ...'"},
		{[]string{"--key", "header", "X-Id"}, "use --dedup 'key ...'"},
		{[]string{"--key", "header X-Id"}, "use --dedup 'key header X-Id'"},
		{[]string{"--release-on", "5xx 404"}, "use --dedup 'release_on 5xx 404'"},
		{[]string{"--scope", "{host} {path}"}, "use --dedup 'scope {host} {path}'"},
		{[]string{"--store", "redis://u:open-sesame@h"}, "use --dedup 'store ...'"},
		{[]string{"--retentoin", "1d"}, "unknown flag: --retentoin"},
	} {
		p, cmd := new(proxy), new(cobra.Command)
		p.defineFlags(cmd)
		err := lineOfFlag(cmd.ParseFlags(c.args), c.args)
		if err == nil || !strings.HasSuffix(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "unknown flag: --") {
			t.Errorf("%q: %v; want %q", c.args, err, c.want)
		}
	}
	for _, word := range caddymodule.Subdirectives() {
		p, cmd := new(proxy), new(cobra.Command)
		p.defineFlags(cmd)
		if err := lineOfFlag(cmd.ParseFlags([]string{"--" + word}), nil); cmd.Flags().Lookup(word) == nil && !strings.Contains(err.Error(), "--dedup '"+word+" ...'") {
			t.Errorf("--%s: %v", word, err)
		}
	}
}

// The values of variables are those of the machine that the command runs on, and the Caddyfile has
// the variables.
func TestVariablesInFlags(t *testing.T) {
	for name, value := range map[string]string{"PORT": "9000", "HOST": "127.0.0.1", "NAME": "example.com", "SENDER": "github", "SERVICE": "https://10.0.0.1:3000", "HOOKS": "/hooks", "LISTEN": "localhost:2020", "TIME": "3d"} {
		t.Setenv("TEST_"+name, value)
	}
	for _, c := range []struct {
		args, text, says []string
		listens          []listener
	}{
		{
			[]string{"--from", ":{env.TEST_PORT}", "--admin", "off"},
			[]string{"\nhttp://:{$TEST_PORT} {\n", "store file dedup-{$TEST_PORT}\n"},
			[]string{"http://localhost:9000/", "state:  /data/caddy/dedup-9000\n"},
			[]listener{{"--from", ":9000"}},
		},
		{
			[]string{"--from", "{env.TEST_HOST}:{env.TEST_PORT}"},
			[]string{"\nhttp://:{$TEST_PORT} {\n\tbind {$TEST_HOST}\n", "admin unix//data/caddy/dedup-admin-{$TEST_HOST}-{$TEST_PORT}.sock|0600\n"},
			[]string{"http://127.0.0.1:9000/"},
			[]listener{{"--from", "127.0.0.1:9000"}},
		},
		{
			[]string{"--from", "https://{env.TEST_NAME}", "--disable-redirects", "--admin", "{env.TEST_LISTEN}"},
			[]string{"\nhttps://{$TEST_NAME} {\n", "this proxy serves {$TEST_NAME}", "admin {$TEST_LISTEN}\n"},
			[]string{"https://example.com/"},
			[]listener{{"--from", ":443"}, {"--admin", "localhost:2020"}},
		},
		{
			[]string{"--from", ":8080", "--health", ":{env.TEST_PORT}", "--to", "{env.TEST_SERVICE}", "--insecure", "--admin", "off"},
			[]string{"\nhttp://:{$TEST_PORT} {\n\tdedup_health", "reverse_proxy {$TEST_SERVICE} {\n", "tls_insecure_skip_verify"},
			[]string{"health: http://localhost:9000/ready"},
			[]listener{{"--from", ":8080"}, {"--health", ":9000"}},
		},
		{
			[]string{"--from", ":8080", "--to", "localhost:{env.TEST_PORT}", "--provider", "{env.TEST_SENDER}", "--path", "{env.TEST_HOOKS}/*", "--admin", "off"},
			[]string{"dedup {$TEST_HOOKS}/* {$TEST_SENDER}\n", "reverse_proxy localhost:{$TEST_PORT}\n"},
			[]string{"webhooks of github at /hooks/*", "http://localhost:8080/hooks/try"},
			[]listener{{"--from", ":8080"}},
		},
		{
			[]string{"--from", ":8080", "--dedup", "retention {env.TEST_TIME}", "--dedup", "key value {env.TEST_PORT}:{http.request.header.X}", "--dedup", "store redis {env.TEST_SERVICE}", "--admin", "off"},
			[]string{"retention {$TEST_TIME}\n", "key value {env.TEST_PORT}:{http.request.header.X}\n", "store redis {env.TEST_SERVICE}\n"},
			nil,
			[]listener{{"--from", ":8080"}},
		},
		{
			[]string{"--from", ":8080", "--to", ":1", "--verify", "{env.TEST_SENDER}={env.TEST_SECRET}", "--admin", "off"},
			[]string{"dedup github {\n\t\tverify github {env.TEST_SECRET}\n"},
			[]string{"signed requests"},
			[]listener{{"--from", ":8080"}},
		},
	} {
		args := c.args
		if !slices.Contains(args, "--to") {
			args = append(args, "--to", ":1")
		}
		w, err := writtenFor(t, args...)
		if err != nil {
			t.Errorf("%q: %v", args, err)
			continue
		}
		if _, err := adapt(w.text); err != nil {
			t.Errorf("%q: %v in\n%s", args, err, w.text)
			continue
		}
		for _, want := range c.text {
			if !strings.Contains(w.text, want) {
				t.Errorf("%q stands for\n%swant %q in it", args, w.text, want)
			}
		}
		for _, want := range c.says {
			if said := w.summary() + "\n"; !strings.Contains(said, want) {
				t.Errorf("%q: it says\n%swant %q in it", args, said, want)
			}
		}
		if got := w.listeners(); !slices.Equal(got, c.listens) {
			t.Errorf("%q listens at %q; want %q", args, got, c.listens)
		}
	}
}

// A secret to verify names the provider; a secret of another sender does not make it one.
func TestVerifyNamesTheProvider(t *testing.T) {
	for _, args := range [][]string{
		{"--verify", "github={env.A}"},
		{"--verify", "github={env.A}", "--provider", "github"},
		{"--verify", "github={env.A}", "--verify", "github={env.B}"},
		{"--verify", "github={env.A}", "--provider", "stripe", "--verify", "stripe={env.B}"},
	} {
		w, err := writtenFor(t, append(args, "--from", ":8080", "--to", ":1")...)
		want := []string{"github"}
		if slices.Contains(args, "stripe") {
			want = []string{"stripe", "github"}
		}
		if err != nil || !slices.Equal(w.handler.Providers, want) || !strings.Contains(w.text, "\tdedup "+strings.Join(want, " ")+" {\n") {
			t.Errorf("%q: %v; it stands for\n%s", args, err, w.text)
			continue
		}
		if said := w.summary(); !strings.Contains(said, "every request without a valid signature gets 401") {
			t.Errorf("%q: it says %s", args, said)
		}
	}
}

// The start says what becomes of requests that no sender has signed.
func TestNoteOfUnsignedRequests(t *testing.T) {
	const every, paths = "every request without a valid signature gets 401", "; with --path, requests for other paths pass"
	for want, args := range map[string][]string{
		"":            {"--provider", "github"},
		every + paths: {"--verify", "github={env.A}"},
		every + ", except the challenges of meta and dropbox" + paths: {"--verify", "meta={env.A}", "--verify", "github={env.A}", "--verify", "dropbox={env.A}"},
	} {
		for _, more := range [][]string{nil, {"--path", "/a"}, {"--observe"}} {
			w, err := writtenFor(t, append(slices.Concat(args, more), "--from", ":8080", "--to", ":1")...)
			if want := map[bool]string{true: want}[more == nil]; err != nil || w.unsignedNote() != want {
				t.Errorf("%q %q: it says %q, %v; want %q", args, more, w.unsignedNote(), err, want)
			}
		}
	}
}

// A placeholder's value is a whole path: nothing stands before it, or the state would lie
// in another place for each directory where the command is given.
func TestPlaceholderOfADirectory(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for given, want := range map[string]string{
		"{env.STATE_DIRECTORY}":      "store file {env.STATE_DIRECTORY}\n",
		"{env.STATE_DIRECTORY}/keys": "store file {env.STATE_DIRECTORY}/keys\n",
		"keys/{env.SHOP}":            "store file " + filepath.Join(here, "keys/{env.SHOP}") + "\n",
		"/srv/{env.SHOP}":            "store file /srv/{env.SHOP}\n",
	} {
		w, err := writtenFor(t, "--from", ":8080", "--to", ":1", "--file", given)
		if err != nil || !strings.Contains(w.text, want) {
			t.Errorf("--file %s: %v; want %q in\n%s", given, err, want, w.text)
		}
	}
}

func TestSummary(t *testing.T) {
	for name, c := range map[string]struct {
		args, says []string
	}{
		"an API":        {[]string{"--from", ":8080", "--to", ":3000"}, []string{"Idempotency-Key", "(POST, PATCH)", "try:    curl -i -X POST -H 'Idempotency-Key: try-1' -d hello http://localhost:8080/", "state:  /data/caddy/dedup-8080", "admin:  unix//data/caddy/dedup-admin-8080.sock\n"}},
		"webhooks":      {[]string{"--from", "example.com", "--to", "a:1", "--to", "b:2", "--provider", "github", "--provider", "stripe"}, []string{"protects a:1, b:2, :1\n", "webhooks of github, stripe", "try:    curl -i -X POST -H 'X-GitHub-Delivery: try-1' -d hello https://example.com/\n", "dedup-443"}},
		"a body":        {[]string{"--from", ":8080", "--provider", "stripe"}, []string{"try:    http://localhost:8080/\n"}},
		"a signature":   {[]string{"--from", ":8080", "--provider", "gitlab"}, []string{"try:    http://localhost:8080/\n"}},
		"other keys":    {[]string{"--from", "127.0.0.1:80", "--to", ":1", "--dedup", "key header X-Id", "--dedup", "methods PUT"}, []string{"keys of --dedup (PUT)", "http://127.0.0.1/\n"}},
		"methods":       {[]string{"--from", ":8080", "--dedup", "methods PUT DELETE"}, []string{"(PUT, DELETE)", "try:    curl -i -X PUT -H"}},
		"redis":         {[]string{"--from", "[::1]:8080", "--to", ":1", "--redis", "redis://u:open-sesame@a", "--admin", "off", "--health", ":8081"}, []string{"Redis at redis://u:{env.REDIS_PASSWORD}@a\n", "http://[::1]:8080/", "admin:  off", "shared: with replicas", "health: http://localhost:8081/ready"}},
		"a whole URL":   {[]string{"--redis", "{env.REDIS_URL}"}, []string{"state:  Redis at {env.REDIS_URL}\n"}},
		"a placeholder": {[]string{"--redis", "redis://u:{env.P}@a"}, []string{"Redis at redis://u:{env.P}@a\n"}},
		"its own":       {[]string{"--from", "http://0.0.0.0", "--to", ":1", "--dedup", "store memory"}, []string{"state:  as --dedup says", "hello http://localhost/"}},
		"observe":       {[]string{"--dedup", "observe"}, []string{"caddy-dedup observes :1, and every request passes\n"}},
		"its flag":      {[]string{"--observe"}, []string{"caddy-dedup observes :1, and every request passes\n"}},
		"paths, commas": {[]string{"--from", ":8080", "--path", "/a,/b"}, []string{"Idempotency-Key at /a, /b ("}},
		"paths":         {[]string{"--from", ":8080", "--path", "/webhooks/*", "--path", "/orders"}, []string{"the header Idempotency-Key at /webhooks/*, /orders (POST, PATCH)", "-d hello http://localhost:8080/webhooks/try\n"}},
		"path, no curl": {[]string{"--from", ":8080", "--provider", "stripe", "--path", "/hooks"}, []string{"webhooks of stripe at /hooks (", "try:    http://localhost:8080/hooks\n"}},
		"commas":        {[]string{"--provider", "github,stripe"}, []string{"webhooks of github, stripe"}},
		"a directory":   {[]string{"--from", "http://[::]:80", "--to", ":1", "--file", "/srv/keys"}, []string{"state:  /srv/keys", "hello http://localhost/"}},
		"a local name":  {nil, []string{"protects :1\n", "try:    curl -k -i", "https://localhost/"}},
		"an IPv6 name":  {[]string{"--from", "http://[::1]", "--to", ":1"}, []string{"hello http://[::1]/"}},
	} {
		w, err := writtenFor(t, append(c.args, "--to", ":1")...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		said := w.summary() + "\n"
		for _, word := range c.says {
			if !strings.Contains(said, word) {
				t.Errorf("%s: it says\n%swant %q in it", name, said, word)
			}
		}
		if strings.Contains(said, "open-sesame") {
			t.Errorf("%s: it shows the password", name)
		}
	}
}

// A service on another address of this machine may have the port of --from, and so may one of another machine.
func TestServicesWhereTheProxyListens(t *testing.T) {
	for from, services := range map[string]map[string]bool{
		":8080":          {":8080": true, "localhost:8080": true, "http://127.0.0.1:8080": true, "[::1]:8080": true, "tcp/127.0.0.1:8080": true, "0.0.0.0:8080": true, ":8081": false, "app:8080": false, "10.0.0.1:8080": false, "unix//run/x.sock": false},
		"127.0.0.1:8080": {"127.0.0.1:8080": true, "localhost:8080": true, "127.0.0.2:8080": false},
		"10.0.0.1:80":    {"10.0.0.1": true, "localhost": false},
		"example.com":    {"https://localhost": true, "localhost": false, "https://example.org": false},
	} {
		for service, want := range services {
			if _, err := writtenFor(t, "--from", from, "--to", service); (err != nil) != want {
				t.Errorf("--from %s --to %s: %v", from, service, err)
			}
		}
	}
}

// Each port is looked at before Caddy listens there, and no two flags have the same one.
func TestPortsOfTheProxy(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []listener
	}{
		{[]string{"--from", ":8080"}, []listener{{"--from", ":8080"}}},
		{[]string{"--from", "127.0.0.1:8080", "--health", ":8081", "--admin", "localhost:2019"}, []listener{{"--from", "127.0.0.1:8080"}, {"--health", ":8081"}, {"--admin", "localhost:2019"}}},
		{[]string{"--from", "example.com", "--admin", "off"}, []listener{{"--from", ":443"}, {"--from without --disable-redirects", ":80"}}},
		{[]string{"--from", "example.com:8443", "--disable-redirects"}, []listener{{"--from", ":8443"}}},
	} {
		w, err := writtenFor(t, append(c.args, "--to", ":1")...)
		if err != nil {
			t.Fatal(err)
		}
		if got := w.listeners(); !slices.Equal(got, c.want) {
			t.Errorf("%q listens at %q; want %q", c.args, got, c.want)
		}
	}
	at := freed(t)
	if err := checkPorts([]listener{{"--from", at}}); err != nil {
		t.Error(err)
	}
	_, port, _ := strings.Cut(at, ":")
	for _, second := range []string{at, ":" + port} {
		if err := checkPorts([]listener{{"--from", at}, {"--admin", second}}); err == nil || !strings.HasPrefix(err.Error(), "--admin: another process or flag has this port") {
			t.Errorf("%s and %s: %v", at, second, err)
		}
	}
}
