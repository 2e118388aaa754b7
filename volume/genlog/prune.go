package genlog

import (
	"context"
	"fmt"
)

// Prune removes what the newest generation does not keep, ghosts included, and returns how many objects it removed.
// It may run at any time, on several nodes at once, and be stopped anywhere.
//
// It needs no comparison of nonces: a slot whose number the newest generation keeps was never pruned, since what older
// prunings went by kept it too, so no ghost can be in it.
func (l *Log[S]) Prune(ctx context.Context) (removed int, err error) {
	// One listing: whatever is appended from here on lies above what it shows, and is not touched.
	var numbers []uint64
	for entry, err := range l.st.List(ctx, l.prefix, "", 0) {
		if err != nil {
			return 0, fmt.Errorf("prune %s: %w", l.prefix, err)
		}
		n, err := l.number(entry.Key)
		if err != nil {
			return 0, fmt.Errorf("prune %s: %w", l.prefix, err)
		}
		numbers = append(numbers, n)
	}
	if len(numbers) == 0 || numbers[0] <= l.always {
		return 0, nil
	}
	newest, err := l.Read(ctx, numbers[0])
	if err != nil {
		return 0, fmt.Errorf("prune %s: %w", l.prefix, err)
	}
	// Oldest first, so that a pruning that is stopped leaves no more gaps than before.
	for i := len(numbers) - 1; i >= 0; i-- {
		n := numbers[i]
		if _, kept := newest.Keeps(n); kept || newest.Number-n < l.always {
			continue
		}
		if err := l.st.Delete(ctx, Key(l.prefix, n)); err != nil {
			return removed, fmt.Errorf("prune %s: %w", l.prefix, err)
		}
		removed++
	}
	return removed, nil
}

// pruneAfter hands one pruning to the background runner, once per 32 generations, after generation n was appended here.
func (l *Log[S]) pruneAfter(n uint64) {
	if l.background == nil || n%l.every != 0 || n <= l.always {
		return
	}
	l.background(func(ctx context.Context) {
		// A failed pruning has no consequence but space, and the next one does its work again.
		_, _ = l.Prune(ctx)
	})
}
