//go:build !linux

package exchange

import "net"

// limitUnsent does nothing: the kernel decides how much waits in it.
func limitUnsent(net.Conn) {}

// ackedBytes knows nothing.
func ackedBytes(net.Conn) (n int64, known bool) { return 0, false }
