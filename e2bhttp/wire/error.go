package wire

// Error is the body of every answer that is not a success. Code equals the HTTP status: E2B's clients look at either.
type Error struct {
	Code      int    `json:"code"`
	Message   string `json:"message"`
	ErrorCode string `json:"error_code,omitzero"`
}

// The closed list of error codes.
const (
	InvalidName         = "invalid_name"
	InvalidSize         = "invalid_size"
	InvalidPath         = "invalid_path"
	UnsupportedMode     = "unsupported_mode"
	Unsupported         = "unsupported"
	VolumeNotFound      = "volume_not_found"
	SnapshotNotFound    = "snapshot_not_found"
	NameTaken           = "name_taken"
	VolumeInUse         = "volume_in_use"
	VolumeNotReady      = "volume_not_ready"
	VolumeFailed        = "volume_failed"
	VolumeDeleting      = "volume_deleting"
	NotClean            = "not_clean"
	FlushUnavailable    = "flush_unavailable"
	QuotaExceeded       = "quota_exceeded"
	IdempotencyMismatch = "idempotency_mismatch"
	UnreadableRecord    = "unreadable_record"
	StoreUnavailable    = "store_unavailable"
)

// ErrorCodes returns the closed list.
func ErrorCodes() []string {
	return []string{InvalidName, InvalidSize, InvalidPath, UnsupportedMode, Unsupported, VolumeNotFound, SnapshotNotFound,
		NameTaken, VolumeInUse, VolumeNotReady, VolumeFailed, VolumeDeleting, NotClean, FlushUnavailable, QuotaExceeded,
		IdempotencyMismatch, UnreadableRecord, StoreUnavailable}
}

// ContentError is the body of answers under /volumecontent, where E2B's Code is a string.
type ContentError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}
