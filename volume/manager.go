package volume

import (
	"fmt"

	"github.com/sandvol/sandvol/volume/genlog"
	"github.com/sandvol/sandvol/volume/internal/record"
)

// Manager is one tenant's view of a repository. Other tenants' volumes do not exist for it: an id of theirs is ErrNotFound,
// because it is looked up under this tenant.
type Manager struct {
	r      *Repository
	tenant string
}

// Tenant returns the manager of a tenant: 1 to 128 characters of A-Z a-z 0-9 _ -. The tenant "_" is reserved.
func (r *Repository) Tenant(name string) (*Manager, error) {
	if err := record.CheckID("tenant", name); err != nil {
		return nil, err
	}
	if name == record.ReservedTenant {
		return nil, fmt.Errorf("%w: tenant %q is reserved", ErrInvalid, name)
	}
	return &Manager{r: r, tenant: name}, nil
}

// hidden is the manager of the hidden volumes.
func (r *Repository) hidden() *Manager { return &Manager{r: r, tenant: record.ReservedTenant} }

// Name returns the tenant's name.
func (m *Manager) Name() string { return m.tenant }

// Repository returns the repository that the manager is a view of.
func (m *Manager) Repository() *Repository { return m.r }

func (m *Manager) volumeLog(id string) *genlog.Log[record.Volume] { return m.r.volumeLog(m.tenant, id) }

// OpenSandboxLog returns the log of a sandbox's drive sets, for package mount. S is the state that it keeps there.
func OpenSandboxLog[S any](m *Manager, sandbox string) (*genlog.Log[S], error) {
	if err := record.CheckID("sandbox", sandbox); err != nil {
		return nil, err
	}
	return genlog.New[S](m.r.store, sandboxesPrefix+m.tenant+"/"+sandbox+"/", m.r.logOptions()...), nil
}
