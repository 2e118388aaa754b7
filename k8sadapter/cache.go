package k8sadapter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clientcache "k8s.io/client-go/tools/cache"
)

// The indexes. Without them each list would look at every registered PersistentVolume of the cluster.
const (
	byOwner  = "owner"
	byName   = "name"
	byHandle = "handle"
)

// cache has the registered PersistentVolumes as a watch brings them: a little late. Reads are answered from it; whatever
// decides about a volume reads it from the API server.
type cache struct {
	informer clientcache.SharedIndexInformer
	log      *slog.Logger
	stopped  chan struct{}

	mu     sync.Mutex
	cancel context.CancelFunc // nil before start
	closed bool
	fault  error // why the watch was interrupted last
}

func newCache(pvs PersistentVolumes, log *slog.Logger) (*cache, error) {
	// The server sends only what has an owner: a cluster has many other PersistentVolumes.
	lw := &clientcache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = OwnerLabel
			return pvs.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = OwnerLabel
			return pvs.Watch(ctx, o)
		},
	}
	// A client that cannot stream the first list, such as a fake one, says so.
	source := clientcache.ToListWatcherWithWatchListSemantics(lw, pvs)
	informer := clientcache.NewSharedIndexInformerWithOptions(source, &corev1.PersistentVolume{},
		clientcache.SharedIndexInformerOptions{Indexers: clientcache.Indexers{
			byOwner:  indexed(func(pv *corev1.PersistentVolume) string { return pv.Labels[OwnerLabel] }),
			byName:   indexed(func(pv *corev1.PersistentVolume) string { return nameKey(pv.Labels[OwnerLabel], pv.Labels[NameLabel]) }),
			byHandle: indexed(handleKey),
		}})
	// Half of an object is who changed which field when. Nothing here asks.
	err := informer.SetTransform(func(o any) (any, error) {
		if pv, ok := o.(*corev1.PersistentVolume); ok {
			pv.ManagedFields = nil
		}
		return o, nil
	})
	c := &cache{informer: informer, log: log, stopped: make(chan struct{})}
	return c, errors.Join(err, informer.SetWatchErrorHandlerWithContext(c.interrupted))
}

// interrupted is told why the watch or its first list failed; it is tried again. Start reports the newest reason.
func (c *cache) interrupted(ctx context.Context, _ *clientcache.Reflector, err error) {
	if errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return // a watch does not last for ever
	}
	c.mu.Lock()
	c.fault = err
	c.mu.Unlock()
	c.log.WarnContext(ctx, "the watch of PersistentVolumes is interrupted", "error", err)
}

// indexed is an index by a key; an empty key is not indexed, and neither is what is not registered.
func indexed(key func(*corev1.PersistentVolume) string) clientcache.IndexFunc {
	return func(o any) ([]string, error) {
		pv, ok := o.(*corev1.PersistentVolume)
		if !ok || !registered(pv) {
			return nil, nil
		}
		if k := key(pv); k != "" {
			return []string{k}, nil
		}
		return nil, nil
	}
}

func nameKey(namespace, name string) string { return namespace + "/" + name }

func handleKey(pv *corev1.PersistentVolume) string {
	if pv.Spec.CSI == nil {
		return ""
	}
	return pv.Spec.CSI.Driver + "\x00" + pv.Spec.CSI.VolumeHandle
}

// start begins the watch, once, and waits until all is known.
func (c *cache) start(ctx context.Context) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return ErrClosed
	}
	if c.cancel == nil {
		run, cancel := context.WithCancel(context.Background()) // it outlives ctx, and ends with close
		c.cancel = cancel
		go func() {
			defer close(c.stopped)
			c.informer.RunWithContext(run)
		}()
	}
	c.mu.Unlock()
	if clientcache.WaitForCacheSync(ctx.Done(), c.informer.HasSynced) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	err := context.Cause(ctx)
	if c.fault != nil {
		err = fmt.Errorf("%w; last: %w", err, c.fault)
	}
	return unavailable("watch PersistentVolumes", err)
}

func (c *cache) close() {
	c.mu.Lock()
	cancel := c.cancel
	c.closed = true
	c.mu.Unlock()
	if cancel == nil {
		return
	}
	cancel()
	<-c.stopped
}

// check refuses reads before everything is known: a volume that is not there yet would be reported as missing. And it refuses
// them after close, when nothing new becomes known.
func (c *cache) check() error {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	switch {
	case closed:
		return ErrClosed
	case !c.informer.HasSynced():
		return unavailable("look volumes up", errNotSynced)
	}
	return nil
}

// byID returns the PersistentVolume of a name, nil if there is none.
func (c *cache) byID(name string) *corev1.PersistentVolume {
	o, ok, err := c.informer.GetIndexer().GetByKey(name)
	if err != nil || !ok {
		return nil
	}
	pv, _ := o.(*corev1.PersistentVolume)
	return pv
}

// all returns what an index has under a key. They are shared: whoever changes one copies it.
func (c *cache) all(index, key string) []*corev1.PersistentVolume {
	objects, err := c.informer.GetIndexer().ByIndex(index, key)
	if err != nil {
		return nil // the index does not exist: a mistake in this package
	}
	pvs := make([]*corev1.PersistentVolume, 0, len(objects))
	for _, o := range objects {
		if pv, ok := o.(*corev1.PersistentVolume); ok {
			pvs = append(pvs, pv)
		}
	}
	return pvs
}

// errNotSynced: Start was not called, or has not returned yet.
var errNotSynced = errors.New("not all PersistentVolumes are known yet: Start has not returned")
