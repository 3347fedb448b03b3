package exchange

import (
	"errors"
	"net/http"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// observation is what was observed of a run when it ended.
type observation struct {
	err      error // what the handlers behind returned; [errAborted] if they panicked
	status   int   // what they wrote; 0 for nothing
	broken   bool  // whether they wrote fewer or more bytes than they had declared
	omitted  bool  // whether the body outgrew what is kept
	upgraded bool  // whether the connection is another protocol's
	upstream upstreamObservation
	releases bool // whether the upstream's status releases the key
}

// ending is how a run ended.
type ending struct {
	how      idempotency.How
	waiting  waiting // what requests get that wait for the run
	err      error   // what the client gets in place of the response; nil for the response
	frees    bool    // whether the key is released whatever the response says
	upstream upstreamObservation
}

// waiting is what requests get that wait for a run when it ends.
type waiting int

const (
	getNothing  waiting = iota // they claim in turn
	getResponse                // as the first client
	getEmpty                   // the server's own empty 200, as the first client
	getError                   // the error that the first client gets
)

var (
	// errAborted stands for a panic: the run was aborted, or its upstream died in the
	// middle of a body.
	errAborted = errors.New("aborted")
	// errNoHandler is how a run ends that no handler behind has answered.
	errNoHandler = errors.New("no handler behind dedup answered the request")

	errNoResponse = caddyhttp.Error(http.StatusBadGateway, errors.New("the upstream gave no response"))
	errCutOff     = caddyhttp.Error(http.StatusBadGateway, errors.New("the response was cut off"))
	errSentTwice  = caddyhttp.Error(http.StatusBadGateway, errors.New(errResent.Error()))
)

// ending returns how the run ended (contract, section 4, "How a run ends").
func (o observation) ending() ending {
	up := o.upstream
	sent := idempotency.NotSent // the end of a run without a whole response of the upstream
	if up.maybeSent {
		sent = idempotency.Unknown
	}
	err := o.err
	switch {
	case up.resent: // for which reverse_proxy has written 499
		err = errSentTwice
	case err == nil && o.status != 0 && o.broken:
		err = errCutOff
	}
	end := func(how idempotency.How, w waiting, err error) ending {
		return ending{how: how, waiting: w, err: err, upstream: up}
	}
	switch {
	case o.upgraded: // what follows on the connection is no response
		return end(idempotency.Unknown, getNothing, err)
	case o.omitted: // it is settled where it outgrows what is kept, whatever follows
		return end(idempotency.Answered, getResponse, err)
	case err != nil && o.status == 0 && up.answered && o.releases: // of which a handler behind made an error
		return end(idempotency.Answered, getError, err)
	case errors.Is(err, errAborted), err != nil && o.status != 0:
		return end(idempotency.Unknown, getError, err)
	case err != nil:
		return end(sent, getError, err)
	case o.status != 0 && up.unanswered(): // the page of error routes behind
		return end(sent, getResponse, nil)
	case o.status == statusClientGone && up.gaveUp():
		return end(sent, getError, nil)
	case o.status != 0:
		return end(idempotency.Answered, getResponse, nil)
	case up.status >= 200:
		// A response handler behind made nothing of the upstream's response. The client has the
		// server's empty 200, and so have duplicates: to run again what was executed would be worse.
		empty := end(idempotency.Answered, getEmpty, nil)
		empty.frees = !up.maybeSent
		return empty
	case up.maybeSent:
		return end(idempotency.Unknown, getError, errNoResponse)
	default:
		return end(idempotency.NotSent, getNothing, errNoHandler)
	}
}

// cause returns the error that ended the run, nil if the upstream's response did.
func (e ending) cause() error {
	if e.err == nil && e.upstream.unanswered() {
		return e.upstream.failed
	}
	return e.err
}

// shared returns what requests get that wait for the run, nil if they claim in turn.
func (c *recorder) shared(e ending) *idempotency.Response {
	switch e.waiting {
	case getResponse:
		return c.response()
	case getEmpty:
		return &idempotency.Response{Status: http.StatusOK, Header: c.rules.kept(c.found, c.header)}
	case getError:
		r := &idempotency.Response{Status: failedStatus(e.err), Failed: true}
		if c.status == 0 { // else the header is that of a response that is dropped
			r.Header = c.rules.kept(c.found, c.header)
		}
		return r
	default:
		return nil
	}
}

// failedStatus returns the status with which Caddy answers an error, and 502 for a
// response that is not whole.
func failedStatus(err error) int {
	var handlerError caddyhttp.HandlerError
	switch {
	case errors.As(err, &handlerError) && handlerError.StatusCode != 0:
		return handlerError.StatusCode
	case err != nil && !errors.Is(err, errAborted):
		return http.StatusInternalServerError
	default:
		return http.StatusBadGateway
	}
}
