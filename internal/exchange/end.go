package exchange

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// observation is what was observed of a run until it ended.
type observation struct {
	err      error // what the handlers behind returned; [errAborted] or [errPanicked] if they panicked
	status   int   // what they wrote; 0 for nothing
	broken   bool  // whether they wrote fewer or more bytes than they had declared
	early    bool  // whether the run is settled before they return: the body outgrew what is kept, or has the response to a tool call
	upgraded bool  // whether the connection has switched to another protocol
	tool     toolEnd
	upstream upstreamObservation
	releases bool // whether the upstream's status releases the key
}

// sharedAnswer is what the requests get that waited for a run when it ends.
type sharedAnswer int

const (
	shareNone     sharedAnswer = iota // they claim in turn
	shareResponse                     // the response that the first client gets
	shareEmpty                        // the server's own empty 200, which the first client gets
	shareError                        // the error that the first client gets
)

var (
	// errAborted stands for the panic of a handler that aborts: the upstream failed in the middle of a
	// body, or Caddy's abort was reached.
	errAborted = errors.New("aborted")
	// errPanicked stands for any other panic.
	errPanicked = fmt.Errorf("a handler panicked: %w", errAborted)
	// errNoHandler is the end of a run that no handler behind has answered.
	errNoHandler = errors.New("no handler behind dedup answered the request")

	errNoResponse = caddyhttp.Error(http.StatusBadGateway, errors.New("the upstream gave no response"))
	errCutOff     = caddyhttp.Error(http.StatusBadGateway, errors.New("the response was cut off"))
	errSentTwice  = caddyhttp.Error(http.StatusBadGateway, errors.New(errResent.Error()))
)

// end returns how the run ended (contract, section 4, "How a run ends"), what the requests get that
// waited for it, and the error that the client gets in place of the response, nil for the response.
func (o observation) end() (end idempotency.End, share sharedAnswer, err error) {
	up := o.upstream
	end.UpstreamStatus = up.status
	sent := idempotency.NotSent // the end of a run without a whole response of the upstream
	if up.maybeSent {
		sent = idempotency.Unknown
	}
	err = o.err
	switch {
	case up.resent: // reverse_proxy has written 499
		err = errSentTwice
	case err == nil && o.status != 0 && o.broken:
		err = errCutOff
	}
	switch {
	case o.upgraded: // what follows on the connection is no response
		end.How, share = idempotency.Unknown, shareNone
	case o.early: // whatever follows
		end.How, share = idempotency.Answered, shareResponse
	case err != nil && o.status == 0 && up.answered && o.releases: // a later handler turned the response into an error
		end.How, share = idempotency.Answered, shareError
	case errors.Is(err, errAborted) && !errors.Is(err, errPanicked) && o.status == 0: // before anything was written, as Caddy's abort does
		end.How, share = sent, shareError
	case errors.Is(err, errAborted), err != nil && o.status != 0:
		end.How, share = idempotency.Unknown, shareError
	case err != nil:
		end.How, share = sent, shareError
	case o.status != 0 && up.unanswered(): // error routes behind wrote the page
		end.How, share = sent, shareResponse
	case o.status == statusClientGone && up.gaveUp():
		end.How, share = sent, shareError
	case o.status != 0:
		end.How, share = idempotency.Answered, shareResponse
	case up.status >= 200:
		// A response handler behind wrote nothing of the upstream's response. The client gets the
		// server's empty 200, and so do duplicates: to run again what was executed would be worse.
		end.How, share = idempotency.Answered, shareEmpty
		if !up.maybeSent {
			end.Retention = new(time.Duration) // nothing was executed: release the key
		}
	case up.maybeSent:
		end.How, share, err = idempotency.Unknown, shareError, errNoResponse
	default:
		end.How, share, err = idempotency.NotSent, shareNone, errNoHandler
	}
	if end.How == idempotency.Answered {
		switch o.tool {
		case toolReleased, toolSilent:
			end.SaysFailed = true
		case toolUnknown: // its client gets what there is, and may fetch the rest
			end.How, share = idempotency.Unknown, shareError
		}
	}
	return end, share, err
}

// cause returns the error that ended the run, nil if the upstream's response did. err is what the
// client gets in place of the response.
func (o observation) cause(err error) error {
	if err == nil && o.upstream.unanswered() {
		return o.upstream.failed
	}
	return cmp.Or(err, toolReasons[o.tool])
}

// shared returns the response that the requests get that waited for the run, nil if they claim in
// turn. err is what the client gets in place of the response.
func (c *recorder) shared(share sharedAnswer, err error) *idempotency.Response {
	switch share {
	case shareResponse:
		return c.response()
	case shareEmpty:
		return &idempotency.Response{Status: http.StatusOK, Header: c.rules.kept(c.found, c.header)}
	case shareError:
		r := &idempotency.Response{Status: failedStatus(err), Failed: true}
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
