package file

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
)

// The files in the directory that are not pebble's. The label says that the directory is
// a store, and in which format. While a store is being created, the label says that it
// is unfinished: until then nothing was acknowledged, and all can be made anew. After
// that, a database that is not there is one that was lost.
const (
	labelName  = "caddy-dedup.format"
	newLabel   = labelName + ".new"
	holderName = "caddy-dedup.pid"
	lockName   = "LOCK"

	format     = "caddy-dedup store, format "
	label      = format + "1\n"
	unfinished = format + "1, unfinished\n"
)

// lockPatience is how long Open waits until another process has closed the store. During
// a restart, the old process may end a little after the new one begins.
const lockPatience = time.Second

// place is the directory of a store, locked by this process.
type place struct {
	path  string
	fs    vfs.FS
	lock  io.Closer
	fresh bool // no store is in it yet
	// self are the directory, its label and its lock as they were when the store was opened.
	// Other ones at the same path are not this store, and with another lock another process
	// can open it.
	self, label, locked os.FileInfo
}

// takePlace locks the directory with this path for this process, and creates it if there
// is none. If another process has it, or it is no place for a store, the error says so,
// and all is left as it is.
func takePlace(path string, fs vfs.FS, logger *zap.Logger) (*place, error) {
	if err := refuseFile(path, fs); err != nil {
		return nil, err
	}
	if err := refuseForeign(path, fs); err != nil {
		return nil, err
	}
	if err := makeDirectory(path, fs); err != nil {
		return nil, fmt.Errorf("store directory %s: %w", path, err)
	}
	p := &place{path: path, fs: fs}
	if err := p.enter(); err != nil {
		return nil, err
	}
	var err error
	if p.lock, err = lockDirectory(p.file(lockName), fs); err != nil {
		places.leave(p)
		if _, create := errors.AsType[*os.PathError](err); create {
			return nil, fmt.Errorf("locking store directory %s: %w", path, err)
		}
		return nil, inUse(path, holder(p.file(holderName), fs))
	}
	if err := p.prepare(); err != nil {
		_ = p.lock.Close()
		places.leave(p)
		return nil, err
	}
	if err := writeHolder(p.file(holderName), fs); err != nil {
		// Without it, the error of a second process does not name this one. That is
		// no reason to fail.
		logger.Warn("the process is not noted in its store's directory", zap.String("path", path), reason(err))
	}
	return p, nil
}

func inUse(path, by string) error {
	return fmt.Errorf("store directory %s is in use by %s: a directory serves one process; stop that one, give this one a path of its own, or use `store redis`", path, by)
}

// places are those that this process has. The system's lock keeps other processes out,
// but not this one where a directory has two paths; and to open and close the locked
// file would let go of the lock.
var places placeSet

type placeSet struct {
	mu  sync.Mutex
	own map[*place]bool
}

// enter adds the place to those of this process.
func (p *place) enter() (err error) {
	if p.fs != vfs.Default {
		return nil
	}
	if p.self, err = os.Stat(p.path); err != nil {
		return fmt.Errorf("store directory %s: %w", p.path, err)
	}
	places.mu.Lock()
	defer places.mu.Unlock()
	for other := range places.own {
		if os.SameFile(other.self, p.self) {
			return inUse(p.path, fmt.Sprintf("this process itself (%d)", os.Getpid()))
		}
	}
	if places.own == nil {
		places.own = make(map[*place]bool)
	}
	places.own[p] = true
	return nil
}

func (s *placeSet) leave(p *place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.own, p)
}

// lockDirectory locks, and waits a little for another process.
func lockDirectory(name string, fs vfs.FS) (lock io.Closer, err error) {
	for deadline := time.Now().Add(lockPatience); ; time.Sleep(lockPatience / 50) {
		if lock, err = fs.Lock(name); err == nil || !time.Now().Before(deadline) {
			return lock, err
		}
	}
}

func (p *place) file(name string) string { return p.fs.PathJoin(p.path, name) }

// leave gives the directory up.
func (p *place) leave() {
	if p.check() == nil { // else it is the note of another process
		_ = p.fs.Remove(p.file(holderName))
	}
	_ = p.lock.Close()
	places.leave(p)
}

const leftAlone = "it was left as it is: name another path, or move it away"

// refuseFile refuses a path that is no directory. Once a store was a file.
func refuseFile(path string, fs vfs.FS) error {
	for _, old := range []string{path, path + ".db"} {
		info, err := fs.Stat(old)
		switch {
		case err == nil && old == path && !info.IsDir() && !info.Mode().IsRegular():
			// To open a pipe would wait for whoever writes to it, and no signal ends that.
			return fmt.Errorf("%s is no directory, and a store is one; %s", path, leftAlone)
		case err != nil || !info.Mode().IsRegular():
		case isBolt(old, fs):
			return fmt.Errorf("%s is a file of an earlier version of caddy-dedup, which kept its store in a bbolt file; this version keeps it in a directory and cannot read that; %s", old, leftAlone)
		case old == path:
			return fmt.Errorf("%s is a file, and a store is a directory; %s", path, leftAlone)
		}
	}
	return nil
}

// isBolt reports whether a file begins as those of bbolt do.
func isBolt(name string, fs vfs.FS) bool {
	const magicAt, magic = 16, 0xED0CDAED
	f, err := fs.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	var head [magicAt + 4]byte
	if _, err := io.ReadFull(f, head[:]); err != nil {
		return false
	}
	return binary.NativeEndian.Uint32(head[magicAt:]) == magic
}

