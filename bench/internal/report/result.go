// Package report is what a benchmark found, and how it is shown: as a table, as JSON, as
// pictures, and in the page of the documentation.
package report

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/caddy-dedup/caddy-dedup/bench/internal/stats"
)

// Result is all of one run.
type Result struct {
	Date time.Time `json:"date"`
	// Commit is that of caddy-dedup's source, with a + if files were changed since.
	Commit string `json:"commit"`
	// Settings are the flags of the run, as they were given.
	Settings []string `json:"settings"`
	// Short is set for a run that only shows that all cases work.
	Short    bool     `json:"short"`
	Machine  Machine  `json:"machine"`
	Versions []Named  `json:"versions"`
	Notes    []string `json:"notes,omitempty"`
	Groups   []Group  `json:"groups"`
}

// Machine is where the run was.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory int64  `json:"memory_bytes"`
	Kernel string `json:"kernel"`
}

// Named is a text with a name.
type Named struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// Group is a table: cases that were measured in the same way, round by round.
type Group struct {
	Name    string   `json:"name"`
	Title   string   `json:"title"`
	Columns []Column `json:"columns"`
	Rows    []Row    `json:"rows"`
}

// Column is one figure of all cases.
type Column struct {
	Key   string `json:"key"`
	Title string `json:"title"`
	// Digits are those behind the point.
	Digits int `json:"digits"`
	// Spread shows the least and the greatest of the rounds too.
	Spread bool `json:"spread,omitempty"`
}

// Row is one case.
type Row struct {
	Name string `json:"name"`
	What string `json:"what"`
	// Cells are the figures by the columns' keys. What a case does not have is not there.
	Cells map[string]stats.Spread `json:"cells"`
}

// WriteJSON writes the result to a file.
func (r *Result) WriteJSON(path string) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// ReadJSON reads what WriteJSON wrote.
func ReadJSON(path string) (*Result, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r Result
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("%s is no result of this benchmark: %w", path, err)
	}
	return &r, nil
}
