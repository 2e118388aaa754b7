package mount

import (
	"context"
	"fmt"
	"time"
)

// TimeoutError says that the kernel did not answer in time, or that the caller's context ended first. It is
// ErrTimeout, and its cause.
type TimeoutError struct {
	Op    string        // what was asked of the kernel, with its object
	Limit time.Duration // the time limit in force
	Cause error         // context.DeadlineExceeded for the limit, else what ended the context
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("%s: no answer (limit %v): %v", e.Op, e.Limit, e.Cause)
}

// Unwrap answers errors.Is for ErrTimeout and for the cause.
func (e *TimeoutError) Unwrap() []error { return []error{ErrTimeout, e.Cause} }

// grace is how long a call may take to notice that its time is over.
const grace = 100 * time.Millisecond

// within runs fn, which may hang in the kernel where no signal reaches it, and stops waiting at the limit or when ctx
// ends. The context that fn gets has ended by then. What fn returns too late goes to undo.
func within[T any](
	ctx context.Context, limit time.Duration, op string, fn func(context.Context) (T, error), undo func(T),
) (T, error) {
	type answer struct {
		value T
		err   error
	}
	var none T
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if ctx.Err() != nil {
		return none, &TimeoutError{Op: op, Limit: limit, Cause: ctx.Err()}
	}
	answers := make(chan answer, 1)
	go func() {
		value, err := fn(ctx)
		answers <- answer{value, err}
	}()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
	}
	// A call that is not stuck in the kernel sees the same end, and has more to say about it.
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-timer.C:
	}
	go func() {
		if a := <-answers; a.err == nil {
			undo(a.value)
		}
	}()
	return none, &TimeoutError{Op: op, Limit: limit, Cause: ctx.Err()}
}

// do is within for calls that have no result.
func do(ctx context.Context, limit time.Duration, op string, fn func(context.Context) error) error {
	call := func(ctx context.Context) (struct{}, error) { return struct{}{}, fn(ctx) }
	_, err := within(ctx, limit, op, call, func(struct{}) {})
	return err
}

// poll calls ready until it returns true or an error, at growing intervals, or until ctx ends.
func poll(ctx context.Context, ready func() (bool, error)) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if ok, err := ready(); ok || err != nil {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}
