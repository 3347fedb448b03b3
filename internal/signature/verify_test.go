package signature_test

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/signature"
)

// request returns a request that the sender has signed.
func (s sender) request(change ...func(*sent)) *sent {
	r := &sent{
		secret: cmp.Or(s.secret, textSecret), body: cmp.Or(s.body, textBody), at: start, id: "msg_1",
		method: http.MethodPost, target: "/webhook", header: http.Header{},
	}
	for _, c := range change {
		c(r)
	}
	s.sign(r)
	return r
}

func (s sender) verifier(t testing.TB, provider string, change ...func(*signature.Config)) *signature.Verifier {
	t.Helper()
	c := signature.Config{Provider: provider, Secrets: []string{cmp.Or(s.secret, textSecret)}}
	if s.config != nil {
		s.config(&c)
	}
	for _, f := range change {
		f(&c)
	}
	v, err := signature.New(c)
	if err != nil {
		t.Fatalf("%s: %v", provider, err)
	}
	return v
}

// verify sends the request, whose body comes in pieces, to verifiers. early reports whether it is refused
// before its body is read.
func (r *sent) verify(t testing.TB, now time.Time, v ...*signature.Verifier) (found signature.Verified, early bool, err error) {
	t.Helper()
	pending, err := signature.Verifiers(v).Begin(signature.Request{Method: r.method, Target: r.target, Header: r.header, HasBody: r.body != ""}, now)
	early = err != nil
	if err == nil {
		body := signature.BodyOf([]byte(r.body))
		body.Pieces = slices.Values(append([][]byte{nil}, slices.Collect(slices.Chunk([]byte(r.body), 7))...))
		var all []signature.Verified
		if all, err = pending.Verify(body); err == nil {
			found = all[0]
		}
	}
	if refusal, is := errors.AsType[signature.Refusal](err); err != nil && (!is || refusal == "") {
		t.Errorf("the error %v is no refusal with a reason", err)
	}
	if err != nil && strings.Contains(err.Error(), r.secret) {
		t.Errorf("the reason %v has the secret", err)
	}
	return found, early, err
}

func within(d time.Duration) func(*signature.Config) {
	return func(c *signature.Config) { c.Within = &d }
}

// Every provider of the catalogue has a sender here, which signs by code of its own.
func TestGenuineRequests(t *testing.T) {
	var verifiable []string
	for _, p := range signature.Providers() {
		if p.Reason == "" {
			verifiable = append(verifiable, p.Name)
		}
	}
	if names := slices.Sorted(maps.Keys(senders)); len(names) != 56 || !slices.Equal(names, verifiable) {
		t.Fatalf("senders: %q, verifiable: %q", names, verifiable)
	}
	for name, s := range senders {
		r := s.request()
		found, _, err := r.verify(t, start, s.verifier(t, name))
		if err != nil || found.Provider != name {
			t.Errorf("%s: %+v, %v", name, found, err)
		}
		if want := map[bool]string{true: r.id}[s.id != ""]; found.ID != want {
			t.Errorf("%s: the signed ID is %q, want %q", name, found.ID, want)
		}
	}
}

