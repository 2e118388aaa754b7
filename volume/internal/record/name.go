package record

import (
	"fmt"
	"regexp"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"github.com/sandvol/sandvol/volume/genlog"
)

// Name is the state of a name: the volume that claimed it last. Whether the claim still holds is in that volume's record.
// Mode, CreatedAt and Origin repeat facts of the volume that never change.
type Name struct {
	Volume    string         `json:"volume"`
	Claim     string         `json:"claim,omitzero"`
	Mode      Mode           `json:"mode,omitzero"`
	CreatedAt time.Time      `json:"createdAt,omitzero"`
	Origin    Origin         `json:"origin,omitzero"`
	Extra     jsontext.Value `json:",embed"`
}

// Claim points a name at a volume. It is appended only as the direct successor of the generation that was judged.
func Claim(n Name) genlog.Op[Name] {
	return genlog.Op[Name]{Name: "claim", Apply: func(s Name) (Name, bool, error) {
		if s.Volume == n.Volume && s.Claim == n.Claim {
			return s, false, nil
		}
		n.Extra = s.Extra
		return n, true, nil
	}}
}

var idPattern = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

// ReservedTenant holds the hidden volumes.
const ReservedTenant = "_"

// CheckID checks a tenant, sandbox, node or volume id that is to become part of a key.
func CheckID(field, value string) error {
	if !idPattern.MatchString(value) {
		return fmt.Errorf("%w: %s %q: must be 1 to 128 characters of A-Z a-z 0-9 _ -", ErrInvalid, field, Shorten(value))
	}
	return nil
}

// Shorten cuts a value that is to be shown in an error: it may be anything.
func Shorten(s string) string {
	const most = 160
	if len(s) <= most {
		return s
	}
	return fmt.Sprintf("%s... (%d bytes)", s[:most], len(s))
}

// CheckName checks a volume name: an id that is not a UUID in any form, so that a name is never taken for an id.
func CheckName(value string) error {
	if err := CheckID("name", value); err != nil {
		return err
	}
	if _, err := uuid.Parse(value); err == nil {
		return fmt.Errorf("%w: name %q: must not be a UUID, volume ids are", ErrInvalid, value)
	}
	return nil
}

// IsVolumeID reports whether the text has the form of a volume id.
func IsVolumeID(s string) bool {
	if len(s) != 36 {
		return false
	}
	_, err := uuid.Parse(s)
	return err == nil
}
