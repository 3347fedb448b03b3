package stats

import (
	"math"
	"testing"
	"time"
)

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   Spread
	}{
		{nil, Spread{}},
		{[]float64{math.NaN(), math.Inf(1)}, Spread{}},
		{[]float64{3}, Spread{3, 3, 3, 1}},
		{[]float64{3, 1, 2}, Spread{2, 1, 3, 3}},
		{[]float64{4, 1, 3, 2}, Spread{2.5, 1, 4, 4}},
		{[]float64{4, math.NaN(), 2}, Spread{3, 2, 4, 2}},
	} {
		if got := Of(c.values...); got != c.want {
			t.Errorf("Of(%v) = %+v, want %+v", c.values, got, c.want)
		}
	}
}

func TestSpreadLeavesTheValuesAsTheyWere(t *testing.T) {
	values := []float64{3, 1, 2}
	Of(values...)
	if values[0] != 3 || values[1] != 1 {
		t.Errorf("the values are now %v", values)
	}
}

func TestQuantile(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(100 - i) // from 100 down to 1
	}
	for _, c := range []struct {
		of   []time.Duration
		q    float64
		want time.Duration
	}{
		{nil, 0.5, 0},
		{[]time.Duration{7}, 0, 7},
		{[]time.Duration{7}, 1, 7},
		{[]time.Duration{9, 1}, 0.5, 1},
		{[]time.Duration{9, 1}, 0.51, 9},
		{hundred, 0.5, 50},
		{hundred, 0.99, 99},
		{hundred, 0.991, 100},
		{hundred, 1, 100},
	} {
		if got := Quantile(c.of, c.q); got != c.want {
			t.Errorf("the quantile %v of %d values is %v, want %v", c.q, len(c.of), got, c.want)
		}
	}
}
