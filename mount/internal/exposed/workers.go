package exposed

import "sync"

// Workers carry out the requests of one client, a bounded number of them at once, in any order.
type Workers[R any] struct {
	do      func(R)
	most    int
	started int
	work    chan R
	running sync.WaitGroup
}

// NewWorkers returns workers that do requests, most of them at once. Stop is to be called in the end.
func NewWorkers[R any](most int, do func(R)) *Workers[R] {
	return &Workers[R]{do: do, most: most, work: make(chan R)}
}

// Add hands a request over, waiting while all workers have one. Only one goroutine adds.
func (w *Workers[R]) Add(r R) {
	select {
	case w.work <- r: // one of them is idle
		return
	default:
	}
	if w.started < w.most {
		w.started++
		w.running.Go(func() {
			for r := range w.work {
				w.do(r)
			}
		})
	}
	w.work <- r
}

// Stop waits until every request is done. Nothing may be added after it.
func (w *Workers[R]) Stop() {
	close(w.work)
	w.running.Wait()
}
