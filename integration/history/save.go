package history

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/anishathalye/porcupine"
)

// Save writes a violation to a new file in the directory ("" for the system's
// temporary one) and returns the file's path: the part of the history that
// concerns its key, as JSON. Where no order of the events was
// found, a drawing of the search lies beside it as a page of HTML.
func (h *History) Save(dir string, v Violation) (path string, err error) {
	file, err := os.CreateTemp(dir, "history-*.json")
	if err != nil {
		return "", fmt.Errorf("keeping the history of the key %q: %w", v.Key, err)
	}
	encoder := json.NewEncoder(file)
	encoder.SetIndent("", " ")
	err = encoder.Encode(h.Of(v.Key))
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return "", fmt.Errorf("keeping the history of the key %q: %w", v.Key, err)
	}
	if v.drawing == nil {
		return file.Name(), nil
	}
	page := file.Name()[:len(file.Name())-len(filepath.Ext(file.Name()))] + ".html"
	if err := porcupine.VisualizePath(v.drawing.model, v.drawing.info, page); err != nil {
		return "", fmt.Errorf("drawing the history of the key %q: %w", v.Key, err)
	}
	return file.Name(), nil
}
