package volume

// The records that only this package writes, for the tests that keep their format.
type (
	FormatState = formatState
	PinBody     = pinBody
	BeatBody    = beatBody
	Notice      = notice
)
