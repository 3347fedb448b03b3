package toolcall

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/caddy-dedup/caddy-dedup/internal/identify"
)

// Refuse returns the body that answers the call in place of its upstream, and the status to send it with.
// That is 200, because at another one most clients do not read the body; of a call whose id is unknown, it
// is that of the refusal: at 200, null would be the response to no request, which some clients take for
// the end of their connection. The status is also the code of the error: codes of JSON-RPC and of the
// protocol are below zero.
func (c *ToolCall) Refuse(r identify.CallRefusal) (status int, body []byte) {
	type data struct {
		Code        string `json:"code"`
		Status      int    `json:"status"`
		RetryAfter  int    `json:"retry_after,omitempty"`
		ExecutionID string `json:"execution_id,omitempty"`
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // it is no HTML
	_ = encoder.Encode(struct {  // of numbers and texts
		Code    int    `json:"code"`
		Message string `json:"message"`
		Data    data   `json:"data"`
	}{r.Status, r.Message, data{r.Code, r.Status, r.RetryAfter, r.ExecutionID}})
	status, id := 200, c.ID
	if id == nil {
		status, id = r.Status, []byte("null")
	}
	// The id as it is written: an encoder might change it.
	return status, slices.Concat([]byte(`{"jsonrpc":"2.0","id":`), id, []byte(`,"error":`), bytes.TrimSpace(text.Bytes()), []byte("}"))
}
