package file

import (
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
)

// What pebble may hold in memory: the tables in which it gathers what is written, and
// the blocks that it has read. docs/operations.md tells these bounds.
const (
	// memTableBytes is the size of one table in memory, of which there are up to
	// memTables. A claim whose run ends before its table is full never leaves it.
	memTableBytes = 16 << 20
	memTables     = 3
	cacheBytes    = 16 << 20
	openFiles     = 256
	compactions   = 2
)

// formatVersion is pebble's version of its files. It is not "the newest", because a
// newer pebble would then make files that the version of caddy-dedup before it cannot
// read.
const formatVersion = pebble.FormatValueSeparation

// database is a pebble database that is open, with those who write to it.
type database struct {
	path  string
	db    *pebble.DB
	disk  *disk
	locks keyLocks

	queue, written chan *operation
	confirmed      chan struct{} // closed when nothing more is written
}

// openDatabase opens the database in a directory, or creates it if it may.
func openDatabase(path string, fs vfs.FS, create bool, logger *zap.Logger) (*database, error) {
	d := &database{
		path:      path,
		disk:      newDisk(fs),
		queue:     make(chan *operation, queued),
		written:   make(chan *operation, queued),
		confirmed: make(chan struct{}),
	}
	d.disk.mark = openMark(fs, fs.PathJoin(path, markName))
	options := pebbleOptions(path, d.disk, logger)
	options.ErrorIfNotExists = !create
	var err error
	if d.db, err = openPebble(path, options, d.disk); err != nil {
		d.disk.fence()
		d.disk.mark.close()
		return nil, err
	}
	d.disk.opened()
	return d, nil
}

// run begins to carry out operations.
func (d *database) run() {
	go d.writeQueued()
	go d.confirmWritten()
}

// inspect opens the database in a directory without writing anything. Its error says
// what is damaged.
func inspect(path string, fs vfs.FS, logger *zap.Logger) error {
	if err := checkLog(path, fs); err != nil {
		return err
	}
	readOnly := newDisk(fs)
	readOnly.readOnly = true
	options := pebbleOptions(path, readOnly, logger)
	options.ReadOnly = true
	db, err := openPebble(path, options, readOnly)
	if err != nil {
		return err
	}
	return db.Close()
}

// openPebble opens a database. It does not wait for pebble if its disk fails: pebble
// would try again without an end.
func openPebble(path string, options *pebble.Options, disk *disk) (*pebble.DB, error) {
	type result struct {
		db  *pebble.DB
		err error
	}
	opened := make(chan result, 1)
	go func() {
		defer func() { // pebble panics over some damage
			if reason := recover(); reason != nil {
				opened <- result{nil, &panicError{reason}}
			}
		}()
		db, err := pebble.Open(path, options)
		opened <- result{db, err}
	}()
	select {
	case r := <-opened:
		return r.db, r.err
	case <-disk.gone:
		return nil, disk.failed()
	}
}

func pebbleOptions(path string, disk *disk, logger *zap.Logger) *pebble.Options {
	o := &pebble.Options{
		FS:                          disk,
		FormatMajorVersion:          formatVersion,
		MemTableSize:                memTableBytes,
		MemTableStopWritesThreshold: memTables,
		CacheSize:                   cacheBytes,
		MaxOpenFiles:                openFiles,
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
			MaxBlobReferenceDepth: 10,
			RewriteMinimumAge:     time.Minute,
			TargetGarbageRatio:    0.3,
		}
	}
	return o
}

// separatedBytes is from which size on a response is put beside the tables, so that it
// need not be copied whenever they are merged.
const separatedBytes = 256

// errNotClosed says that a database was given up instead of closed.
var errNotClosed = errors.New("it was given up with a write under way; all that was acknowledged is on the disk")

// close carries out what is queued and closes the database. Nobody may use it any more.
// If its disk fails meanwhile, or is full, the database is given up.
func (d *database) close() error {
	closed := make(chan error, 1)
	close(d.queue)
	go func() {
		<-d.confirmed
		closed <- d.db.Close()
	}()
	for {
		trouble, worse := d.disk.trouble()
		if trouble != nil {
			d.disk.fence()
			return fmt.Errorf("%w: %w", errNotClosed, trouble)
		}
		select {
		case err := <-closed:
			d.disk.mark.close()
			return err
		case <-worse:
		}
	}
}
