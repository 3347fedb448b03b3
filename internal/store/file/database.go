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

// The memory of pebble, and how it merges tables. Keys are random, so a merge into a level rewrites
// all of that level, and few large merges are cheaper than many small ones. docs/file-store.md
// documents the bounds.
const (
	cacheBytes      = 16 << 20 // with the memtables in it
	memTableBytes   = 4 << 20
	maxMemTables    = 3
	maxOpenTables   = 256
	mergeThreshold  = 24
	firstLevelBytes = 64 << 20

	// stopWritesThreshold is never reached. pebble would stop all writes until a merge succeeds, but
	// with a damaged table none may. A new key does not read these tables.
	stopWritesThreshold = math.MaxInt32

	// formatVersion is fixed: an older caddy-dedup could not read the files of a newer format. This
	// one has checksums that tell damage inside a log from its end. It has no separate files for
	// values; with 1,000,000 keys they made no difference.
	formatVersion = pebble.FormatTableFormatV6
)

const (
	maxQueued = 1024
	maxReads  = 256
)

// database is a pebble database: open, failed or closed.
type database struct {
	db   *pebble.DB
	disk *disk
	// users counts the operations and the reads under way.
	users sync.WaitGroup
	reads chan struct{} // has room for maxReads

	queue, applied chan *write
	stopped        chan struct{} // closed when writer and confirmer have returned
	hanging        atomic.Int32  // writes whose callers gave up after hangTimeout

	opened     chan struct{} // closed when db and openErr are set
	openErr    error
	startClose func() <-chan error // starts to close the database; later calls return the same channel
}

// openDatabase opens the database in a directory or, with create, creates it. If it returns an error,
// it also returns a database, which has failed with that error.
func openDatabase(fs vfs.FS, path string, create bool, found *damages, logger *zap.Logger) (*database, error) {
	d := &database{
		disk: newDisk(fs), reads: make(chan struct{}, maxReads),
		queue: make(chan *write, maxQueued), applied: make(chan *write, maxQueued), stopped: make(chan struct{}),
		opened: make(chan struct{}),
	}
	d.startClose = sync.OnceValue(d.closeInBackground)
	logger = sampled(logger.With(zap.String("path", path)), time.Second) // pebble repeats at once what fails in the background
	scheduler := newMergeScheduler()
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
			CompactionEnd: func(merge pebble.CompactionInfo) {
				scheduler.pauseAfter(merge)
				found.mergeEnded(merge.Err)
			},
			// Without this, one damaged block is a Fatalf.
			DataCorruption: func(info pebble.DataCorruptionInfo) {
				found.add(info.Path+" is damaged: "+info.Details.Error(), false)
				logger.Error("the store is damaged", zap.String("file", info.Path), plainError(info.Details))
			},
		},
	}
	options.Experimental.CompactionScheduler = scheduler
	for i := range options.Levels {
		options.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	go d.applyWrites()
	go d.confirmWrites()
	go func() {
		defer close(d.opened)
		defer recoverPanic(func(err error) { d.openErr = err })
		if d.openErr = checkSpaceToOpen(fs, path); d.openErr == nil {
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

// diskSpace returns how many bytes are free on the disk of a directory, how many of these are reserved
// for the database, so that bodies and new keys must leave them free, and how many bytes the disk has.
// If the system does not know, the disk counts as unlimited.
func diskSpace(fs vfs.FS, path string) (free, reserved, size uint64) {
	usage, err := fs.GetDiskUsage(path)
	if err != nil || usage.TotalBytes == 0 {
		return math.MaxUint64, maxReservedSpace, math.MaxUint64
	}
	return usage.AvailBytes, min(maxReservedSpace, usage.TotalBytes/4), usage.TotalBytes
}

// checkSpaceToOpen returns an error if the disk has less space than opening the database may take:
// pebble writes the content of the logs to tables before it removes a log.
func checkSpaceToOpen(fs vfs.FS, path string) error {
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
	free, reserved, _ := diskSpace(fs, path)
	need = min(need, reserved/2) // pebble keeps obsolete logs for reuse, and they count above
	if free < need {
		return fmt.Errorf("%d MiB are free, and to open the store may take %d: %w", free>>20, need>>20, syscall.ENOSPC)
	}
	return nil
}

// explainOpen adds to an error of [pebble.Open] that the store is damaged, and the file that pebble
// read last, because not all of its errors name a file. An error of the system is returned as it is.
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
	return fmt.Errorf("it is damaged; restore it from a backup, or move it to start with an empty one: %w", err)
}

// sampled returns a logger that logs each message once in an interval.
func sampled(logger *zap.Logger, interval time.Duration) *zap.Logger {
	return logger.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return sampler{core, interval, new(sync.Map)}
	}))
}

// sampler uses the monotonic clock. zap's own compares the times of the lines, and would log nothing
// until a wall clock that was set back is where it was.
type sampler struct {
	zapcore.Core
	interval time.Duration
	logged   *sync.Map // when each message was logged last
}

// Check implements [zapcore.Core].
func (s sampler) Check(entry zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	now := time.Now()
	if last, ok := s.logged.Load(entry.Message); ok && now.Sub(last.(time.Time)) < s.interval {
		return to
	}
	s.logged.Store(entry.Message, now)
	return s.Core.Check(entry, to)
}

// With implements [zapcore.Core].
func (s sampler) With(fields []zapcore.Field) zapcore.Core {
	return sampler{s.Core.With(fields), s.interval, s.logged}
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

// Fatalf implements [pebble.Logger]. It must not return, because pebble would continue in a broken
// state. A failed write never calls it (disk.go).
func (l *pebbleLogger) Fatalf(format string, args ...any) {
	l.disk.fail(fmt.Errorf(format, args...))
	select {}
}

// plainError returns a log field for an error without the stack trace that pebble's errors print.
func plainError(err error) zap.Field { return zap.String("error", err.Error()) }

var errPanic = errors.New("pebble panicked")

// recoverPanic reports a panic of pebble as an error. It must be deferred. Reads hold none of pebble's
// locks, so the database remains usable.
func recoverPanic(report func(error)) {
	if reason := recover(); reason != nil {
		report(fmt.Errorf("%w: %v", errPanic, reason))
	}
}

// isDamage reports whether an error of pebble means that a file is damaged.
func isDamage(err error) bool { return errors.Is(err, errPanic) || pebble.IsCorruptionError(err) }

// status returns an error if nothing can be written at the moment.
func (d *database) status() error {
	if err := d.disk.status(); err != nil {
		return err
	}
	if d.hanging.Load() > 0 {
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
		if d.disk.hasFailed() { // what was read may not be on the disk
			return result, d.disk.failure
		}
		return r.of, r.err
	case <-ctx.Done():
		return result, ctx.Err()
	case <-d.disk.failed:
		return result, d.disk.failure
	}
}

// close closes the database when the operations and writes under way have ended. If its disk has
// failed, or fails meanwhile, close waits only until no write is under way, and the rest is closed in
// the background. No operation may start after the call.
func (d *database) close() error {
	select {
	case err := <-d.startClose():
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
