package file

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
)

// What pebble may hold in memory. docs/operations.md tells these bounds.
const (
	// memoryBytes bounds the tables in which pebble gathers what is written and the blocks
	// that it has read, together: pebble takes the tables off the room for blocks. So it
	// has to be much more than the tables: else no block is kept, and each look for a
	// key reads the disk.
	memoryBytes = 16 << 20
	// memTableBytes is the size of one table in memory, of which there are up to
	// memTables. A claim whose run ends before its table is full never leaves it. Larger
	// ones make little difference to the work on the disk, and each byte of them costs
	// two, because the collector counts them where there is no cgo.
	memTableBytes = 4 << 20
	memTables     = 3
	openFiles     = 256
	compactions   = 2
)

// How tables are merged. Keys are random, so that whatever is merged into a level meets
// all of it. What is merged at once has therefore to be much, and the levels small. The
// responses beside the tables do not take part.
const (
	// mergedAtOnce is twice the number of tables one above the other, each as one table
	// in memory was written to the disk, that are merged into the first level. A look for
	// a key asks the filter of each.
	mergedAtOnce = 24
	// stopsWrites is with how many of them writes wait.
	stopsWrites = 48
	// firstLevelBytes is how large the first level is, with the responses beside it.
	firstLevelBytes = 64 << 20
	// responseFiles is how many files with responses a table may refer to before a merge
	// copies the responses together.
	responseFiles = 40
)

// formatVersion is pebble's version of its files. It is not "the newest", because a
// newer pebble would then make files that the version of caddy-dedup before it cannot
// read.
const formatVersion = pebble.FormatValueSeparation

// database is a pebble database that is open, with those who write to it.
type database struct {
	path      string
	db        *pebble.DB
	disk      *disk
	locks     keyLocks
	bodies    *bodies
	slots     *slots
	filters   filters
	deadlines deadlines
	// using is read-locked while an operation uses the database.
	using sync.RWMutex
	// reads has room for those that are under way, and reading is their goroutines.
	reads   chan struct{}
	reading sync.WaitGroup
	saving  atomic.Bool // a log that was removed is being written anew
	// givingUp and releasing are done once.
	givingUp, releasing sync.Once

	queue, written chan *operation
	confirmed      chan struct{} // closed when nothing more is written
}

// newDatabase returns a database that is not open.
func newDatabase(path string, fs vfs.FS) *database {
	d := &database{
		path:      path,
		disk:      newDisk(fs),
		queue:     make(chan *operation, queued),
		written:   make(chan *operation, queued),
		confirmed: make(chan struct{}),
		reads:     make(chan struct{}, mostReads),
		deadlines: deadlines{from: time.Now(), ends: make(map[int64]chan struct{})},
	}
	d.bodies = newBodies(path, d.disk)
	d.slots = newSlots(d.disk)
	return d
}

// openDatabase opens the database in a directory, or creates it if it may.
func openDatabase(path string, fs vfs.FS, create bool, logger *zap.Logger) (*database, error) {
	d := newDatabase(path, fs)
	d.disk.mark = openMark(fs, path)
	options := pebbleOptions(path, d.disk, logger)
	options.ErrorIfNotExists = !create
	left, err := readSlots(fs, fs.PathJoin(path, claimsName))
	if err == nil {
		d.db, err = openPebble(path, options, d.disk)
	}
	if err == nil {
		_, err = unlessGone(d.disk, func() (struct{}, error) {
			err := d.takeSlots(left, logger)
			if err != nil {
				_ = d.db.Close() // the first error is the one to report
			}
			return struct{}{}, err
		})
	}
	if err != nil {
		d.giveUp()
		d.disk.files.release() // nobody has read from it
		return nil, err
	}
	d.disk.opened()
	return d, nil
}

// notOpened returns a database that could not be opened this time, for this reason. It is
// like one that was given up.
func notOpened(path string, fs vfs.FS, reason error) *database {
	d := newDatabase(path, fs)
	d.disk.fail(reason)
	return d
}

// run begins to carry out operations.
func (d *database) run() {
	go d.writeQueued()
	go d.confirmWritten()
}

// awaitUnused returns when nobody uses the database any more. It has been replaced.
func (d *database) awaitUnused() {
	d.using.Lock()
	defer d.using.Unlock()
}

// giveUp ends all writing.
func (d *database) giveUp() {
	d.disk.fence()
	d.givingUp.Do(func() {
		d.disk.mark.close()
		d.slots.close()
		d.bodies.closeAll()
	})
}

// release closes the files of a database that was given up, as soon as nobody reads from it
// any more. Nobody uses it.
func (d *database) release() {
	d.releasing.Do(func() {
		go func() {
			d.reading.Wait()
			d.disk.files.release()
		}()
	})
}

