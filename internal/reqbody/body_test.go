package reqbody

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

const limit = 20 << 10 // of the bodies of these tests, in bytes

// newBody returns the body of a request, with a declared length or -1, and the request.
func newBody(text io.Reader, declared int64, room *budget.Allowance) (*Body, *http.Request) {
	r := httptest.NewRequest(http.MethodPost, "/", io.NopCloser(text))
	r.ContentLength = declared
	b := new(Body)
	b.Init(httptest.NewRecorder(), r, limit, room)
	return b, r
}

func isWhole(err error) bool    { return err == nil }
func isTooLarge(err error) bool { return errors.Is(err, delivery.ErrBodyTooLarge) && !Failed(err) }

func isSpent(err error) bool {
	_, spent := errors.AsType[budget.SpentError](err)
	return spent && Failed(err)
}

func isCut(err error) bool {
	_, unread := errors.AsType[*Error](err)
	return unread && Failed(err) && errors.Is(err, io.ErrUnexpectedEOF)
}

// The errors of bodies, and what the handlers behind get of one that passes all the same.
func TestBodiesAndTheirErrors(t *testing.T) {
	const streamed = -1
	full := strings.Repeat("0123456789abcdef", limit/16)
	small := full[:budget.SmallBody]
	for name, c := range map[string]struct {
		text     string
		declared int64
		breaks   bool // behind the text
		spent    bool // others have all of the budget
		is       func(error) bool
		held     int // bytes
	}{
		"whole":               {text: full, declared: limit, is: isWhole, held: limit},
		"whole, streamed":     {text: full, declared: streamed, is: isWhole, held: limit},
		"empty":               {declared: streamed, is: isWhole},
		"too large, declared": {text: full + "!", declared: limit + 1, is: isTooLarge}, // it is not read
		"too large, streamed": {text: full + "!", declared: streamed, is: isTooLarge, held: limit + 1},
		"cut behind too much": {text: full + "!", declared: streamed, breaks: true, is: isTooLarge, held: limit + 1},

		"cut":                {text: "half", declared: 8, breaks: true, is: isCut, held: 4},
		"cut, streamed":      {text: full[1:], declared: streamed, breaks: true, is: isCut, held: limit - 1},
		"ended early":        {text: full[1:], declared: limit, is: isCut, held: limit - 1},
		"ended early, small": {text: "half", declared: 8, is: isCut, held: 4},

		"spent budget":           {text: full, declared: limit, spent: true, is: isSpent, held: 2 * budget.SmallBody},
		"spent budget, streamed": {text: full, declared: streamed, spent: true, is: isSpent, held: 2 * budget.SmallBody},
		"small":                  {text: small, declared: budget.SmallBody, spent: true, is: isWhole, held: budget.SmallBody},
		"small, streamed":        {text: small, declared: streamed, spent: true, is: isWhole, held: budget.SmallBody},
	} {
		room := budget.New(1 << 20)
		if c.spent {
			(&budget.Allowance{Budget: room}).Count(1 << 20)
		}
		var text io.Reader = strings.NewReader(c.text)
		if c.breaks {
			text = io.MultiReader(text, iotest.ErrReader(io.ErrUnexpectedEOF))
		}
		allowance := &budget.Allowance{Budget: room}
		b, r := newBody(text, c.declared, allowance)
		for range 2 { // it is read once
			if err := b.ReadAll(); !c.is(err) || b.Complete() != (err == nil) {
				t.Errorf("%s: %v, complete: %v", name, err, b.Complete())
			}
		}
		if b.Len() != c.held || allowance.Taken() < int64(c.held) {
			t.Errorf("%s: %d bytes are held, and %d counted, want %d", name, b.Len(), allowance.Taken(), c.held)
		}
		if Failed(b.ReadAll()) || c.breaks {
			continue
		}
		if got, err := io.ReadAll(r.Body); string(got) != c.text || err != nil {
			t.Errorf("%s: the handlers behind get %d bytes, %v; want %d", name, len(got), err, len(c.text))
		}
		if taken := allowance.Taken(); taken != 0 {
			t.Errorf("%s: %d bytes are counted when the handlers behind have them", name, taken)
		}
	}
}