func TestForgedRequests(t *testing.T) {
	type attack struct {
		name  string
		early bool // refused before the body is read
		on    func(s sender) bool
		do    func(s sender, r *sent)
	}
	inField := func(s sender) bool { return s.signed != "" }
	isTimed := func(s sender) bool { return s.timed != "" && s.timed[0] != '/' }
	hasOwnTime := func(s sender) bool { return isTimed(s) && s.timed != s.signed }
	hasSize := func(s sender) bool { return s.signed != "" && !s.inDER }
	hasID := func(s sender) bool { return s.id != "" }
	set := func(value string) func(s sender, r *sent) {
		return func(s sender, r *sent) { r.header.Set(s.signed, value) }
	}
	attacks := []attack{
		{"no field", true, inField, func(s sender, r *sent) { r.header.Del(s.signed) }},
		{"empty field", true, inField, set("")},
		{"huge field", true, inField, set(strings.Repeat("a", 1<<16))},
		{"non-ASCII field", true, inField, set("sha256=ä日本")},
		{"only separators", true, inField, set(strings.Repeat(",", 100))},
		{"two lines", true, inField, func(s sender, r *sent) { r.header.Add(s.signed, r.header.Get(s.signed)) }},
		{"two lines, the other wrong", true, inField, func(s sender, r *sent) {
			field := http.CanonicalHeaderKey(s.signed)
			r.header[field] = append([]string{"x"}, r.header[field]...)
		}},
		{"cut", true, hasSize, func(s sender, r *sent) {
			value := r.header.Get(s.signed)
			r.header.Set(s.signed, value[:len(value)-4])
		}},
		{"longer", true, hasSize, func(s sender, r *sent) { r.header.Set(s.signed, r.header.Get(s.signed)+"00") }},
		{"another prefix", true, inField, func(s sender, r *sent) { r.header.Set(s.signed, "v9="+r.header.Get(s.signed)) }},
		{"no time", true, isTimed, func(s sender, r *sent) { r.header.Del(s.timed) }},
		{"two times", true, isTimed, func(s sender, r *sent) { r.header.Add(s.timed, r.header.Get(s.timed)) }},
		{"no ID", true, hasID, func(s sender, r *sent) { r.header.Del(s.id) }},
		{"two IDs", true, hasID, func(s sender, r *sent) { r.header.Add(s.id, r.header.Get(s.id)) }},
		{"another ID", false, hasID, func(s sender, r *sent) { r.header.Set(s.id, "msg_2") }},
		{"another time", false, hasOwnTime, func(s sender, r *sent) {
			r.header.Set(s.timed, strings.Replace(r.header.Get(s.timed), "00", "01", 1))
			if s.unit == "rfc3339" {
				r.header.Set(s.timed, start.Add(time.Second).Format(time.RFC3339))
			}
		}},
	}
	for name, s := range senders {
		v := s.verifier(t, name)
		for _, a := range attacks {
			if !a.on(s) {
				continue
			}
			r := s.request()
			a.do(s, r)
			if _, early, err := r.verify(t, start, v); err == nil || early != a.early {
				t.Errorf("%s, %s: early is %v, %v", name, a.name, early, err)
			}
		}
	}
}

// signsNothing are the senders of a static secret, and adyen, which does not sign all of the body.
func signsNothing(t *testing.T, name string) bool {
	p, known := signature.ProviderNamed(name)
	if !known {
		t.Fatal(name)
	}
	return p.ID == "nothing is signed"
}

// One byte of the body, anywhere, and one more at the end.
func TestChangedBody(t *testing.T) {
	for name, s := range senders {
		if signsNothing(t, name) || name == "adyen" {
			continue
		}
		v, r := s.verifier(t, name), s.request()
		body := r.body
		for i := 0; i <= len(body); i++ {
			changed := []byte(body + "\n")
			if i < len(body) {
				changed = []byte(body)
				changed[i] ^= 1
			}
			if name == "twilio" && i < len(body) && (body[i] == '%' || changed[i] == '%') {
				continue // it signs the form, not its bytes
			}
			r.body = string(changed)
			if _, _, err := r.verify(t, start, v); err == nil {
				t.Errorf("%s: byte %d of %d is changed, and it is verified", name, i, len(body))
			}
		}
	}
}

func TestSecrets(t *testing.T) {
	for name, s := range senders {
		if p, _ := signature.ProviderNamed(name); p.PublicKey() {
			continue
		}
		secret := cmp.Or(s.secret, textSecret)
		other := map[bool]string{true: "b" + secret, false: "user:" + secret}[s.secret == ""]
		switch { // one of the same form
		case strings.HasPrefix(secret, "whsec_"):
			other = "whsec_" + inBase64("other")
		case secret == bareBase64:
			other = inBase64("other")
		case name == "adyen":
			other = "00ff"
		}
		for _, test := range []struct {
			is      string
			secrets []string
			ok      bool
		}{
			{"another one", []string{other}, false},
			{"replaced", []string{other, secret}, true},
			{"to be replaced", []string{secret, other}, true},
			{"with a line feed", []string{secret + "\n"}, false},
			{"none", nil, false},
			{"an empty one", []string{""}, false},
			{"an empty one behind another", []string{secret, ""}, false},
			{"a line end alone", []string{"\r\n"}, false},
		} {
			c := signature.Config{Provider: name}
			if s.config != nil {
				s.config(&c)
			}
			c.Secrets = test.secrets
			v, err := signature.New(c)
			if err == nil {
				_, _, err = s.request().verify(t, start, v)
			} else if strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: the error %v has the secret, or not the provider", name, err)
			}
			if (err == nil) != test.ok {
				t.Errorf("%s, secret %s: %v", name, test.is, err)
			}
		}
	}
}

