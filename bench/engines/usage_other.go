//go:build !linux

package main

import (
	"os"
	"time"
)

func cpuTime() time.Duration { return 0 }

func anonymousMB() float64 { return 0 }

func flushData(file *os.File) error { return file.Sync() }
