package servers

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestMetricIn(t *testing.T) {
	const text = "# HELP a_total of all\n# TYPE a_total counter\na_total_more 1\na_total{x=\"y\"} 2\na_total 1.5e+03\n"
	if got, err := metricIn(strings.NewReader(text), "a_total"); err != nil || got != 1500 {
		t.Errorf("a_total is %v, %v", got, err)
	}
	if got, err := metricIn(strings.NewReader(text), "b_total"); err == nil || !strings.Contains(err.Error(), "b_total") {
		t.Errorf("a metric that is not there is %v, %v", got, err)
	}
}

func TestWorkIn(t *testing.T) {
	const info = "# Stats\r\ntotal_connections_received:9\r\ntotal_commands_processed:70\r\ntotal_net_input_bytes:500\r\ntotal_net_output_bytes:60\r\ntotal_reads_processed:8\r\n"
	got, err := workIn(info)
	if want := (RedisWork{Commands: 70, Reads: 8, In: 500, Out: 60}); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if got := got.Minus(RedisWork{Commands: 10, Reads: 3, In: 200, Out: 20}); got != (RedisWork{60, 5, 300, 40}) {
		t.Errorf("the difference is %+v", got)
	}
	if _, err := workIn("# Stats\r\ntotal_commands_processed:70\r\n"); err == nil {
		t.Error("half of the figures are enough")
	}
}

func TestTheUpstreamAnswersAndCounts(t *testing.T) {
	s := httptest.NewServer(UpstreamHandler())
	defer s.Close()
	for _, size := range []int64{Small, Large} {
		r, err := http.NewRequest(http.MethodPost, s.URL+Path(size), strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(RetentionField, "77")
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusCreated || answer.ContentLength != size || answer.Header.Get("Dedup-Retention") != "77" {
			t.Errorf("a response of %d bytes: %s, %d bytes, %v", size, answer.Status, answer.ContentLength, answer.Header)
		}
	}
	u := &Upstream{Addr: strings.TrimPrefix(s.URL, "http://")}
	if n, err := u.Runs(); err != nil || n != 2 {
		t.Errorf("%d runs, %v", n, err)
	}
}

func TestPlainCaddyKnowsNothingOfTheHandler(t *testing.T) {
	plain := Site{}.Caddyfile("127.0.0.1:1", "127.0.0.1:2", "/a")
	if strings.Contains(plain, "dedup") || !strings.Contains(plain, "reverse_proxy 127.0.0.1:2") {
		t.Errorf("the plain site is\n%s", plain)
	}
	with := Dedup("memory", "local_copies off").Caddyfile("127.0.0.1:1", "127.0.0.1:2", "/a")
	for _, line := range []string{"\nstore memory\n", "\nlocal_copies off\n", "\nmax_response_body 2MiB\n"} {
		if !strings.Contains(with, line) {
			t.Errorf("there is no line %q in\n%s", line, with)
		}
	}
}
