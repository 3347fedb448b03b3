package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// entry is a file of an archive.
type entry struct {
	name       string
	content    []byte
	executable bool
}

func (e entry) mode() os.FileMode {
	if e.executable {
		return 0o755
	}
	return 0o644
}

// writeArchive writes a .zip or a .tar.gz, with all entries in one folder, of one time,
// and of nobody in particular, so that the same entries give the same archive.
func writeArchive(path string, zipped bool, folder string, entries []entry, made time.Time) error {
	extension, pack := ".tar.gz", packTar
	if zipped {
		extension, pack = ".zip", packZip
	}
	file, err := os.Create(path + extension)
	if err != nil {
		return err
	}
	if err := pack(file, folder, entries, made); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}

func packTar(to io.Writer, folder string, entries []entry, made time.Time) error {
	compressed, err := gzip.NewWriterLevel(to, gzip.BestCompression)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(compressed)
	for _, e := range entries {
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: folder + "/" + e.name, Mode: int64(e.mode()), Size: int64(len(e.content)), ModTime: made, Format: tar.FormatUSTAR,
		}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(e.content); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return compressed.Close()
}

func packZip(to io.Writer, folder string, entries []entry, made time.Time) error {
	archive := zip.NewWriter(to)
	for _, e := range entries {
		header := &zip.FileHeader{Name: folder + "/" + e.name, Method: zip.Deflate, Modified: made}
		header.SetMode(e.mode())
		file, err := archive.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := file.Write(e.content); err != nil {
			return err
		}
	}
	return archive.Close()
}

// writeChecksums writes those of all files in a directory, as sha256sum reads them.
func writeChecksums(directory string) error {
	files, err := os.ReadDir(directory) // in the order of their names
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(directory, file.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%x  %s\n", sha256.Sum256(content), file.Name())
	}
	return os.WriteFile(filepath.Join(directory, "checksums.txt"), []byte(lines.String()), 0o644)
}