// inspect opens the database in a directory without writing anything. Its error says
// what is damaged.
func inspect(path string, fs vfs.FS, logger *zap.Logger) error {
	if err := checkFlushed(path, fs); err != nil {
		return err
	}
	readOnly := newDisk(fs)
	readOnly.readOnly = true
	defer readOnly.files.release() // what pebble has not closed, where it panics or fails
	options := pebbleOptions(path, readOnly, logger)
	options.ReadOnly = true
	db, err := openPebble(path, options, readOnly)
	if err != nil {
		if named := checkOptions(path, fs, options); named != nil {
			return named
		}
		return err
	}
	return errors.Join(checkBlobs(path, fs, db), db.Close())
}

// checkOptions says which file with the options of a database cannot be read. pebble's
// error does not.
func checkOptions(path string, fs vfs.FS, options *pebble.Options) error {
	names, err := fs.List(path)
	if err != nil {
		return err
	}
	options.EnsureDefaults()
	for _, name := range names {
		if !strings.HasPrefix(name, "OPTIONS-") {
			continue
		}
		content, err := readFile(fs, fs.PathJoin(path, name))
		if err == nil {
			err = options.CheckCompatibility(path, string(content))
		}
		if err != nil {
			return fmt.Errorf("its file %s: %w", name, err)
		}
	}
	return nil
}

func openPebble(path string, options *pebble.Options, disk *disk) (*pebble.DB, error) {
	return unlessGone(disk, func() (*pebble.DB, error) { return pebble.Open(path, options) })
}

// unlessGone calls pebble, and does not wait for it if its disk fails: pebble would try
// again without an end.
func unlessGone[T any](disk *disk, call func() (T, error)) (T, error) {
	type result struct {
		of  T
		err error
	}
	ended := make(chan result, 1)
	go func() {
		defer func() { // pebble panics over some damage
			if reason := recover(); reason != nil {
				ended <- result{err: &panicError{reason}}
			}
		}()
		of, err := call()
		ended <- result{of, err}
	}()
	select {
	case r := <-ended:
		return r.of, r.err
	case <-disk.gone:
		var none T
		return none, disk.failed()
	}
}

func pebbleOptions(path string, disk *disk, logger *zap.Logger) *pebble.Options {
	o := &pebble.Options{
		Comparer:                    comparer,
		FS:                          disk,
		FormatMajorVersion:          formatVersion,
		MemTableSize:                memTableBytes,
		MemTableStopWritesThreshold: memTables,
		CacheSize:                   memoryBytes,
		MaxOpenFiles:                openFiles,
		L0CompactionThreshold:       mergedAtOnce,
		L0StopWritesThreshold:       stopsWrites,
		LBaseMaxBytes:               firstLevelBytes,
		CompactionConcurrencyRange:  func() (int, int) { return 1, compactions },
		Logger:                      &says{path: path, disk: disk, logger: logger},
		EventListener:               events(path, logger),
	}
	for i := range o.Levels {
		// A key that is not there is mostly found to be so without a look at the disk.
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	o.Experimental.ValueSeparationPolicy = func() pebble.ValueSeparationPolicy {
		return pebble.ValueSeparationPolicy{
			Enabled:               true,
			MinimumSize:           separatedBytes,
			MaxBlobReferenceDepth: responseFiles,
			RewriteMinimumAge:     time.Minute,
			TargetGarbageRatio:    0.3,
		}
	}
	return o
}

// separatedBytes is from which size on a response is put beside the tables, so that it
// need not be copied whenever they are merged. A record is smaller than that.
const separatedBytes = 384

// errNotClosed says that a database was given up instead of closed.
var errNotClosed = errors.New("it was given up with a write under way; all that was acknowledged is on the disk")

// close carries out what is queued and under way, and closes the database. Nobody may use it any more.
// If its disk fails meanwhile, or is full, the database is given up.
func (d *database) close() error {
	if d.db == nil { // it was never open
		close(d.queue)
		<-d.confirmed
		return nil
	}
	closed := make(chan error, 1)
	go func() {
		d.bodies.writing.Wait() // what they have written is queued then
		close(d.queue)
		<-d.confirmed
		d.bodies.closeAll()
		d.bodies.removing.Wait()
		d.reading.Wait()
		closed <- d.db.Close()
	}()
	for {
		trouble, worse := d.disk.trouble()
		if trouble != nil {
			d.giveUp()
			d.release()
			return fmt.Errorf("%w: %w", errNotClosed, trouble)
		}
		select {
		case err := <-closed:
			d.disk.mark.close()
			d.slots.close()
			return err
		case <-worse:
		}
	}
}
