package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/caddyserver/xcaddy"
	"github.com/google/shlex"
)

// versionVariable is what the linker sets to the version of a build.
const versionVariable = "github.com/caddy-dedup/caddy-dedup.Version"

// read returns the build that a file describes. A field that xcaddy does not know is an
// error: it would be left out in silence.
func read(path string) (xcaddy.Builder, error) {
	var builder xcaddy.Builder
	content, err := os.ReadFile(path)
	if err != nil {
		return builder, err
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&builder); err != nil {
		return builder, fmt.Errorf("%s: %w", path, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return builder, errors.New(path + ": something stands behind the description")
	}
	if builder.CaddyVersion == "" || len(builder.Plugins) == 0 {
		return builder, errors.New(path + ": it must name a caddy_version and at least one of plugins")
	}
	for i, r := range builder.Replacements {
		to, err := resolved(filepath.Dir(path), r.New.String())
		if err != nil {
			return builder, err
		}
		builder.Replacements[i].New = xcaddy.ReplacementPath(to)
	}
	return builder, nil
}

// resolved is a replacement that does not depend on the directory: the build runs in a
// folder of its own, where a relative path would lead nowhere.
func resolved(folder, to string) (string, error) {
	if to != "." && to != ".." && !strings.HasPrefix(to, "./") && !strings.HasPrefix(to, "../") {
		return to, nil
	}
	return filepath.Abs(filepath.Join(folder, filepath.FromSlash(to)))
}

// add adds a plugin to a build, given as module[@version][=path].
func add(builder *xcaddy.Builder, folder, text string) error {
	module, path, replaced := strings.Cut(text, "=")
	module, version, versioned := strings.Cut(module, "@")
	if module = strings.TrimSuffix(module, "/"); module == "" || versioned && version == "" || replaced && path == "" {
		return fmt.Errorf("-with %q is not a plugin; write module, module@version, or module=path", text)
	}
	for _, plugin := range builder.Plugins {
		if plugin.PackagePath == module {
			return fmt.Errorf("-with %q names a plugin that is there already, as %s", text, plugin)
		}
	}
	if replaced {
		to, err := resolved(folder, path)
		if err != nil {
			return err
		}
		builder.Replacements = append(builder.Replacements, xcaddy.NewReplace(module, to))
		if version == "" {
			version = "v0.0.0" // else Go asks the network which versions there are
		}
	}
	builder.Plugins = append(builder.Plugins, xcaddy.Dependency{PackagePath: module, Version: version})
	return nil
}

var versionForm = regexp.MustCompile(`^v\d+\.\d+\.\d+[-+.0-9A-Za-z]*$`)

// stamped returns build flags by which the linker sets the version, too.
func stamped(flags, version string) (string, error) {
	if !versionForm.MatchString(version) {
		return "", fmt.Errorf("-version %q is not a version; write one such as v0.1.0", version)
	}
	words, err := shlex.Split(flags)
	if err != nil {
		return "", fmt.Errorf("build_flags %q: %w", flags, err)
	}
	at := slices.Index(words, "-ldflags")
	if at < 0 || at+1 == len(words) {
		return "", fmt.Errorf("build_flags %q have no -ldflags, by which a version is set", flags)
	}
	words[at+1] += " -X " + versionVariable + "=" + version
	for i, word := range words {
		if strings.ContainsAny(word, " \"'#\\") {
			words[i] = "'" + strings.ReplaceAll(word, "'", `'"'"'`) + "'"
		}
	}
	return strings.Join(words, " "), nil
}
