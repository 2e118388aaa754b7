// Package kubetest runs a real Kubernetes API for tests: an etcd and a kube-apiserver on the loopback interface, with the
// resources of OpenKruise that package k8sadapter reads. It has no nodes and no controllers: nothing binds, mounts or runs.
//
//	dir, err := kubetest.Binaries("../internal/tools/kube/build") // ErrNotBuilt: there are none
//	s, err := kubetest.Start(ctx, dir)
//	defer s.Stop()
//	client, err := dynamic.NewForConfig(s.Config())
//
// The server takes some 300 MB and five seconds to start: one is enough for all tests of a package. PersistentVolumes are
// shared by all of them, so each test gives its own names.
//
// A new PersistentVolume is Pending until a test sets its phase. Protection of volumes in use by an admission plugin is
// off, since there is no controller that would ever end it.
package kubetest
