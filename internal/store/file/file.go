// Package file implements [idempotency.Store] in a directory on a local disk, for one process.
// Everything that it acknowledges is on the disk, except claims that need not survive the process.
//
// # Claims
//
// Only one process can have the directory open (directory.go). So a run in flight is a claim in
// memory (keys.go), and a crash releases its key. With Hold or MaxAttempts the attempt must survive a
// crash: such a claim, and each of its renewals, is stored before it is acknowledged. A stored record
// that is in flight without a claim in memory belongs to a dead process, and has lapsed.
//
// # Data
//
// All other data is in a pebble database (database.go). A key has one value: its record and the
// response of its run (value.go). An index has the time at which each value expires. It is exact, so
// the sweeper removes what is due without reading it (sweep.go). A body of more than 64 KiB is written
// once, to a file beside the database, and flushed before the value that refers to it (bodies.go).
// Most keys are new; a Bloom filter recognises them without a read (filter.go).
//
// # Operations
//
// An operation locks its key, reads, decides, and commits one batch (operations.go, lockedkey.go).
// It unlocks the key when the batch is flushed, because pebble's readers see a batch before that, and
// a crash could undo it.
//
// pebble's calls take no context, and a disk may hang. So two goroutines write for all operations,
// which share flushes (commit.go), and each read has its own goroutine (database.go). An operation
// whose context ends returns an error. If its batch may still be written, the key stays locked until
// the result is known.
//
// # Failures
//
// pebble never sees an error of a write (disk.go).
//
//   - Full disk: writes wait, the store refuses new keys, and responses are replayed. New keys and
//     bodies leave some space free, so that runs in flight can end, the sweeper can remove what has
//     expired, and the database can be opened again.
//   - Body larger than the maximum size of a file, or than the disk: it is refused as too large.
//   - Slow disk: it writes a few bodies at a time, each once (bodies.go).
//   - Hanging disk: the store refuses new keys after the first operation that timed out.
//   - Damaged or unreadable table: merges that need it fail and are repeated at intervals
//     (merges.go). Everything else goes on, and the store reports the damage (damages.go).
//   - Any other failure: the store abandons the database, and opens another one as soon as the disk
//     accepts writes (recovery.go). Claims in memory, and their runs, survive that.
//
// Close abandons a database that does not close in time.
//
// # Limits
//
// pebble verifies what it reads: a damaged value is an [idempotency.UnreadableError], and a damaged
// database an error of [Open]. The store does not detect files that someone has removed, truncated or
// replaced: a truncated log or MANIFEST looks like one that a crash has cut off, and its keys are
// forgotten. The disk must keep what it has flushed.
package file

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/wakeup"
)

// Store keeps records and responses in one directory. [Open] returns one.
type Store struct {
	path   string
	fs     vfs.FS
	dir    *directory
	logger *zap.Logger
	clock  func() time.Time // the wall clock
	opened time.Time        // claims of earlier processes have lapsed at this time

	keys    keyTable
	bodies  *bodies
	filter  keyFilter
	waiters wakeup.Subscribers

	readings readings // see removable
	damages  damages

	mu       sync.RWMutex
	database *database
	closed   bool

	stop       context.CancelFunc // stops the goroutines in background
	background sync.WaitGroup
	close      func() error
}

var (
	_ idempotency.Store    = (*Store)(nil)
	_ idempotency.Impaired = (*Store)(nil)
)

// Open opens the store in the directory with this path, and creates the directory if it is missing. It
// returns an error if another process has the store open, if the directory belongs to another program,
// or if the store is damaged. An existing store on a full disk is opened, and unavailable until there
// is space.
func Open(path string, logger *zap.Logger) (*Store, error) {
	return openIn(wallClock, vfs.Default, path, logger)
}

func openIn(clock func() time.Time, fs vfs.FS, path string, logger *zap.Logger) (*Store, error) {
	dir, err := lockDirectory(fs, path)
	if err != nil {
		return nil, fmt.Errorf("store directory %s: %w", path, err)
	}
	s := &Store{path: path, fs: fs, dir: dir, logger: logger, clock: clock, opened: clock(), bodies: newBodies(fs, path)}
	s.database, err = openDatabase(fs, path, dir.isNew, &s.damages, logger)
	if err == nil {
		if err = dir.setCreated(); err != nil {
			_ = s.database.close() // the error of setCreated is the cause
		}
	}
	fullDisk := isNoSpace(err) && !dir.isNew // reopenFailed opens the database when there is space
	if err != nil && !fullDisk {
		return nil, errors.Join(s.wrap(err), dir.lock.Close())
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.close = sync.OnceValue(s.closeOnce)
	s.background.Go(func() { s.reopenFailed(ctx) })
	s.background.Go(func() { s.sweep(ctx, sweepInterval, s.sweepRecords) })
	s.background.Go(func() { s.sweep(ctx, bodySweepInterval, s.sweepBodies) })
	return s, nil
}

// enter returns the database for an operation, which must call users.Done when it ends.
func (s *Store) enter(ctx context.Context) (*database, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return nil, idempotency.ErrClosed
	}
	db := s.database
	if db.disk.hasFailed() {
		return nil, s.wrap(db.disk.failure)
	}
	db.users.Add(1)
	return db, nil
}

// wrap adds the path of the store to an error, unless it is that of the caller's context.
func (s *Store) wrap(err error) error {
	if err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("store directory %s: %w", s.path, err)
}

// unreadable returns the error for a record or a response that cannot be decoded.
func (s *Store) unreadable(what string, key idempotency.Key, err error) error {
	return &idempotency.UnreadableError{Where: fmt.Sprintf("%s %s in the store directory %s", what, key, s.path), Err: err}
}

// readError returns the error of a read of the database.
func (s *Store) readError(what string, key idempotency.Key, err error) error {
	if isDamage(err) {
		return s.unreadable(what, key, err)
	}
	return s.wrap(err)
}

// Subscribe implements [idempotency.Store].
func (s *Store) Subscribe(wake func(idempotency.Key)) (stop func()) { return s.waiters.Subscribe(wake) }

// Ready implements [idempotency.Store]. It writes an entry to pebble's log that changes no data.
func (s *Store) Ready(ctx context.Context) error {
	db, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer db.users.Done()
	batch := db.db.NewBatch()
	if err := batch.LogData([]byte("ready?"), nil); err != nil {
		return errors.Join(err, batch.Close())
	}
	_, err = db.commit(ctx, batch, func(writeResult) {})
	return s.wrap(cmp.Or(err, s.bodies.status()))
}

// closeTimeout is how long Close waits for the disk.
const closeTimeout = 5 * time.Second

// Close implements [idempotency.Store]. It waits for operations under way. If the disk does not
// answer within closeTimeout, Close returns an error and goes on in the background. Everything
// acknowledged is on the disk then.
func (s *Store) Close() error { return s.close() }

func (s *Store) closeOnce() error {
	s.stop()
	s.mu.Lock()
	s.closed = true
	db := s.database
	s.mu.Unlock()
	closed := make(chan error, 1)
	go func() {
		s.background.Wait()
		err := db.close()
		s.bodies.close()
		closed <- errors.Join(err, s.dir.lock.Close())
	}()
	timeout := time.NewTimer(closeTimeout)
	defer timeout.Stop()
	select {
	case err := <-closed:
		return s.wrap(err)
	case <-timeout.C:
		err := db.status()
		if err == nil {
			err = errHangs
		}
		db.disk.fail(errAbandoned)
		return s.wrap(fmt.Errorf("not closed within %v; everything acknowledged is on the disk: %w", closeTimeout, err))
	}
}
