package mount

import (
	"strings"

	"github.com/hashicorp/go-multierror"
)

// failures collects what went wrong with each of several drives, so that all of them are named, in one line.
func failures() *multierror.Error {
	return &multierror.Error{ErrorFormat: func(errs []error) string {
		lines := make([]string, len(errs))
		for i, err := range errs {
			lines[i] = err.Error()
		}
		return strings.Join(lines, "; ")
	}}
}
