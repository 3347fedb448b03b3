//go:build !linux

package exchange

import "net"

// limitUnsent does nothing: the kernel decides how much waits in it.
func limitUnsent(net.Conn) {}
