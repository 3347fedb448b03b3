package exchange

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// Where nothing is recorded, nothing is made for it.
func TestTracesAllocateNothingWithoutASpan(t *testing.T) {
	x := &exchange{r: httptest.NewRequest(http.MethodPost, "/", nil), info: new(requestInfo)}
	if n := testing.AllocsPerRun(100, func() {
		x.trace()
		x.traceEvent(spanReplay)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
