package file

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// The memory of pebble, and how it merges tables. Keys are random, so that a merge into a level
// meets all of the level: each merge should therefore move much. docs/operations.md has the bounds.
const (
	cacheBytes          = 16 << 20 // with the memtables in it
	memTableBytes       = 4 << 20
	maxMemTables        = 3
	maxOpenTables       = 256
	mergeThreshold      = 24
	stopWritesThreshold = 48
	firstLevelBytes     = 64 << 20

	// formatVersion is fixed: a newer one makes files that an older caddy-dedup cannot read. This one
	// has the checksums by which damage inside a log is told from its end. It keeps no values in
	// files of their own; with 1,000,000 keys that made no difference.
	formatVersion = pebble.FormatTableFormatV6
)

const (
	maxQueued = 1024
	maxReads  = 256
)

// database is a pebble database that is open, or was.
type database struct {
	db   *pebble.DB
	disk *disk
	// users counts the operations and the reads under way.
	users sync.WaitGroup
	reads chan struct{} // has room for maxReads

	queue, applied chan *write
	stopped        chan struct{} // closed when writer and confirmer have returned
	late           atomic.Int32  // writes that have kept their callers waiting for too long

	opened  chan struct{} // closed when db and openErr are set
	openErr error
	closing func() <-chan error // begins to close the database, once
}

// openDatabase opens the database in a directory, or creates it if the directory is a new one.
// After an error, the database that it returns has failed with it.
func openDatabase(fs vfs.FS, path string, create bool, logger *zap.Logger) (*database, error) {
	d := &database{
		disk: newDisk(fs), reads: make(chan struct{}, maxReads),
		queue: make(chan *write, maxQueued), applied: make(chan *write, maxQueued), stopped: make(chan struct{}),
		opened: make(chan struct{}),
	}
	d.closing = sync.OnceValue(d.closeInBackground)
	logger = sampled(logger.With(zap.String("path", path)), time.Second) // pebble repeats at once what fails in the background
	options := &pebble.Options{
		FS:                          d.disk,
		ErrorIfNotExists:            !create,
		FormatMajorVersion:          formatVersion,
		MemTableSize:                memTableBytes,
		MemTableStopWritesThreshold: maxMemTables,
		CacheSize:                   cacheBytes,
		MaxOpenFiles:                maxOpenTables,
		L0CompactionThreshold:       mergeThreshold,
		L0StopWritesThreshold:       stopWritesThreshold,
		LBaseMaxBytes:               firstLevelBytes,
		CompactionConcurrencyRange:  func() (int, int) { return 1, 2 },
		Logger:                      &pebbleLogger{d.disk, logger},
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) {
				logger.Error("the store failed to flush or merge in the background", plainError(err))
			},
			// Without this, one damaged block is a Fatalf.
			DataCorruption: func(info pebble.DataCorruptionInfo) {
				logger.Error("the store is damaged", zap.String("file", info.Path), plainError(info.Details))
			},
		},
	}
	for i := range options.Levels {
		options.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	go d.applyWrites()
	go d.confirmWrites()
	go func() {
		defer close(d.opened)
		defer recoverPanic(func(err error) { d.openErr = err })
		if d.openErr = roomToOpen(fs, path); d.openErr == nil {
			d.db, d.openErr = pebble.Open(path, options)
		}
	}()
	select {
	case <-d.opened:
		if d.openErr != nil {
			d.disk.fail(explainOpen(d.openErr, d.disk.lastOpened()))
		}
	case <-d.disk.failed:
	}
	if d.disk.hasFailed() {
		_ = d.close()
		return d, d.disk.failure
	}
	d.disk.setOpen()
	return d, nil
}

// roomOn returns how many bytes are free on the disk of a directory, how many of these bodies and new
// keys leave free because the database needs them, and how many the disk has. Where the system does
// not know, there is room for everything.
func roomOn(fs vfs.FS, path string) (free, spare, size uint64) {
	usage, err := fs.GetDiskUsage(path)
	if err != nil || usage.TotalBytes == 0 {
		return math.MaxUint64, maxSpare, math.MaxUint64
	}
	return usage.AvailBytes, min(maxSpare, usage.TotalBytes/4), usage.TotalBytes
}

// roomToOpen returns an error if the disk has less room than it may take to open a database: pebble
// writes what is in the logs to tables before it removes a log.
func roomToOpen(fs vfs.FS, path string) error {
	names, err := fs.List(path)
	if err != nil {
		return err
	}
	need := uint64(memTableBytes) // for the next log
	for _, name := range names {
		if info, err := fs.Stat(fs.PathJoin(path, name)); err == nil && strings.HasSuffix(name, ".log") {
			need += uint64(info.Size())
		}
	}
	free, spare, _ := roomOn(fs, path)
	need = min(need, spare/2) // other logs are kept to be used again
	if free < need {
		return fmt.Errorf("%d MiB are free, and to open the store may take %d: %w", free>>20, need>>20, syscall.ENOSPC)
	}
	return nil
}

