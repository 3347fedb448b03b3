package caddydedup

import (
	"runtime/debug"

	"github.com/caddyserver/caddy/v2"
)

// Version is the version of this build where Go does not know it, as in a folder
// without its git repository, or in an xcaddy build from one. The linker sets it:
//
//	go build -ldflags '-X github.com/caddy-dedup/caddy-dedup.Version=v0.1.0' ./cmd/caddy-dedup
var Version string

// binaryName is what the commands call the program. A build of Caddy that has another
// name is another program, and says its own version.
const binaryName = "caddy-dedup"

const (
	ownModule   = "github.com/caddy-dedup/caddy-dedup"
	caddyModule = "github.com/caddyserver/caddy/v2"

	// unknownVersion is what Go itself says of a module that it has no version of.
	unknownVersion = "(devel)"

	// commitLength is how much of a commit Go shows in a version.
	commitLength = 12
)

func init() {
	if caddy.CustomBinaryName == binaryName { // as xcaddy.json has it set by the linker
		NameBuild()
	}
}

// NameBuild makes the program call itself caddy-dedup, and say its own version before
// Caddy's. Names that the linker has set stay.
func NameBuild() {
	if caddy.CustomBinaryName == "" {
		caddy.CustomBinaryName = binaryName
	}
	if caddy.CustomVersion == "" {
		info, _ := debug.ReadBuildInfo() // nil if the binary has none
		caddy.CustomVersion = beforeCaddysVersion(Version, info)
	}
}

// beforeCaddysVersion returns what caddy.CustomVersion has to be so that the
// commands that show Caddy's version (`version`, `--version` and `environ`) name
// this program's first:
//
//	caddy-dedup v0.1.0 (commit 75f25df0c3e1) with Caddy v2.11.9 h1:bhZt…
//
// Caddy puts it in front of its own full version. Its short one, which it sends to
// others (to ACME servers, FastCGI and telemetry), stays that of Caddy.
//
// given is the version that the build was told, or empty. info may be nil; what it
// does not say is left out.
func beforeCaddysVersion(given string, info *debug.BuildInfo) string {
	if info == nil {
		// Then Caddy does not know its own version either, and shows this alone.
		return binaryName + " " + orUnknown(given)
	}
	text := binaryName + " "
	if info.Main.Path == ownModule {
		if given == "" {
			given = info.Main.Version
		}
		text += orUnknown(given) + commit(info.Settings)
	} else {
		// It was built as a dependency of another module, and the commit is that
		// module's.
		if own := dependency(info, ownModule); given == "" && own != nil {
			given = own.Version
		}
		text += orUnknown(given)
	}
	if dependency(info, caddyModule) != nil {
		text += " with Caddy"
	}
	return text
}

// dependency returns the module that was built in under a path, nil if none was.
func dependency(info *debug.BuildInfo, path string) *debug.Module {
	for _, module := range info.Deps {
		if module.Path != path {
			continue
		}
		if module.Replace != nil {
			return module.Replace
		}
		return module
	}
	return nil
}

// commit returns the commit of a build in parentheses, after a space; it is empty
// for a build outside of a repository.
func commit(settings []debug.BuildSetting) string {
	var revision, modified string
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(len(s.Value), commitLength)]
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = ", modified"
		}
	}
	if revision == "" {
		return ""
	}
	return " (commit " + revision + modified + ")"
}

func orUnknown(version string) string {
	if version == "" {
		return unknownVersion
	}
	return version
}
