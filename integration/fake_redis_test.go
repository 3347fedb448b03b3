package integration

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

// startFakeRedis listens where a Redis is expected, and answers each script and
// each SET with the given bytes and all else as Redis would. With no manners it gives those
// bytes to whatever comes.
func startFakeRedis(t *testing.T, answer string, manners bool) (addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the test is over
			}
			t.Cleanup(func() { _ = conn.Close() })
			go answerAsRedis(conn, answer, manners)
		}
	}()
	return listener.Addr().String()
}

// answerAsRedis never closes a connection: who waits for more waits long.
func answerAsRedis(conn net.Conn, answer string, manners bool) {
	in := bufio.NewReader(conn)
	for {
		command, err := readCommand(in)
		if err != nil {
			return
		}
		said := answer
		// A SET that finds nothing has claimed the key: only a script can say so in vain.
		asked := strings.HasPrefix(command, "eval") || command == "set" && answer != "$-1\r\n"
		if manners && !asked {
			said = "+OK\r\n"
			switch command {
			case "hello":
				said = "-ERR unknown command 'HELLO'\r\n"
			case "time":
				said = fmt.Sprintf("*2\r\n$10\r\n%d\r\n$1\r\n0\r\n", time.Now().Unix())
			case "wait":
				said = ":0\r\n"
			case "info":
				said = "$0\r\n\r\n"
			}
		}
		if _, err := io.WriteString(conn, said); err != nil {
			return
		}
	}
}

// readCommand reads an array of bulk strings and returns the first, in lower case.
func readCommand(in *bufio.Reader) (string, error) {
	count, err := readNumber(in, '*')
	if err != nil {
		return "", err
	}
	first := ""
	for i := range count {
		length, err := readNumber(in, '$')
		if err != nil {
			return "", err
		}
		text := make([]byte, length+2)
		if _, err := io.ReadFull(in, text); err != nil {
			return "", err
		}
		if i == 0 {
			first = strings.ToLower(string(text[:length]))
		}
	}
	return first, nil
}

func readNumber(in *bufio.Reader, kind byte) (int, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return 0, err
	}
	if line[0] != kind {
		return 0, fmt.Errorf("%q does not begin with %c", line, kind)
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}

// Whatever answers in the place of Redis: nothing runs, nothing is taken
// for a duplicate, and nobody waits for the store's time limit, which is set
// here beyond the patience of the client.
func TestAnswersOfNoStore(t *testing.T) {
	t.Parallel()
	const unavailable, unreadable = "store_unavailable", "record_unreadable"
	for name, c := range map[string]struct {
		answer  string
		manners bool
		codes   []string
	}{
		"another protocol":         {"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", false, []string{unavailable}},
		"noise":                    {"\x00\xff\xfe\x16\x03\x01\r\n\r\n", false, []string{unavailable}},
		"an error":                 {"-ERR broken\r\n", true, []string{unavailable}},
		"an OK":                    {"+OK\r\n", true, []string{unreadable}},
		"a number":                 {":1\r\n", true, []string{unreadable}},
		"nothing":                  {"$-1\r\n", true, []string{unreadable, unavailable}},
		"an empty list":            {"*0\r\n", true, []string{unreadable}},
		"a word":                   {"*1\r\n$5\r\nfound\r\n", true, []string{unreadable}},
		"found, and no record":     {"*2\r\n$5\r\nfound\r\n:1\r\n", true, []string{unreadable}},
		"found, and a strange one": {"*8\r\n$5\r\nfound\r\n:1\r\n$1\r\nr\r\n$1\r\nt\r\n$1\r\n0\r\n$1\r\n1\r\n$1\r\n9\r\n$1\r\nb\r\n", true, []string{unreadable}},
		"claimed, without a lease": {"*2\r\n$7\r\nclaimed\r\n:1\r\n", true, []string{unreadable}},
		"another word":             {"*2\r\n$8\r\nreplayed\r\n:1\r\n", true, []string{unreadable}},
		"a number without an end":  {"*2\r\n$7\r\nclaimed\r\n:x\r\n", true, []string{unavailable}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := startUpstream(t, answersStatus(202))
			store := "store redis {\ntimeout 5m\naddress " + startFakeRedis(t, c.answer, c.manners) + "\n}"
			p := start(t, conf{store: store, site: lines(dedupBlock("mode webhook", "key header Idempotency-Key", "lease 15m"), proxyTo(up))})
			for range 2 {
				got := p.post(t, "/", "1", "{}")
				var code string
				for _, code = range c.codes {
					if strings.Contains(got.Body, code) {
						break
					}
				}
				wantProblem(t, got, 503, code)
				wantRetryAfter(t, got)
			}
			if n := len(up.all()); n != 0 {
				t.Errorf("%d requests ran", n)
			}
		})
	}
}
