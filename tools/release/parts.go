package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
)

// writeParts writes what a binary is made of, as the binary itself says: Go writes the
// modules into it that were compiled. The form is CycloneDX (ECMA-424).
func writeParts(path, binary, version string, made time.Time) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	bom := partsOf(info, version, made)
	bom.Metadata.Component.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: fmt.Sprintf("%x", sha256.Sum256(content))}}
	bom.Metadata.Component.Properties = &[]cyclonedx.Property{{Name: "file", Value: filepath.Base(binary)}}
	if err := cyclonedx.NewBOMEncoder(file, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}

// partsOf lists the modules of a binary, and Go's own library.
func partsOf(info *debug.BuildInfo, version string, made time.Time) *cyclonedx.BOM {
	settings := make(map[string]string)
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	main := component(cyclonedx.ComponentTypeApplication, info.Main.Path, version)
	main.PackageURL += "?goos=" + settings["GOOS"] + "&goarch=" + settings["GOARCH"]
	main.BOMRef = main.PackageURL
	main.Licenses = &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}}
	parts := []cyclonedx.Component{component(cyclonedx.ComponentTypeLibrary, "std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		parts = append(parts, component(cyclonedx.ComponentTypeLibrary, module.Path, module.Version))
	}
	var refs []string
	for _, part := range parts {
		refs = append(refs, part.BOMRef)
	}
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Timestamp: made.Format(time.RFC3339), Component: &main}
	bom.Components = &parts
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: main.BOMRef, Dependencies: &refs}}
	return bom
}

func component(kind cyclonedx.ComponentType, path, version string) cyclonedx.Component {
	url := "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
	return cyclonedx.Component{Type: kind, BOMRef: url, Name: path, Version: version, PackageURL: url}
}