// refuseForeign refuses a directory that has files, but not the label of a store in the
// format of this version.
func refuseForeign(path string, fs vfs.FS) error {
	names, err := fs.List(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("store directory %s: %w", path, err)
	}
	found, err := readFile(fs, fs.PathJoin(path, labelName))
	switch {
	case errors.Is(err, os.ErrNotExist):
		for _, name := range names {
			if !slices.Contains([]string{newLabel, holderName, lockName}, name) {
				return fmt.Errorf("directory %s is no store of caddy-dedup: it has files, such as %s, and no %s; %s", path, name, labelName, leftAlone)
			}
		}
		return nil
	case err != nil:
		return fmt.Errorf("store directory %s: %w", path, err)
	case string(found) == label, string(found) == unfinished:
		return nil
	case bytes.HasPrefix(found, []byte(format)):
		return fmt.Errorf("store directory %s has format %q, and this version reads format %q; it was left as it is: use the version that wrote it, or name another path",
			path, strings.TrimSpace(string(found[len(format):])), strings.TrimSpace(label[len(format):]))
	default:
		return damaged(path, fmt.Errorf("its file %s does not say which format it has", labelName))
	}
}

func damaged(path string, reason error) error {
	return fmt.Errorf("store directory %s is damaged: %w; it was left as it is: restore it from a backup, or move it away to begin with an empty one", path, reason)
}

// prepare labels a new directory, and finds out whether there is a store in it.
func (p *place) prepare() error {
	if err := refuseForeign(p.path, p.fs); err != nil {
		return err // what it was before it was locked may be over
	}
	found, err := readFile(p.fs, p.file(labelName))
	switch {
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("store directory %s: %w", p.path, err)
	case string(found) == label:
		return p.remember()
	}
	p.fresh = true
	if err := p.removeUnfinished(); err != nil {
		return fmt.Errorf("store directory %s: %w", p.path, err)
	}
	return p.writeLabel(unfinished)
}

// removeUnfinished removes what is left of a store whose creation was cut off.
func (p *place) removeUnfinished() error {
	names, err := p.fs.List(p.path)
	if err != nil {
		return err
	}
	for _, name := range names {
		kind, _, _ := strings.Cut(name, "-")
		kind, _, _ = strings.Cut(kind, ".")
		ours := kind == "MANIFEST" || kind == "OPTIONS" || kind == "marker" || kind == "temporary" || strings.HasSuffix(name, ".log") || name == markName || name == claimsName
		if !ours {
			continue
		}
		if err := p.fs.Remove(p.file(name)); err != nil {
			return err
		}
	}
	return nil
}

// finish says that the store has been created.
func (p *place) finish() error {
	if !p.fresh {
		return nil
	}
	if err := p.writeLabel(label); err != nil {
		return err
	}
	p.fresh = false
	return p.remember()
}

func (p *place) writeLabel(text string) error {
	err := writeFile(p.fs, p.file(newLabel), text)
	if err == nil {
		err = p.fs.Rename(p.file(newLabel), p.file(labelName))
	}
	if err == nil {
		syncDirectory(p.path, p.fs)
		return nil
	}
	return fmt.Errorf("store directory %s: %w", p.path, err)
}

// remember notes which label and which lock the directory has.
func (p *place) remember() (err error) {
	if p.fs != vfs.Default {
		return nil
	}
	if p.locked, err = os.Stat(p.file(lockName)); err != nil {
		return err
	}
	p.label, err = os.Stat(p.file(labelName))
	return err
}

// check says what has become of the directory, if it is not there any more.
func (p *place) check() error {
	if p.label == nil {
		return nil
	}
	const advice = "put it back, or restart to begin with what is there now"
	self, err := os.Stat(p.path)
	if err == nil && !os.SameFile(self, p.self) {
		err = errors.New("another directory is in its place")
	}
	if err != nil {
		return fmt.Errorf("the directory was removed or replaced: %w; %s", err, advice)
	}
	for _, file := range [...]struct {
		name   string
		before os.FileInfo
	}{{labelName, p.label}, {lockName, p.locked}} {
		now, err := os.Stat(p.file(file.name))
		if err == nil && !os.SameFile(now, file.before) {
			err = fmt.Errorf("another %s is in its place", file.name)
		}
		if err != nil {
			return fmt.Errorf("what was in the directory was removed or replaced: %w; %s", err, advice)
		}
	}
	return nil
}

// probe tries whether the disk can be written to, and has room to open the database: what
// is in its logs becomes tables then. An opening that finds no room leaves what it has
// written, and each one would take of the room that the next one needs.
func (p *place) probe() error {
	name := p.file(newLabel)
	if err := writeFile(p.fs, name, unfinished); err != nil {
		return err
	}
	if err := p.fs.Remove(name); err != nil {
		return err
	}
	needs, err := p.logBytes()
	if err != nil {
		return err
	}
	// Not every file system tells how much room it has.
	if room, err := p.fs.GetDiskUsage(p.path); err == nil && room.TotalBytes > 0 && room.AvailBytes < needs {
		return fmt.Errorf("%w: it needs %d bytes to be opened, and there are %d", ErrNoSpace, needs, room.AvailBytes)
	}
	return nil
}

// logBytes returns how large the logs of the database are.
func (p *place) logBytes() (bytes uint64, err error) {
	names, err := p.fs.List(p.path)
	for _, name := range names {
		if !strings.HasSuffix(name, ".log") {
			continue
		}
		info, err := p.fs.Stat(p.file(name))
		if err != nil {
			return 0, err
		}
		bytes += uint64(max(info.Size(), 0))
	}
	return bytes, err
}
