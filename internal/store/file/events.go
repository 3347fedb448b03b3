package file

import (
	"fmt"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"
)

// says is pebble's logger. What pebble says while all is well is of no use to anybody.
type says struct {
	path   string
	disk   *disk
	logger *zap.Logger
}

// Infof implements [pebble.Logger].
func (*says) Infof(string, ...any) {}

// Errorf implements [pebble.Logger].
func (s *says) Errorf(format string, args ...any) {
	s.logger.Warn("the store's database reports an error", zap.String("path", s.path), zap.String("says", fmt.Sprintf(format, args...)))
}

// Fatalf implements [pebble.Logger]. pebble expects that it ends the process, and goes on
// as if nothing had happened if it returns. So it does not return: the database is given
// up, and whoever came here waits for ever.
func (s *says) Fatalf(format string, args ...any) {
	s.disk.fail(fmt.Errorf(format, args...))
	select {}
}

// sayEvery is how often a failure in the background is logged. pebble tries again at
// once, and meets the same failure.
const sayEvery = 10 * time.Second

// reason is an error as a field of a log line. As [zap.Error] writes those of pebble, the
// line would have a stack of calls, too.
func reason(err error) zap.Field { return zap.String("error", err.Error()) }

// events returns what is told of pebble's work in the background.
func events(path string, logger *zap.Logger) *pebble.EventListener {
	var mu sync.Mutex
	var said time.Time
	say := func(message string, err error) {
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); now.Sub(said) >= sayEvery {
			said = now
			logger.Error(message, zap.String("path", path), reason(err))
		}
	}
	return &pebble.EventListener{
		BackgroundError: func(err error) { say("work in the background of the store failed", err) },
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			say("the store is damaged", fmt.Errorf("file %s: %w", info.Path, info.Details))
		},
	}
}