// Digests in hex may have capitals, those in base64 are one text alone; none is taken for the
// other.
func TestEncodings(t *testing.T) {
	for name, s := range senders {
		if signsNothing(t, name) || s.signed == "" {
			continue
		}
		v, r := s.verifier(t, name), s.request()
		value := r.header.Get(s.signed)
		at := strings.LastIndexAny(strings.TrimRight(value, "="), "=,") + 1
		prefix, text := value[:at], value[at:]
		bytes, err := hex.DecodeString(text)
		if isHex := err == nil; isHex {
			r.header.Set(s.signed, prefix+strings.ToUpper(text))
			if _, _, err := r.verify(t, start, v); err != nil {
				t.Errorf("%s, capitals: %v", name, err)
			}
			r.header.Set(s.signed, prefix+inBase64(string(bytes)))
		} else {
			bytes, _ = base64.StdEncoding.DecodeString(text)
			r.header.Set(s.signed, prefix+inHex(string(bytes)))
		}
		if _, _, err := r.verify(t, start, v); err == nil && name != "convoy" { // which follows from the length
			t.Errorf("%s: the other encoding is verified", name)
		}
	}
}

func TestSeveralSignatures(t *testing.T) {
	wrong := inHex(digest(sha256.New, "wrong", "x"))
	wrong64 := "v1," + inBase64(digest(sha256.New, "wrong", "x"))
	for _, test := range []struct {
		provider, before, after string
		ok                      bool
	}{
		{"stripe", "v1=" + wrong + ",", "", true},
		{"stripe", "", ",v1=" + wrong, true},
		{"stripe", "", ",v0=" + wrong + ",scheme", true},
		{"stripe", "", ",v1=short", true},
		{"stripe", "", ",t=1764201600", false},
		{"stripe", "t=1764201600,", "", false},
		{"stripe", "", strings.Repeat(",v1="+wrong, 9), true},
		{"stripe", "", strings.Repeat(",v1="+wrong, 10), false},
		{"paddle", "", ";h1=" + wrong, true},
		{"pagerduty", "v1=" + wrong + ",", "", true},
		{"circleci", "", ",v2=" + wrong, true},
		{"outpost", "", "," + wrong, true},
		{"standard_webhooks", wrong64 + " ", "", true},
		{"svix", "v1a,AAAA ", " v2,AAAA", true},
		{"svix", "", strings.Repeat(" "+wrong64, 10), false},
		{"github", "", ",sha256=" + wrong, false},
		{"convoy", "", ",v1=" + wrong + ",v2=" + wrong + ",vx=1", true},
		{"convoy", "", ",t=1764201600", false},
		{"convoy", "", strings.Repeat(",v1="+wrong, 10), false},
	} {
		s := senders[test.provider]
		r := s.request()
		r.header.Set(s.signed, test.before+r.header.Get(s.signed)+test.after)
		if _, _, err := r.verify(t, start, s.verifier(t, test.provider)); (err == nil) != test.ok {
			t.Errorf("%s, %.20s…%.20s: %v", test.provider, test.before, test.after, err)
		}
	}
	r := senders["outpost"].request() // the prefix is before the list alone
	first := strings.TrimPrefix(r.header.Get("X-Outpost-Signature"), "v0=")
	r.header.Set("X-Outpost-Signature", "v0="+wrong+","+first)
	if _, _, err := r.verify(t, start, senders["outpost"].verifier(t, "outpost")); err != nil {
		t.Errorf("outpost: the second signature: %v", err)
	}
}

// The errors of the body are returned as they are, and nothing is allocated before it is asked for.
func TestNoRoom(t *testing.T) {
	noRoom := errors.New("no room")
	for _, name := range []string{"adyen", "linear", "twilio", "discord", "sendgrid"} {
		s := senders[name]
		r := s.request()
		pending, err := signature.Verifiers{s.verifier(t, name)}.Begin(signature.Request{Method: r.method, Target: r.target, Header: r.header, HasBody: true}, start)
		if err != nil {
			t.Fatal(err)
		}
		body := signature.BodyOf([]byte(r.body))
		body.Reserve = func(int) error { return noRoom }
		if _, err := pending.Verify(body); err != noRoom { //nolint:errorlint // as it is
			t.Errorf("%s: %v", name, err)
		}
	}
}
