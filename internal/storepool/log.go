package storepool

import (
	"slices"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// movableLog returns a logger that logs to the current target: a store that stays open over a reload
// then logs to the log of the new configuration.
func movableLog(target func() *zap.Logger) *zap.Logger {
	return zap.New(movableCore{target: target}).Named(target().Name())
}

// movableCore is the core of a [movableLog], with the fields that were added.
type movableCore struct {
	target func() *zap.Logger
	fields []zapcore.Field
}

// Enabled implements [zapcore.LevelEnabler].
func (c movableCore) Enabled(level zapcore.Level) bool { return c.target().Core().Enabled(level) }

// With implements [zapcore.Core].
func (c movableCore) With(fields []zapcore.Field) zapcore.Core {
	return movableCore{c.target, append(slices.Clip(c.fields), fields...)}
}

// Check implements [zapcore.Core]. It adds the target's own core to the entry, so Write is not called.
func (c movableCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	return c.target().Core().With(c.fields).Check(entry, checked)
}

// Write implements [zapcore.Core].
func (c movableCore) Write(zapcore.Entry, []zapcore.Field) error { return nil }

// Sync implements [zapcore.Core].
func (c movableCore) Sync() error { return c.target().Sync() }
