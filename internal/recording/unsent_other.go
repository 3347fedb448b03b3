//go:build !linux

package recording

import "net"

// limitUnsent does nothing: the kernel decides how much waits in it.
func limitUnsent(net.Conn) {}
