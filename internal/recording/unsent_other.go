//go:build !linux

package recording

import "net"

// limitUnsent does nothing: what waits in the kernel is up to it.
func limitUnsent(net.Conn) {}
