package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// logEngine is a bare log: all is appended to one file, with an index of all keys in memory.
// It never gives room back, and does not read what it wrote when it is opened: it is the
// limit of what an engine on this disk can do, and no engine.
type logEngine struct {
	file *os.File

	mu      sync.Mutex
	flushed *sync.Cond
	index   map[[32]byte]int64
	at      int64  // where the next byte goes
	buffer  []byte // what is not written yet
	spare   []byte
	// asked, and done, count the bytes of which a flush was asked for, and is done.
	asked, done int64
	stopped     bool
	err         error
	ended       chan struct{}
}

func openLog(dir string) (engine, error) {
	file, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	l := &logEngine{file: file, index: make(map[[32]byte]int64), ended: make(chan struct{})}
	l.flushed = sync.NewCond(&l.mu)
	go l.flush()
	return l, nil
}

func (l *logEngine) keep(n uint64) error {
	e := entryOf(n)
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, there := l.index[e.key]; there {
		return fmt.Errorf("the key %x is there already", e.key)
	}
	l.add(e.key, e.claim)
	// In between, the request runs; others go on meanwhile.
	l.mu.Unlock()
	l.mu.Lock()
	end := l.add(e.key, e.record)
	l.asked = end
	l.flushed.Broadcast()
	for l.done < end && l.err == nil {
		l.flushed.Wait()
	}
	return l.err
}

// add appends a value and returns where it ends.
func (l *logEngine) add(key [32]byte, value []byte) int64 {
	l.index[key] = l.at
	l.buffer = append(append(l.buffer, key[:]...), value...)
	l.at += int64(len(key) + len(value))
	return l.at
}

// flush writes what has come while it flushed what had come before.
func (l *logEngine) flush() {
	defer close(l.ended)
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		for l.asked <= l.done && !l.stopped {
			l.flushed.Wait()
		}
		if l.stopped {
			return
		}
		taken, end := l.buffer, l.at
		l.buffer = l.spare[:0]
		l.mu.Unlock()
		_, err := l.file.Write(taken)
		if err == nil {
			err = flushData(l.file)
		}
		l.mu.Lock()
		l.spare, l.done = taken, end
		if err != nil {
			l.err = err
		}
		l.flushed.Broadcast()
	}
}

func (l *logEngine) has(n uint64) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, there := l.index[keyOf(n)]
	return there, nil
}

func (l *logEngine) close() error {
	l.mu.Lock()
	l.stopped = true
	l.flushed.Broadcast()
	l.mu.Unlock()
	<-l.ended
	return l.file.Close()
}
