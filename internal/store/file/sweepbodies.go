package file

import (
	"errors"
	"os"
	"slices"
	"time"
)

const (
	// bucketDelay is how long after its moment a bucket is removed. Nobody reads from it
	// any more, nor writes to it, save one who waits for room: and he finds that his
	// response has expired.
	bucketDelay = 5 * time.Minute
	// segmentsAtOnce is how many segments are removed before the sweeper rests.
	segmentsAtOnce = 2
)

// sweepBodies removes the bodies that have expired.
func (s *Store) sweepBodies() error {
	root := s.fs.PathJoin(s.path, bodiesName)
	names, err := s.fs.List(root)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	slices.Sort(names)
	now := clock()
	var first error
	for _, name := range names {
		at, ok := parseBucket(name)
		if !ok || now.Before(at.Add(bucketDelay)) {
			continue
		}
		ended, err := s.sweepBucket(name)
		if ended {
			return first
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// sweepBucket removes the segments in a bucket, and the bucket if nothing else is in it.
// Closing says that the store is being closed.
func (s *Store) sweepBucket(name string) (closing bool, first error) {
	s.current().bodies.closeBucket(name)
	bucket := s.fs.PathJoin(s.path, bodiesName, name)
	names, err := s.fs.List(bucket)
	if err != nil {
		return false, err
	}
	left := 0
	for len(names) > 0 {
		some := names[:min(len(names), segmentsAtOnce)]
		names = names[len(some):]
		began := time.Now()
		for _, name := range some {
			if !isSegmentName(name) {
				left++
				continue
			}
			if err := s.fs.Remove(s.fs.PathJoin(bucket, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
				left++
				if first == nil {
					first = err
				}
			}
		}
		if s.restAfter(began) {
			return true, first
		}
	}
	if left == 0 && first == nil {
		first = s.fs.Remove(bucket)
	}
	return false, first
}
