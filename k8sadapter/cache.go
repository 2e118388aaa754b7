package k8sadapter

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
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

	mu      sync.Mutex
	cancel  context.CancelFunc // nil before start
	stopped chan struct{}
}

func newCache(pvs PersistentVolumes) (*cache, error) {
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
	return &cache{informer: informer, stopped: make(chan struct{})}, err
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

func (c *cache) start(ctx context.Context) error {
	c.mu.Lock()
	if c.cancel != nil {
		c.mu.Unlock()
		return unavailable("watch PersistentVolumes", errStarted)
	}
	run, cancel := context.WithCancel(context.Background()) // it outlives ctx, and ends with close
	c.cancel = cancel
	c.mu.Unlock()
	go func() {
		defer close(c.stopped)
		c.informer.RunWithContext(run)
	}()
	if !clientcache.WaitForCacheSync(ctx.Done(), c.informer.HasSynced) {
		return unavailable("watch PersistentVolumes", context.Cause(ctx))
	}
	return nil
}

func (c *cache) close() {
	c.mu.Lock()
	cancel := c.cancel
	if cancel == nil {
		c.cancel = func() {} // a later start is refused
	}
	c.mu.Unlock()
	if cancel == nil {
		return
	}
	cancel()
	<-c.stopped
}

// check refuses reads before everything is known: a volume that is not there yet would be reported as missing.
func (c *cache) check() error {
	if !c.informer.HasSynced() {
		return unavailable("list PersistentVolumes", errNotSynced)
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

type constError string

func (e constError) Error() string { return string(e) }

const (
	errStarted   = constError("the adapter was started or closed before")
	errNotSynced = constError("not all are known yet")
)
