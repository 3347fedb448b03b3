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
