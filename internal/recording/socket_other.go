//go:build !linux

package recording

import "net"

// limitUnsent does nothing: the kernel decides how much it buffers.
func limitUnsent(net.Conn) {}

// ackedBytes reports that the number is unknown.
func ackedBytes(net.Conn) (n int64, known bool) { return 0, false }
