package ext4_test

import (
	"flag"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if withRace {
		given := false
		flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
		if !given {
			flag.Set("rapid.checks", "30")
		}
	}
	os.Exit(m.Run())
}
