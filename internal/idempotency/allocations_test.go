//go:build !race

// The race detector empties pools at random.

package idempotency

import "testing"

func TestAllocations(t *testing.T) {
	record, response := typicalRecord(), typicalResponse()
	storedRecord := AppendRecord(nil, thisKey, record)
	storedResponse := AppendResponse(nil, thisKey, thisToken, response)
	room := make([]byte, 0, 4<<10)
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for what, c := range map[string]struct {
		max float64
		do  func()
	}{
		"a record into room that is there":   {0, func() { AppendRecord(room, thisKey, record) }},
		"a record into new room":             {1, func() { AppendRecord(nil, thisKey, record) }},
		"a response into room that is there": {1, func() { AppendResponse(room, thisKey, thisToken, response) }},
		"a response into new room":           {2, func() { AppendResponse(nil, thisKey, thisToken, response) }},
		"a record, read":                     {8, func() { must(errorOf(DecodeRecord(thisKey, storedRecord))) }},
		"a response, read":                   {18, func() { must(errorOf(DecodeResponse(thisKey, thisToken, storedResponse))) }},
	} {
		if got := testing.AllocsPerRun(100, c.do); got > c.max {
			t.Errorf("%s: %v allocations, want at most %v", what, got, c.max)
		}
	}
}
