// Package wire holds the JSON bodies of the volume API: what E2B's SDKs send and read, and what this API adds to them.
//
// Names are E2B's, letter for letter. An addition is optional in requests and an extra member in responses, which E2B's
// clients ignore. Sizes are in MiB, although the members are called sizeMB, as E2B's memoryMB and diskSizeMB are. The
// package imports nothing: clients can use it without linking the library.
package wire
