package main

// write is one change, and where its end is told.
type write struct {
	entry entry
	// claim says which of the two writes it is.
	claim bool
	done  chan error
}

// committer does in one transaction what has come while the transaction before was flushed.
// Without it, engines that flush each transaction do so 32 times as often.
type committer struct {
	queue   chan write
	stopped chan struct{}
}

// mostAtOnce bounds a transaction.
const mostAtOnce = 512

// newCommitter starts the goroutine that calls commit, until stop.
func newCommitter(commit func([]write) error) *committer {
	c := &committer{queue: make(chan write, mostAtOnce), stopped: make(chan struct{})}
	go func() {
		defer close(c.stopped)
		for first := range c.queue {
			group := []write{first}
			for len(group) < mostAtOnce && len(c.queue) > 0 {
				group = append(group, <-c.queue)
			}
			err := commit(group)
			for _, w := range group {
				w.done <- err
			}
		}
	}()
	return c
}

// keep writes claim and record, each in a transaction that is committed before the next.
func (c *committer) keep(e entry) error {
	for _, claim := range []bool{true, false} {
		w := write{entry: e, claim: claim, done: make(chan error, 1)}
		c.queue <- w
		if err := <-w.done; err != nil {
			return err
		}
	}
	return nil
}

func (c *committer) stop() {
	close(c.queue)
	<-c.stopped
}
