//go:build !linux

package file

import (
	"testing"
	"time"
)

// What a benchmark has used is told on Linux only.
func cpuTime() time.Duration { return 0 }

func anonymousMB() float64 { return 0 }

// givesRoomBack says that the room of a body in the middle of a segment can be given back.
const givesRoomBack = false

// roomOfBodies returns how long the segments of a store are together.
func roomOfBodies(t *testing.T, s *Store) int64 {
	t.Helper()
	return sizeOf(s.current().bodies.root())
}
