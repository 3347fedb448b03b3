package redis

import (
	"context"
	"fmt"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/zap"
)

// clientLog takes what go-redis reports beside the errors that operations return,
// such as failed dials in the background.
type clientLog struct{ log *zap.Logger }

// logTo has go-redis report to a store's logger. go-redis has one logger for the
// whole process; it is replaced atomically, while other clients use it. The store
// that was opened last has it: after a reload, the loggers of earlier ones may
// write nowhere.
func logTo(log *zap.Logger) { goredis.SetLogger(clientLog{log.Named("client")}) }

// Printf implements the interface of go-redis's loggers.
func (l clientLog) Printf(_ context.Context, format string, values ...any) {
	l.log.Debug(fmt.Sprintf(format, values...))
}
