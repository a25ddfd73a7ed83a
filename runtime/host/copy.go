package host

import (
	"context"
	"fmt"
	"io"

	"pinfold/runtime"
)

// CopyOut implements runtime.Host.
func (h *Host) CopyOut(ctx context.Context, id, path string, w io.Writer) error {
	return fmt.Errorf("cannot copy out of instance %s: %w", id, runtime.ErrUnsupported)
}

// CopyIn implements runtime.Host.
func (h *Host) CopyIn(ctx context.Context, id, path string, r io.Reader) error {
	return fmt.Errorf("cannot copy into instance %s: %w", id, runtime.ErrUnsupported)
}
