// Package guestvm boots a real guest kernel in QEMU, under software emulation where there is nothing faster, with drives of this
// project, and tells a tiny init program in it what to do with them over a serial line. It serves tests only.
//
// The kernel is Debian's, from the directory that .ci/kernel prints; the init program is built by the test that needs it.
package guestvm
