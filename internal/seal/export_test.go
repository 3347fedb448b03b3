package seal

import "github.com/caddy-dedup/caddy-dedup/internal/idempotency"

// Opened is openRecord, for tests.
func Opened(s *Sealer, key idempotency.Key, r *idempotency.Record) (*idempotency.Record, error) {
	return s.openRecord(key, r)
}
