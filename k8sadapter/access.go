package k8sadapter

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// access is what a PersistentVolume's access modes allow.
type access int

const (
	readMany  access = iota // many sandboxes read
	writeOnce               // one writes; others may read
	writePod                // one has it, be it for reading
	writeMany               // many write
)

// accessOf returns the most that the access modes allow. A volume that its driver publishes read-only is only read.
func accessOf(pv *corev1.PersistentVolume) access {
	has := func(m corev1.PersistentVolumeAccessMode) bool { return slices.Contains(pv.Spec.AccessModes, m) }
	switch {
	case pv.Spec.CSI != nil && pv.Spec.CSI.ReadOnly:
		return readMany
	case has(corev1.ReadWriteOncePod):
		return writePod
	case has(corev1.ReadWriteMany):
		return writeMany
	case has(corev1.ReadWriteOnce):
		return writeOnce
	}
	return readMany
}

// share is what a mount leaves to other sandboxes.
type share int

const (
	shared share = iota // everything
	writer              // reading
	sole                // nothing
)

// settle decides what a mount is that asks for read-only, or for writing, or does not say (nil). A mount that asks to write
// what is only read is refused, never turned into another.
func (a *Adapter) settle(pv *corev1.PersistentVolume, ask *bool) (readOnly bool, s share, err error) {
	readOnly = ask != nil && *ask
	switch accessOf(pv) {
	case readMany:
		if ask != nil && !*ask {
			return false, shared, refuse(pv.Name, WriteRefused, "can only be read: leave readOnly out or set it")
		}
		return true, shared, nil
	case writePod:
		return readOnly, sole, nil
	case writeMany:
		if a.cfg.Strict && !readOnly {
			return false, writer, nil
		}
		return readOnly, shared, nil
	}
	if readOnly {
		return true, shared, nil
	}
	return false, writer, nil
}

// allows reports whether a mount can be beside another sandbox's use of the same storage.
func (s share) allows(use Use) bool {
	switch s {
	case sole:
		return false
	case writer:
		return use.ReadOnly && !use.Unreadable
	}
	return true
}
