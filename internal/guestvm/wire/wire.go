package wire

// Command is what the host asks for. The guest carries out one at a time.
type Command struct {
	ID int    `json:"id"`
	Op string `json:"op"`
	// Serial names a block device: what it says of itself.
	Serial string `json:"serial,omitempty"`
	Path   string `json:"path,omitempty"`
	// ReadOnly is about a mount.
	ReadOnly bool `json:"readOnly,omitempty"`
	// Seed and Size say what a file holds.
	Seed int64 `json:"seed,omitempty"`
	Size int64 `json:"size,omitempty"`
}

// The operations.
const (
	Mount    = "mount"    // the device's file system at the path
	Unmount  = "unmount"  // the path
	Write    = "write"    // a file of that seed and size, fsynced
	Check    = "check"    // that a file has that content
	Create   = "create"   // an empty file
	RawWrite = "rawwrite" // a sector of the device
	Freeze   = "freeze"   // the file system at the path
	Thaw     = "thaw"
	Trim     = "trim"    // what is free in the file system at the path
	Capacity = "size"    // of the device in bytes, in Answer.Count
	Records  = "records" // append 4 KiB records to a file, fsync each, and report each as Acked; until the VM ends
	Count    = "count"   // how many whole records the file has, in Answer.Count
)

// RecordSize is the size of a record in bytes: its number, eight bytes, over and over.
const RecordSize = 4096

// Answer is the end of a command, or a record's fsync.
type Answer struct {
	ID    int    `json:"id"`
	Error string `json:"error,omitempty"`
	Errno int    `json:"errno,omitempty"`
	Count int64  `json:"count,omitempty"`
	// Acked is a record that is on its drive; Path is its file.
	Acked int64  `json:"acked,omitempty"`
	Path  string `json:"path,omitempty"`
}
