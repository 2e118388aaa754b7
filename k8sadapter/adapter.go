package k8sadapter

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sandvol/sandvol/volume"
)

// PersistentVolumes is what the adapter needs of the API server's PersistentVolumes. A clientset's
// CoreV1().PersistentVolumes() has it.
type PersistentVolumes interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.PersistentVolume, error)
	List(ctx context.Context, o metav1.ListOptions) (*corev1.PersistentVolumeList, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
	Update(ctx context.Context, pv *corev1.PersistentVolume, o metav1.UpdateOptions) (*corev1.PersistentVolume, error)
	Delete(ctx context.Context, name string, o metav1.DeleteOptions) error
}

// Leases is what the adapter needs of the leases of one namespace, which no tenant may write. A clientset's
// CoordinationV1().Leases(namespace) has it.
type Leases interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error)
	Create(ctx context.Context, l *coordinationv1.Lease, o metav1.CreateOptions) (*coordinationv1.Lease, error)
	Update(ctx context.Context, l *coordinationv1.Lease, o metav1.UpdateOptions) (*coordinationv1.Lease, error)
	Delete(ctx context.Context, name string, o metav1.DeleteOptions) error
}

// CSIDrivers is what Config.PublishOnly needs of the API server. A clientset's StorageV1().CSIDrivers() has it.
type CSIDrivers interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (*storagev1.CSIDriver, error)
}

// Driver says what a CSI driver can do on the path that mounts into sandboxes.
type Driver struct {
	// SubPathAttribute is the volume attribute that names the directory to mount, "path" for many. Empty: the driver mounts
	// whole volumes only, and a mount with a sub-path is refused, since it would silently show everything.
	SubPathAttribute string
}

// DeleteMode says what deleting a volume does.
type DeleteMode int

const (
	// Unregister takes the labels off and leaves the PersistentVolume, which is the administrator's, alone.
	Unregister DeleteMode = iota
	// DeletePV deletes the PersistentVolume. What becomes of the data is up to its reclaim policy and its provisioner.
	DeletePV
)

// Config has what an Adapter needs, and its policies.
type Config struct {
	PersistentVolumes PersistentVolumes
	Leases            Leases
	// Usage finds who uses which PersistentVolumes. OpenKruise is the one for SandboxClaims and Sandboxes.
	Usage Usage
	// Drivers are the CSI drivers that sandboxes can mount. Others are refused; an empty map allows none.
	Drivers map[string]Driver

	// Delete is Unregister by default.
	Delete DeleteMode
	// Strict gives ReadWriteMany volumes one writer at a time too. Without it many sandboxes may write one, as the access
	// mode says, and coordinate among themselves.
	Strict bool
	// AcceptReleased registers PersistentVolumes whose claim is gone but whose claimRef still names it: the data of whoever
	// had it comes with them.
	AcceptReleased bool
	// PublishOnly refuses drivers that need to attach or stage a volume first. It needs CSIDrivers.
	PublishOnly bool
	CSIDrivers  CSIDrivers
	// SecretNamespaces are the namespaces in which a PersistentVolume may name its secret. Nil: "sandbox-system".
	SecretNamespaces []string
	// CheckSecret, if set, is asked whether a secret that a volume needs exists, and returns an error if not. The adapter
	// never reads one.
	CheckSecret func(ctx context.Context, ref corev1.SecretReference) error
	// MayRegister, if set, decides whether a namespace may register a PersistentVolume that nobody owns yet. Without it any
	// namespace may, as far as the volume's state allows.
	MayRegister func(namespace string, pv *corev1.PersistentVolume) bool
	// CanMount, if set, says whether sandboxes of a runtime class can mount volumes of a driver.
	CanMount func(runtimeClass, driver string) bool
	// MaxMounts is how many mounts a request can have; 0 is DefaultMaxMounts.
	MaxMounts int
	// Protected are paths in the sandbox at, inside and above which nothing may be mounted; nil is DefaultProtected.
	Protected []string
}

// DefaultMaxMounts is how many mounts a request can have.
const DefaultMaxMounts = 16

// DefaultProtected are the paths that a sandbox and its mounts cannot do without.
var DefaultProtected = []string{"/proc", "/sys", "/dev", "/run/csi", "/var/run/csi", "/etc", "/usr", "/bin", "/sbin",
	"/lib", "/lib32", "/lib64", "/libx32", "/mnt/envd"}

// Option changes how an Adapter works.
type Option func(*Adapter)

// WithLogger logs what a tenant must not or need not see. The default discards it. No secret and no attribute of a volume
// is logged.
func WithLogger(l *slog.Logger) Option { return func(a *Adapter) { a.log = l } }

// WithObserver calls f after each operation. It must not block. Package k8sadapter/metrics has one for Prometheus.
func WithObserver(f func(Observation)) Option { return func(a *Adapter) { a.observe = f } }

// WithClock replaces time.Now, for tests.
func WithClock(now func() time.Time) Option { return func(a *Adapter) { a.now = now } }

// Adapter offers PersistentVolumes as volumes. Its methods may be called concurrently, by any number of processes at once.
type Adapter struct {
	cfg     Config
	log     *slog.Logger
	observe func(Observation)
	now     func() time.Time
	cache   *cache
	seen    seen
}

// New returns an adapter. It sends no request before Start.
func New(cfg Config, opts ...Option) (*Adapter, error) {
	if cfg.SecretNamespaces == nil {
		cfg.SecretNamespaces = []string{"sandbox-system"}
	}
	if cfg.Protected == nil {
		cfg.Protected = DefaultProtected
	}
	if cfg.MaxMounts == 0 {
		cfg.MaxMounts = DefaultMaxMounts
	}
	switch {
	case cfg.PersistentVolumes == nil, cfg.Leases == nil, cfg.Usage == nil:
		return nil, fmt.Errorf("%w: Config: PersistentVolumes, Leases and Usage are needed", volume.ErrInvalid)
	case cfg.PublishOnly && cfg.CSIDrivers == nil:
		return nil, fmt.Errorf("%w: Config: PublishOnly needs CSIDrivers", volume.ErrInvalid)
	case cfg.MaxMounts < 0:
		return nil, fmt.Errorf("%w: Config: MaxMounts %d: must not be negative", volume.ErrInvalid, cfg.MaxMounts)
	}
	a := &Adapter{cfg: cfg, log: slog.New(slog.DiscardHandler), observe: func(Observation) {}, now: time.Now}
	for _, o := range opts {
		o(a)
	}
	var err error
	a.cache, err = newCache(cfg.PersistentVolumes, a.log)
	return a, err
}

// Start begins to watch registered PersistentVolumes and returns when all of them are known, or when ctx ends: then the watch
// goes on, and Start can be called again to go on waiting. Close ends the watch; after it Start returns ErrClosed.
func (a *Adapter) Start(ctx context.Context) error { return a.cache.start(ctx) }

// Close ends the watch and waits for it. It can be called several times. From then on volumes are not looked up any more:
// that is ErrClosed. Confirm and Release still work, for requests under way.
func (a *Adapter) Close() { a.cache.close() }

// pause waits a short time, at random, for somebody else to finish.
func pause(ctx context.Context) error {
	timer := time.NewTimer(10*time.Millisecond + rand.N(30*time.Millisecond))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// checkNamespace refuses what no namespace is called. A namespace is a tenant: it comes from the host, not from a request.
func checkNamespace(namespace string) error {
	if len(validation.IsDNS1123Label(namespace)) > 0 {
		return fmt.Errorf("%w: namespace %q: must be a DNS label", volume.ErrInvalid, shorten(namespace))
	}
	return nil
}