// explainOpen adds to an error of [pebble.Open] that the store is damaged, and by which file, unless it
// is an error of the system. Not all of pebble's errors name the file.
func explainOpen(err error, lastOpened string) error {
	_, system := errors.AsType[syscall.Errno](err)
	switch {
	case system && !errors.Is(err, os.ErrNotExist):
		return err
	case errors.Is(err, pebble.ErrDBDoesNotExist):
		err = fmt.Errorf("no file marker.manifest.*: %w", err)
	case errors.Is(err, pebble.ErrDBNotPristine):
		err = fmt.Errorf("no file marker.format-version.*: %w", err)
	default:
		err = fmt.Errorf("%w (the file opened last is %s)", err, lastOpened)
	}
	return fmt.Errorf("it is damaged; restore it from a backup, or move it to begin with an empty one: %w", err)
}

// sampled returns a logger that logs each message once in an interval.
func sampled(logger *zap.Logger, interval time.Duration) *zap.Logger {
	return logger.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(core, interval, 1, 0)
	}))
}

// pebbleLogger logs what pebble reports.
type pebbleLogger struct {
	disk   *disk
	logger *zap.Logger
}

// Infof implements [pebble.Logger].
func (*pebbleLogger) Infof(string, ...any) {}

// Errorf implements [pebble.Logger].
func (l *pebbleLogger) Errorf(format string, args ...any) {
	l.logger.Warn("pebble reports an error", zap.String("error", fmt.Sprintf(format, args...)))
}

// Fatalf implements [pebble.Logger]. It must not return: pebble would go on with what is broken. No
// failed write comes here (disk.go).
func (l *pebbleLogger) Fatalf(format string, args ...any) {
	l.disk.fail(fmt.Errorf(format, args...))
	select {}
}

// plainError is an error as a log field without the stack that errors of pebble print.
func plainError(err error) zap.Field { return zap.String("error", err.Error()) }

var errPanic = errors.New("pebble panicked")

// recoverPanic reports a panic of pebble as an error, in a deferred call. Reads hold none of
// pebble's locks, so that the database remains usable.
func recoverPanic(report func(error)) {
	if reason := recover(); reason != nil {
		report(fmt.Errorf("%w: %v", errPanic, reason))
	}
}

// isDamage reports whether an error of pebble means that a file is damaged.
func isDamage(err error) bool { return errors.Is(err, errPanic) || pebble.IsCorruptionError(err) }

// status returns why nothing can be written at the moment, nil if writes are possible.
func (d *database) status() error {
	if err := d.disk.status(); err != nil {
		return err
	}
	if d.late.Load() > 0 {
		return errHangs
	}
	return nil
}

// get returns a copy of what is stored under a name, nil if there is nothing.
func (d *database) get(name []byte) (stored []byte, err error) {
	defer recoverPanic(func(panicked error) { err = panicked })
	found, closer, err := d.db.Get(name)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return append(make([]byte, 0, len(found)), found...), closer.Close()
}

// readWithDeadline calls read in a goroutine and returns its result, or an error as soon as the
// context ends or the database fails: pebble's reads take no context, and a disk may hang.
func readWithDeadline[T any](ctx context.Context, d *database, read func() (T, error)) (result T, err error) {
	select {
	case d.reads <- struct{}{}:
	case <-ctx.Done():
		return result, ctx.Err()
	}
	type results struct {
		of  T
		err error
	}
	done := make(chan results, 1)
	d.users.Go(func() {
		var r results
		r.of, r.err = read()
		<-d.reads
		done <- r
	})
	select {
	case r := <-done:
		if d.disk.hasFailed() { // what was read may be undone
			return result, d.disk.failure
		}
		return r.of, r.err
	case <-ctx.Done():
		return result, ctx.Err()
	case <-d.disk.failed:
		return result, d.disk.failure
	}
}

// close closes the database as soon as the operations and writes under way have ended. If its disk
// has failed, or fails meanwhile, close waits only until nothing is being written any more, and the
// rest goes on in the background. No operation may begin after the call.
func (d *database) close() error {
	select {
	case err := <-d.closing():
		if !d.disk.hasFailed() {
			return err
		}
	case <-d.disk.failed:
	}
	d.disk.fence()
	return fmt.Errorf("not closed cleanly; everything acknowledged is on the disk: %w", d.disk.failure)
}

func (d *database) closeInBackground() <-chan error {
	closed := make(chan error, 1)
	go func() {
		defer recoverPanic(func(err error) { closed <- err })
		<-d.opened
		d.users.Wait()
		close(d.queue)
		<-d.stopped
		if d.db != nil {
			closed <- d.db.Close()
		}
	}()
	return closed
}