// A body whose declared length is too large is read only for what can do with its beginning: until then, a
// client that asks first sends none of it.
func TestBodyDeclaredTooLargeIsNotRead(t *testing.T) {
	b, r := newBody(strings.NewReader(strings.Repeat("x", 2*limit)), 2*limit, &budget.Allowance{Budget: budget.New(1 << 20)})
	r.Header.Set("Expect", "100-continue")
	if err := b.ReadAll(); !isTooLarge(err) || b.WasRead() || r.Header.Get("Expect") == "" {
		t.Errorf("%v, read: %v, with %v", err, b.WasRead(), r.Header)
	}
	if err := b.ReadToLimit(); !isTooLarge(err) || b.Len() != limit+1 || r.Header.Get("Expect") != "" {
		t.Errorf("%v, %d bytes are read, with %v", err, b.Len(), r.Header)
	}
}

// What a body is parsed into takes room too, which a small one always gets.
func TestRoomForWhatABodyIsParsedInto(t *testing.T) {
	for name, c := range map[string]struct {
		body, others, bytes int
		is                  func(error) bool
		excess              string
	}{
		"room":                  {limit, 0, limit, isWhole, "max_request_body"},
		"spent budget":          {limit, 1 << 20, limit, isSpent, "max_request_body"},
		"more than there is":    {limit, 0, 1 << 20, isTooLarge, "nine tenths"},
		"small in a spent one":  {budget.SmallBody, 1 << 20, limit, isWhole, "max_request_body"},
		"nothing in a full one": {limit, 1 << 20, 0, isWhole, "max_request_body"},
	} {
		allowance := &budget.Allowance{Budget: budget.New(1 << 20)}
		b, _ := newBody(strings.NewReader(strings.Repeat("x", c.body)), int64(c.body), allowance)
		if err := b.ReadAll(); err != nil {
			t.Fatal(err)
		}
		(&budget.Allowance{Budget: allowance.Budget}).Count(c.others)
		if err := b.Reserve(c.bytes); !c.is(err) || !strings.Contains(b.Excess(), c.excess) {
			t.Errorf("%s: %v; %s", name, err, b.Excess())
		}
		if b.EndParsing(); allowance.Taken() != int64(c.body) {
			t.Errorf("%s: %d bytes are counted when it is parsed, want %d", name, allowance.Taken(), c.body)
		}
	}
}

// A body for which there is no room reaches the handlers behind whole.
func TestBodyWithoutRoomStaysWhole(t *testing.T) {
	text := strings.Repeat("0123456789abcdef", limit/16)
	for name, room := range map[string]*budget.Budget{"too large": budget.New(limit), "spent": spent()} {
		b, r := newBody(strings.NewReader(text), -1, &budget.Allowance{Budget: room})
		if err := b.ReadAll(); err == nil {
			t.Errorf("%s: there is room", name)
		}
		if got, err := io.ReadAll(r.Body); err != nil || string(got) != text {
			t.Errorf("%s: %d of %d bytes reach the handlers behind, %v", name, len(got), len(text), err)
		}
	}
}

// Once a reader has begun to read a body, or has closed it, a second reader gets an error. The rest of the body, or an
// empty one, would look whole.
func TestBodyIsReadByOne(t *testing.T) {
	for name, begin := range map[string]func(io.ReadCloser) error{
		"read": func(body io.ReadCloser) error {
			_, err := io.ReadFull(body, make([]byte, 1))
			return err
		},
		"closed": io.ReadCloser.Close,
	} {
		b, r := newBody(strings.NewReader("amount=5"), 8, &budget.Allowance{Budget: budget.New(1 << 20)})
		if err := errors.Join(b.ReadAll(), begin(r.Body)); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(ForLater(r.Body)); !errors.Is(err, http.ErrBodyReadAfterClose) {
			t.Errorf("%s: another gets %q, %v", name, got, err)
		}
	}
}

func spent() *budget.Budget {
	b := budget.New(1 << 20)
	(&budget.Allowance{Budget: b}).Count(1 << 20)
	return b
}
