// Package journal is a node's own memory of the volumes that it holds: for each volume of each sandbox an entry, written and
// fsynced before the repository is asked for anything and removed after the volume was given back. After a crash the
// entries say what this node may have asked for, and what it must finish or undo.
//
// An entry goes through these states; each Put replaces the file in one rename:
//
//	asked   epoch 0      the acquire may or may not have landed, and may still land
//	held    epoch > 0    the grant is this node's; local layers are in Dir
//	sealed  Sealed set   a cut is on local disk and is to be published
//	lost    Lost set     somebody else owns the volume; local layers are kept for people
//
// An entry that cannot be read is reported and left alone. The journal does not say who owns a volume: the record does.
package journal
