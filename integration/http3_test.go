package integration

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

// startHTTP3 starts the binary with a site that is served over HTTP/3, too.
func startHTTP3(t *testing.T, site string, dedup ...string) *caddy {
	t.Helper()
	dir := shortTempDir(t)
	certificate, key := selfSigned(t)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: certificate}, "key.pem": {Type: "PRIVATE KEY", Bytes: secret}}
	for name, block := range files {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	port, release := freeport.Claim(t)
	release()
	return start(t, conf{dir: dir, port: port, store: "store memory", dedup: lines(dedup...), sites: fmt.Sprintf("https://localhost:PORT {\ntls %s/cert.pem %[1]s/key.pem\n%s\n}\n", dir, site)})
}

// selfSigned returns a certificate of localhost.
func selfSigned(t *testing.T) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return certificate, key
}

// http3Client returns a client of HTTP/3 that takes so many bytes of a response that it does
// not read; 0 for those that such clients take.
func http3Client(t *testing.T, window uint64) *http.Client {
	transport := &http3.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"}, //nolint:gosec // the certificate is the test's own
		QUICConfig:      &quic.Config{InitialStreamReceiveWindow: window, MaxStreamReceiveWindow: window, KeepAlivePeriod: time.Second},
	}
	t.Cleanup(func() { _ = transport.Close() })
	return &http.Client{Transport: transport, Timeout: patience}
}

func post3(t *testing.T, client *http.Client, p *caddy, key string, body io.Reader, length int64) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, "https://"+p.addr+"/", io.NopCloser(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Host, r.ContentLength = "localhost", length
	r.Header.Set("Idempotency-Key", key)
	return client.Do(r)
}

// A body that ends before its declared length is malformed (RFC 9114, section 4.1.2), and
// the server hands it on as if it were whole. What is claimed for it would refuse the
// genuine request.
func TestHTTP3BodyThatIsTooShortIsNotExecuted(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := startHTTP3(t, lines("dedup", proxyTo(up)))
	client := http3Client(t, 0)
	whole := bytes.Repeat([]byte("a"), 100_000)
	for _, sent := range []int{1, 50_000, 99_999} {
		key := fmt.Sprint("k", sent)
		if got, err := post3(t, client, p, key, bytes.NewReader(whole[:sent]), int64(len(whole))); err == nil {
			_ = got.Body.Close()
			if got.StatusCode != http.StatusBadRequest {
				t.Errorf("%d of %d bytes are answered with %d", sent, len(whole), got.StatusCode)
			}
		}
		up.wantRuns(t, key, 0)
		got, err := post3(t, client, p, key, bytes.NewReader(whole), int64(len(whole)))
		if err != nil {
			t.Fatal(err)
		}
		_ = got.Body.Close()
		if got.StatusCode != http.StatusCreated {
			t.Errorf("the whole request behind it is answered with %d", got.StatusCode)
		}
		up.wantRuns(t, key, 1)
	}
}

// toldBody is a body that its client sends when it is told to continue, or has given up.
type toldBody struct {
	ctx  context.Context
	told chan struct{}
	text io.Reader
}

func (b *toldBody) Read(p []byte) (int, error) {
	select {
	case <-b.told:
		return b.text.Read(p)
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
}

// Who reads the body has to tell the client to send it (RFC 9110, section 10.1.1), and the
// server of HTTP/3 does not do so by itself.
func TestHTTP3ExpectationIsAnswered(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := startHTTP3(t, lines("dedup", proxyTo(up)))
	client := http3Client(t, 0)
	for _, c := range []struct {
		size, declared int64
		key            string
	}{
		{10, 10, "small"}, {10, 10, "small"}, {50_000, 50_000, "large"}, {10, -1, "of unknown length"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		told := make(chan struct{})
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got100Continue: func() { close(told) }})
		body := &toldBody{ctx, told, strings.NewReader(strings.Repeat("a", int(c.size)))}
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+p.addr+"/", io.NopCloser(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Host, r.ContentLength = "localhost", c.declared
		r.Header.Set("Idempotency-Key", c.key)
		r.Header.Set("Expect", "100-continue")
		got, err := client.Do(r)
		if err != nil {
			t.Fatalf("a body %s that its client sends when it is told to: %v", c.key, err)
		}
		_ = got.Body.Close()
		if got.StatusCode != http.StatusCreated {
			t.Errorf("a body %s is answered with %d", c.key, got.StatusCode)
		}
		up.wantRuns(t, c.key, 1)
		if run := up.nth(t, c.key, 1); len(run.Body) != int(c.size) || run.Header["Expect"] != nil {
			t.Errorf("the upstream got %d bytes of %d, and Expect %q", len(run.Body), c.size, run.Header["Expect"])
		}
	}
}

// A stream of QUIC whose deadline has passed can still be ended as if it were whole.
func TestHTTP3ResponseThatWasCutDoesNotEndWhole(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("x", 900_000)
	up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ run) {
		w.Header().Set("Content-Length", fmt.Sprint(len(text))) // else it is a stream
		fmt.Fprint(w, text)
	})
	p := startHTTP3(t, lines("dedup", proxyTo(up)), limits("client_idle 1s", "buffered 1200KiB"))
	for _, what := range []string{"of the run", "of a replay"} {
		got, err := post3(t, http3Client(t, 5000), p, "k", http.NoBody, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer got.Body.Close()
		// Others need its room: the oldest of them exceeds buffered each 250 ms.
		var others sync.WaitGroup
		for n := range 8 {
			others.Go(func() {
				other, err := post3(t, http3Client(t, 0), p, fmt.Sprint("other", what, n), http.NoBody, 0)
				if err != nil {
					t.Error(err)
					return
				}
				defer other.Body.Close()
				if read, err := io.ReadAll(other.Body); err != nil || len(read) != len(text) {
					t.Errorf("another one got %d of %d bytes: %v", len(read), len(text), err)
				}
			})
		}
		others.Wait()
		var late interface{ Timeout() bool }
		if read, err := io.ReadAll(got.Body); err == nil || errors.As(err, &late) && late.Timeout() {
			t.Errorf("the response %s is not cut after %d of %d bytes: %v", what, len(read), len(text), err)
		}
	}
	up.wantRuns(t, "k", 1)
}
