package volume

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/go-multierror"
	"golang.org/x/sync/errgroup"
)

// drainers is how many drives a drain publishes at once.
const drainers = 4

// Drain publishes and pauses every volume that this node has open: when it returns nil, the node can go, and each sandbox can
// go on elsewhere. The drives of one sandbox are cut under one freeze; from then on they take no writes, so the host stops the
// sandboxes before. What fails stays as it is and is named in the error: the call may be repeated. Read-only mounts and volumes
// that are not open are not touched, nor is what is attached while it runs.
func (r *Repository) Drain(ctx context.Context) error {
	open := r.openSessions()
	type owner struct{ tenant, sandbox string }
	groups := map[owner][]*Session{}
	for _, s := range open {
		if s.Err() == nil { // a lost one is kept by other means
			o := owner{s.m.tenant, s.grant.Sandbox}
			groups[o] = append(groups[o], s)
		}
	}
	errs := make(chan error, len(open))
	var g errgroup.Group
	g.SetLimit(drainers)
	for o, drives := range groups {
		g.Go(func() error {
			if err := drain(ctx, drives); err != nil {
				errs <- fmt.Errorf("drain sandbox %s/%s: %w", o.tenant, o.sandbox, err)
			}
			return nil
		})
	}
	_ = g.Wait() // the functions return nil: each sandbox's error is its own
	close(errs)
	all := &multierror.Error{ErrorFormat: inOneLine}
	for err := range errs {
		all = multierror.Append(all, err)
	}
	return all.ErrorOrNil()
}

func inOneLine(errs []error) string {
	lines := make([]string, len(errs))
	for i, err := range errs {
		lines[i] = err.Error()
	}
	return strings.Join(lines, "; ")
}

// drain pauses the drives of one sandbox under one cut.
func drain(ctx context.Context, drives []*Session) (err error) {
	cut := NewCut(Clean, true)
	for _, s := range drives {
		thaw, clean, qerr := s.rest(ctx)
		if qerr != nil {
			return qerr
		}
		if !clean {
			cut.Consistency = Crash
		}
		if thaw != nil {
			// At the very end: what a file system writes before that would be in no cut, and after it finds a closed drive.
			defer func() { err = errors.Join(err, thaw()) }()
		}
	}
	sealed := make([]*Sealed, len(drives))
	for i, s := range drives {
		if sealed[i], err = s.Seal(ctx, cut); err != nil {
			return err
		}
	}
	for i, s := range drives {
		err = errors.Join(err, s.Pause(ctx, sealed[i]))
	}
	return err
}

// rest brings the drive's file systems to rest, if the session knows how; clean says that they are. thaw may be nil.
func (s *Session) rest(ctx context.Context) (thaw func() error, clean bool, err error) {
	q := s.quiesce.Load()
	if q == nil {
		return nil, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	if thaw, err = (*q)(ctx); err != nil {
		return nil, false, fmt.Errorf("freeze the file systems on volume %s: %w", s.grant.Volume, err)
	}
	return thaw, true, nil
}
