package integration

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// reply is a whole answer as a client got it.
type reply struct {
	Status  int
	Header  http.Header
	Trailer http.Header
	Body    string
}

// option changes a request before it is sent.
type option func(*http.Request)

func header(name string, values ...string) option {
	return func(r *http.Request) { r.Header[http.CanonicalHeaderKey(name)] = values }
}

func host(name string) option { return func(r *http.Request) { r.Host = name } }

func method(m string) option { return func(r *http.Request) { r.Method = m } }

func within(ctx context.Context) option {
	return func(r *http.Request) { *r = *r.WithContext(ctx) }
}

// oneShot makes a connection for each request: on a reused one Go's client
// would send a request with an idempotency key again by itself.
var oneShot = &http.Client{
	Timeout:       patience,
	Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// unencryptedHTTP2 speaks HTTP/2 without TLS.
func unencryptedHTTP2() *http.Client {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Client{Timeout: patience, Transport: &http.Transport{Protocols: protocols, DisableCompression: true}}
}

// newPost is a POST with an idempotency key ("" for none).
func (p *caddy) newPost(path, key, body string, options ...option) *http.Request {
	r, err := http.NewRequest("POST", "http://"+p.addr+path, strings.NewReader(body))
	if err != nil {
		panic(err) // the tests write these addresses
	}
	r.Host = "dedup.test" // the same for all processes of a test, whatever their port
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	for _, o := range options {
		o(r)
	}
	return r
}

// try sends a request and reads the whole answer.
func try(client *http.Client, r *http.Request) (reply, error) {
	answer, err := client.Do(r)
	if err != nil {
		return reply{}, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return reply{Status: answer.StatusCode, Header: answer.Header, Trailer: answer.Trailer, Body: string(body)}, err
}

// post sends a POST and fails the test if there is no whole answer.
func (p *caddy) post(t *testing.T, path, key, body string, options ...option) reply {
	t.Helper()
	got, err := try(oneShot, p.newPost(path, key, body, options...))
	if err != nil {
		t.Fatalf("POST %s with key %q: %v", path, key, err)
	}
	return got
}

// pending is a request under way.
type pending struct {
	what string
	done chan struct{}
	got  reply
	err  error
}

// postLater sends a POST and returns at once.
func (p *caddy) postLater(path, key, body string, options ...option) *pending {
	return sendLater(oneShot, p.newPost(path, key, body, options...))
}

func sendLater(client *http.Client, r *http.Request) *pending {
	w := &pending{what: r.Method + " " + r.URL.Path, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.got, w.err = try(client, r)
	}()
	return w
}

// reply waits for the whole answer.
func (w *pending) reply(t *testing.T) reply {
	t.Helper()
	<-w.done
	if w.err != nil {
		t.Fatalf("%s: %v", w.what, w.err)
	}
	return w.got
}

// mustWait fails the test if the answer is there.
func (w *pending) mustWait(t *testing.T) {
	t.Helper()
	select {
	case <-w.done:
		t.Fatalf("%s was answered too early: %d %q, %v", w.what, w.got.Status, w.got.Body, w.err)
	default:
	}
}

// postMany sends the same POST so often at once.
func (p *caddy) postMany(n int, path, key, body string, options ...option) []*pending {
	all := make([]*pending, n)
	for i := range all {
		all[i] = p.postLater(path, key, body, options...)
	}
	return all
}

// replies waits for all of them.
func replies(t *testing.T, all []*pending) []reply {
	t.Helper()
	var got []reply
	for _, w := range all {
		got = append(got, w.reply(t))
	}
	return got
}

// sendRaw writes bytes on a connection of its own, all of them before it reads,
// and reads one answer.
func (p *caddy) sendRaw(t *testing.T, request []byte) reply {
	t.Helper()
	conn, err := net.Dial("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(request); err != nil {
		t.Fatalf("writing the request: %v", err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("reading the answer: %v", err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatalf("reading the answer's body: %v", err)
	}
	return reply{Status: answer.StatusCode, Header: answer.Header, Body: string(body)}
}

// rawPost is a POST in bytes, with exactly these header lines.
func rawPost(path string, body []byte, headerLines ...string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: raw.test\r\nConnection: close\r\nContent-Length: %d\r\n", path, len(body))
	for _, line := range headerLines {
		b.WriteString(line + "\r\n")
	}
	b.WriteString("\r\n")
	b.Write(body)
	return b.Bytes()
}
