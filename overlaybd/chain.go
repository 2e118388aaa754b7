package overlaybd

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/sandvol/sandvol/overlaybd/lsmt"
)

// checkParents checks that each layer names the one below it as its parent, if the engine is to. A layer without a uuid
// or without a parent's says nothing.
func (e *Engine) checkParents(layers []layerFacts) error {
	if !e.checkChain {
		return nil
	}
	for i := 1; i < len(layers); i++ {
		parent, below := layers[i].parent, layers[i-1].uuid
		if parent != uuid.Nil && below != uuid.Nil && parent != below {
			detail := fmt.Sprintf("parent is %s, the layer below is %s", parent, below)
			return fmt.Errorf("overlaybd: layer %d of %d (uuid %s): %w", i+1, len(layers), layers[i].uuid,
				&lsmt.CorruptError{Part: "trailer", Detail: detail})
		}
	}
	return nil
}
