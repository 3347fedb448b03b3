package storepool

import (
	"slices"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// movableLog is a logger whose target can change: a store that stays open over a reload then logs to the
// log of the new configuration.
type movableLog struct {
	logger *zap.Logger
	target atomic.Pointer[zapcore.Core]
}

func newMovableLog(target *zap.Logger) *movableLog {
	l := new(movableLog)
	l.moveTo(target)
	l.logger = zap.New(movableCore{log: l}).Named(target.Name())
	return l
}

func (l *movableLog) moveTo(target *zap.Logger) {
	core := target.Core()
	l.target.Store(&core)
}

func (l *movableLog) core() zapcore.Core { return *l.target.Load() }

// movableCore is the core of a [movableLog], with the fields that were added.
type movableCore struct {
	log    *movableLog
	fields []zapcore.Field
}

// Enabled implements [zapcore.LevelEnabler].
func (c movableCore) Enabled(level zapcore.Level) bool { return c.log.core().Enabled(level) }

// With implements [zapcore.Core].
func (c movableCore) With(fields []zapcore.Field) zapcore.Core {
	return movableCore{c.log, append(slices.Clip(c.fields), fields...)}
}

// Check implements [zapcore.Core]. It adds the target's own core to the entry.
func (c movableCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !c.Enabled(entry.Level) {
		return checked
	}
	return c.log.core().With(c.fields).Check(entry, checked)
}

// Write implements [zapcore.Core].
func (c movableCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	return c.log.core().With(c.fields).Write(entry, fields)
}

// Sync implements [zapcore.Core].
func (c movableCore) Sync() error { return c.log.core().Sync() }
