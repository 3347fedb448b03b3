package main

import (
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"

	_ "modernc.org/sqlite" // the driver `sqlite`
)

// sqliteEngine is SQLite, translated to Go, with a write-ahead log that is flushed at each
// commit.
type sqliteEngine struct {
	*committer
	db *sql.DB
}

func openSQLite(dir string) (engine, error) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "keys.sqlite")+"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=busy_timeout(10000)")
	if err != nil {
		return nil, err
	}
	// One writer: SQLite has no more of them at a time.
	db.SetMaxOpenConns(1)
	for _, statement := range []string{
		`CREATE TABLE records (key BLOB PRIMARY KEY, value BLOB NOT NULL, expires INTEGER) WITHOUT ROWID`,
		`CREATE INDEX expiries ON records (expires) WHERE expires IS NOT NULL`,
	} {
		if _, err := db.Exec(statement); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	s := &sqliteEngine{db: db}
	s.committer = newCommitter(s.commit)
	return s, nil
}

func (s *sqliteEngine) commit(group []write) error {
	tx, err := s.db.Begin()
	if err != nil {
		return err
	}
	if err := s.write(tx, group); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func (s *sqliteEngine) write(tx *sql.Tx, group []write) error {
	insert, err := tx.Prepare(`INSERT INTO records (key, value) VALUES (?, ?)`) // fails if the key is there
	if err != nil {
		return err
	}
	defer insert.Close()
	update, err := tx.Prepare(`UPDATE records SET value = ?, expires = ? WHERE key = ?`)
	if err != nil {
		return err
	}
	defer update.Close()
	for _, w := range group {
		if w.claim {
			_, err = insert.Exec(w.entry.key[:], w.entry.claim)
		} else {
			_, err = update.Exec(w.entry.record, w.entry.expires(), w.entry.key[:])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *sqliteEngine) keep(n uint64) error { return s.committer.keep(entryOf(n)) }

func (s *sqliteEngine) has(n uint64) (bool, error) {
	key := keyOf(n)
	var size int
	err := s.db.QueryRow(`SELECT length(value) FROM records WHERE key = ?`, key[:]).Scan(&size)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for key %d: %w", n, err)
	}
	return size == recordSize, nil
}

func (s *sqliteEngine) close() error {
	s.stop()
	return s.db.Close()
}
