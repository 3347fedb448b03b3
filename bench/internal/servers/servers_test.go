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

func TestTheUpstreamAnswersAndCounts(t *testing.T) {
	s := httptest.NewServer(UpstreamHandler())
	defer s.Close()
	r, err := http.NewRequest(http.MethodPost, s.URL+Path, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(RetentionField, "77")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusCreated || answer.ContentLength != Size || answer.Header.Get("Dedup-Retention") != "77" {
		t.Errorf("%s, %d bytes, %v", answer.Status, answer.ContentLength, answer.Header)
	}
	u := &Upstream{Addr: strings.TrimPrefix(s.URL, "http://")}
	if n, err := u.Runs(); err != nil || n != 1 {
		t.Errorf("%d runs, %v", n, err)
	}
}

func TestPlainCaddyKnowsNothingOfTheHandler(t *testing.T) {
	plain := Site{}.Caddyfile("127.0.0.1:1", "127.0.0.1:2", "/a")
	if strings.Contains(plain, "dedup") || !strings.Contains(plain, "reverse_proxy 127.0.0.1:2") {
		t.Errorf("the plain site is\n%s", plain)
	}
	with := Dedup("memory", "local_copies off").Caddyfile("127.0.0.1:1", "127.0.0.1:2", "/a")
	for _, line := range []string{"\nstore memory\n", "\nlocal_copies off\n", "\ndedup {\n"} {
		if !strings.Contains(with, line) {
			t.Errorf("there is no line %q in\n%s", line, with)
		}
	}
}
