// Package mounttest says what "implements mount.Exposer" means. [Run] holds any exposer to it; a new implementation's
// test is a factory and one call:
//
//	mounttest.Run(t, func(t *testing.T) mounttest.Env {
//		server := newServer(t) // closed by t.Cleanup
//		return mounttest.Env{Exposer: server}
//	})
//
// Env's optional functions say how a client opens what the exposer offers; without them it is a file.
//
// [MemDevice] is the device behind the tests: sparse memory, counters of what reached it, and a hook before each call
// that can fail or delay it. It checks its own contract and panics on none of its callers' mistakes: they get errors,
// as from the engine.
package mounttest
