// Package stats sums up what was measured: a figure over several rounds, and the
// latencies of many answers.
package stats

import (
	"math"
	"slices"
	"time"
)

// Spread is one figure over all rounds.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	// Rounds is how many rounds have the figure.
	Rounds int `json:"rounds"`
}

// Of returns the spread of the values. Values that are not numbers, as a ratio to
// nothing is none, are left out.
func Of(values ...float64) Spread {
	known := slices.DeleteFunc(slices.Clone(values), func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
	if len(known) == 0 {
		return Spread{}
	}
	slices.Sort(known)
	middle := len(known) / 2
	median := known[middle]
	if len(known)%2 == 0 {
		median = (known[middle-1] + known[middle]) / 2
	}
	return Spread{Median: median, Min: known[0], Max: known[len(known)-1], Rounds: len(known)}
}

// Quantile returns the least of the latencies that a share q of them does not exceed
// (the nearest rank), 0 if there are none. It sorts what it is given.
func Quantile(latencies []time.Duration, q float64) time.Duration {
	if len(latencies) == 0 {
		return 0
	}
	slices.Sort(latencies)
	rank := int(math.Ceil(q * float64(len(latencies))))
	return latencies[min(max(rank, 1), len(latencies))-1]
}
