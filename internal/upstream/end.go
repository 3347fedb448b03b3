package upstream

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Ended is what was observed of a run until it ended.
type Ended struct {
	Err      error // what the handlers behind returned; [ErrAborted] or [ErrPanicked] if they panicked
	Status   int   // what they wrote; 0 for nothing
	Broken   bool  // whether they wrote fewer or more bytes than they had declared
	Early    bool  // whether the run is settled before they return: the body outgrew what is kept, or has all that is
	Upgraded bool  // whether the connection has switched to another protocol
	Verdict  Verdict
	Way      Way
	// Releases reports whether the upstream's status releases the key.
	Releases bool
	// Retention is the upstream's Dedup-Retention.
	Retention string
	// NotExecuted reports whether the upstream is a dedup that has refused the request.
	NotExecuted bool
}

// Verdict is what a mode says of the content of a whole answer, whatever its status.
type Verdict struct {
	Failed  bool  // the answer is a failure
	Asked   bool  // the answer asks its client for more, and the run is no attempt
	Silent  bool  // the answer has nothing that the mode could keep
	Unknown bool  // the answer does not say how the request ended
	Why     error // nil if neither
}

// Answer reads the answer of a run for a mode that keeps only a part of it: the response to a call.
type Answer interface {
	// Begin starts with the status and the header. take takes room for the response from the room of the
	// answer. Begin reports whether the answer is a stream, of which the response is a part.
	Begin(status int, header http.Header, take func(room *budget.Allowance, bytes int) bool) (stream bool)
	// Feed reads bytes of the answer. before is how many of them come before the response is whole, and
	// ended reports whether it is.
	Feed(p []byte) (before int, ended bool)
	// Pending returns how many of the bytes that Feed has read may belong to the response: it has begun with them,
	// and is not whole.
	Pending() int
	// Rewrite returns the next bytes of the answer as its client gets them. Feed has read them.
	Rewrite(p []byte) []byte
	// Whole reads the body of an answer that is no stream, in place of Feed. It is not copied.
	Whole(body []byte)
	// Outgrow ends a response that is too large.
	Outgrow()
	// Early reports whether the response has ended, and the answer goes on.
	Early() bool
	// Verdict returns what the answer says. whole reports whether it is whole.
	Verdict(whole bool) Verdict
	// Held returns the size of the response in bytes.
	Held() int
	// Omitted reports whether the response is too large to be kept.
	Omitted() bool
	// Keep makes what is kept of an answer its response alone.
	Keep(r *idempotency.Response)
	// Release releases the room of the response.
	Release()
}

// Share is what the requests get that waited for a run when it ends.
type Share int

const (
	ShareNone     Share = iota // they claim in turn
	ShareResponse              // the response that the first client gets
	ShareEmpty                 // the server's own empty 200, which the first client gets
	ShareError                 // the error that the first client gets
)

var (
	// ErrAborted stands for the panic of a handler that aborts: the upstream failed in the middle of a
	// body, or Caddy's abort was reached.
	ErrAborted = errors.New("aborted")
	// ErrPanicked stands for any other panic.
	ErrPanicked = fmt.Errorf("a handler panicked: %w", ErrAborted)
	// ErrNoHandler is the end of a run that no handler behind has answered.
	ErrNoHandler = errors.New("no handler behind dedup answered the request")

	errNoResponse = caddyhttp.Error(http.StatusBadGateway, errors.New("the upstream gave no response"))
	errCutOff     = caddyhttp.Error(http.StatusBadGateway, errors.New("the response was cut off"))
	errSentTwice  = caddyhttp.Error(http.StatusBadGateway, errNotResent)
)

// PanicError returns the error that stands for a panic.
func PanicError(reason any) error {
	if reason == http.ErrAbortHandler { //nolint:errorlint // as net/http compares it
		return ErrAborted
	}
	return ErrPanicked
}

// End returns how the run ended (contract, section 4, "How a run ends"), what the requests get that
// waited for it, and the error that the client gets in place of the response, nil for the response.
func (o Ended) End() (end idempotency.End, share Share, err error) {
	up := o.Way
	end.UpstreamStatus = up.Status
	sent := idempotency.NotSent // the end of a run without a whole response of the upstream
	if up.MaybeSent {
		sent = idempotency.Unknown
	}
	err = o.Err
	switch {
	case up.Resent: // reverse_proxy has written 499
		err = errSentTwice
	case err == nil && o.Status != 0 && o.Broken:
		err = errCutOff
	}
	switch {
	case o.Upgraded: // what follows on the connection is no response
		end.How, share = idempotency.Unknown, ShareNone
	case o.NotExecuted && !up.SentBefore: // else something else of this run may have executed
		end.How, share = idempotency.NotSent, ShareResponse
		if err != nil {
			share = ShareError
		}
		return end, share, err
	case o.Early: // whatever follows
		end.How, share = idempotency.Answered, ShareResponse
	case err != nil && o.Status == 0 && up.Answered && o.Releases: // a later handler turned the response into an error
		end.How, share = idempotency.Answered, ShareError
	case errors.Is(err, ErrAborted) && !errors.Is(err, ErrPanicked) && o.Status == 0: // before anything was written, as Caddy's abort does
		end.How, share = sent, ShareError
	case errors.Is(err, ErrAborted), err != nil && o.Status != 0:
		end.How, share = idempotency.Unknown, ShareError
	case err != nil:
		end.How, share = sent, ShareError
	case o.Status != 0 && up.Unanswered(): // error routes behind wrote the page
		end.How, share = sent, ShareResponse
	case o.Status == StatusClientGone && up.gaveUp():
		end.How, share = sent, ShareError
	case o.Status != 0:
		end.How, share = idempotency.Answered, ShareResponse
	case up.Status >= 200:
		// A response handler behind wrote nothing of the upstream's response. The client gets the
		// server's empty 200, and so do duplicates: to run again what was executed would be worse.
		end.How, share = idempotency.Answered, ShareEmpty
		if !up.MaybeSent {
			end.Retention = new(time.Duration) // nothing was executed: release the key
		}
	case up.MaybeSent:
		end.How, share, err = idempotency.Unknown, ShareError, errNoResponse
	default:
		end.How, share, err = idempotency.NotSent, ShareNone, ErrNoHandler
	}
	if end.How == idempotency.Answered {
		if end.SaysFailed = o.Verdict.Failed; o.Verdict.Unknown { // its client gets what there is, and may fetch the rest
			end.How, share = idempotency.Unknown, ShareError
		} else if o.Verdict.Asked {
			end.How = idempotency.NotSent
		}
	}
	return end, share, err
}

// cause returns the error that ended the run, nil if the upstream's response did. err is what the
// client gets in place of the response.
func (o Ended) cause(err error) error {
	if err == nil && o.Way.Unanswered() {
		return o.Way.Failed
	}
	return cmp.Or(err, o.Verdict.Why)
}

// StatusClientGone is the status of a request whose client disconnected before it was answered, as in
// Caddy's reverse_proxy.
const StatusClientGone = 499

// FailedStatus returns the status with which Caddy answers an error, and 502 for a
// response that is not whole.
func FailedStatus(err error) int {
	var handlerError caddyhttp.HandlerError
	switch {
	case errors.As(err, &handlerError) && handlerError.StatusCode != 0:
		return handlerError.StatusCode
	case err != nil && !errors.Is(err, ErrAborted):
		return http.StatusInternalServerError
	default:
		return http.StatusBadGateway
	}
}
