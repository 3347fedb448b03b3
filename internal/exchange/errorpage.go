package exchange

import (
	"io"
	"maps"
	"net/http"

	"github.com/caddyserver/caddy/v2"
)

// errorPage is the response writer of error routes. Status and header are held back until the
// first byte: where no route of a site matches, Caddy writes the error's status alone, and that is no
// page. From the first byte on the page streams to the client, at its pace.
type errorPage struct {
	to     ClientWriter
	header http.Header // until it is sent
	failed int         // the error's status
	repl   *caddy.Replacer
	status int // as it was written, 0 before
	sent   bool
}

// Header implements [http.ResponseWriter].
func (p *errorPage) Header() http.Header {
	if p.sent {
		return p.to.Client.Header()
	}
	return p.header
}

// WriteHeader writes a status. The upstream of a proxy answers as to any GET, which is no answer
// to the client's own request: the error's status stays then.
func (p *errorPage) WriteHeader(status int) {
	if p.status != 0 || status < 200 {
		return
	}
	if p.repl != nil {
		if proxied, _ := p.repl.Get(upstreamStatus); proxied == status {
			status = p.failed
		}
	}
	if p.status = status; status != p.failed {
		p.send() // a redirection, for example
	}
}

// Write implements [io.Writer].
func (p *errorPage) Write(bytes []byte) (int, error) {
	if len(bytes) == 0 {
		return 0, nil
	}
	if p.status == 0 {
		p.WriteHeader(http.StatusOK)
	}
	p.send()
	if err := p.to.Send(bytes); err != nil {
		return 0, err
	}
	return len(bytes), nil
}

// ReadFrom keeps io.Copy from reaching past this writer.
func (p *errorPage) ReadFrom(r io.Reader) (int64, error) { return io.Copy(writerOnly{p}, r) }

// FlushError sends the client what was written.
func (p *errorPage) FlushError() error {
	if !p.sent {
		return nil
	}
	return p.to.Flush()
}

// Flush implements [http.Flusher].
func (p *errorPage) Flush() { _ = p.FlushError() }

func (p *errorPage) send() {
	if p.sent {
		return
	}
	p.sent = true
	p.replaceHeader()
	p.to.Client.WriteHeader(p.status)
}

func (p *errorPage) replaceHeader() {
	own := p.to.Client.Header()
	clear(own)
	maps.Copy(own, p.header)
}

// answered reports whether there was a page. If not, the client gets what the routes have set in
// the header, with another body.
func (p *errorPage) answered() bool {
	if !p.sent {
		p.replaceHeader()
		maps.DeleteFunc(p.to.Client.Header(), func(name string, _ []string) bool {
			return name == "Content-Length" || describesBody(name)
		})
	}
	return p.sent
}

var (
	_ http.Flusher  = (*errorPage)(nil)
	_ io.ReaderFrom = (*errorPage)(nil)
)
