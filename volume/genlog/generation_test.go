package genlog

import (
	"errors"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
)

const goldenBody = `{"format":1,"minReader":1,"generation":2,"nonce":"B","previous":"A",` +
	`"at":"2026-01-02T03:04:06.5Z","op":"publish","kept":[{"n":1,"nonce":"A","at":"2026-01-02T03:04:05Z"}],` +
	`"state":{"epoch":3,"owner":"s1","tags":["x"]}}`

func goldenGeneration() Generation[register] {
	return Generation[register]{
		Format: 1, MinReader: 1, Number: 2, Nonce: "B", Previous: "A", Op: "publish",
		At:    start.Add(1500 * time.Millisecond),
		Kept:  []Kept{{Number: 1, Nonce: "A", At: start}},
		State: register{Epoch: 3, Owner: "s1", Tags: []string{"x"}},
	}
}

func TestGoldenBody(t *testing.T) {
	body, err := goldenGeneration().encode()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(goldenBody, string(body)); diff != "" {
		t.Errorf("encode: %s", diff)
	}
	g, err := decode[register]("k", 2, []byte(goldenBody))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(goldenGeneration(), g); diff != "" {
		t.Errorf("decode: %s", diff)
	}
}

// open is a state type of a version that carries along what it does not know.
type openState struct {
	Name    string         `json:"name"`
	Unknown jsontext.Value `json:",embed"`
}

const futureBody = `{"format":7,"minReader":1,"generation":1,"nonce":"A","previous":"",` +
	`"at":"2026-01-02T03:04:05Z","op":"x","encryption":{"key":"k1"},"kept":[],` +
	`"state":{"name":"n","color":{"r":1,"a":[null]}},"zone":"b"}`

func TestUnknownMembersAndNewerFormatSurviveARewrite(t *testing.T) {
	f := newFake()
	f.objects[Key(testPrefix, 1)] = []byte(futureBody)
	l := New[openState](f, testPrefix)
	g, err := l.Append(t.Context(), Op[openState]{Name: "rename", Apply: func(s openState) (openState, bool, error) {
		s.Name = "m"
		return s, true, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	read, err := l.Newest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(g, read); diff != "" {
		t.Errorf("returned and stored generation differ: %s", diff)
	}
	if got, want := string(read.Unknown), `{"encryption":{"key":"k1"},"zone":"b"}`; got != want {
		t.Errorf("envelope carried %s, want %s", got, want)
	}
	if got, want := string(read.State.Unknown), `{"color":{"r":1,"a":[null]}}`; got != want {
		t.Errorf("state carried %s, want %s", got, want)
	}
	if read.Format != 7 || read.MinReader != 1 || read.Kept[0].Nonce != "A" {
		t.Errorf("format %d, minReader %d, kept %v", read.Format, read.MinReader, read.Kept)
	}
}

func TestUnreadableBodiesAreNamedAndNeverChanged(t *testing.T) {
	const head = `{"format":1,"minReader":1,"generation":1,"nonce":"A","previous":"",`
	for name, c := range map[string]struct {
		body string
		min  int
	}{
		"newer reader wanted":          {`{"format":9,"minReader":2,"generation":"one"}`, 2},
		"not JSON":                     {`{"format":1`, 0},
		"empty":                        {``, 0},
		"null":                         {`null`, 0},
		"two values":                   {goldenBody + `{}`, 0},
		"member twice":                 {head + `"op":"a","op":"b"}`, 0},
		"unknown member twice":         {head + `"y":1,"y":2}`, 0},
		"state of another type":        {head + `"state":[]}`, 1},
		"no format":                    {`{"minReader":1,"generation":1,"nonce":"A"}`, 1},
		"no minReader":                 {`{"format":1,"generation":1,"nonce":"A"}`, 0},
		"no nonce":                     {`{"format":1,"minReader":1,"generation":1}`, 1},
		"another generation's number":  {goldenBody, 1},
		"first generation with parent": {`{"format":1,"minReader":1,"generation":1,"nonce":"A","previous":"B"}`, 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			key := Key(testPrefix, 1)
			f.objects[key] = []byte(c.body)
			_, err := testLog(f).Append(t.Context(), tagOp("x"))
			var unreadable *UnreadableError
			if !errors.Is(err, ErrUnreadable) || !errors.As(err, &unreadable) {
				t.Fatalf("append: %v, want ErrUnreadable", err)
			}
			if unreadable.Key != key || unreadable.MinReader != c.min {
				t.Errorf("error names %s and minReader %d, want %s and %d", unreadable.Key, unreadable.MinReader, key, c.min)
			}
			if len(f.objects) != 1 || string(f.objects[key]) != c.body {
				t.Errorf("log was changed: %v", f.objects)
			}
		})
	}
}

func TestForeignKeyInALogIsUnreadable(t *testing.T) {
	f := newFake()
	l, _ := filled(t, f, 1)
	f.objects[testPrefix+"0000000000000000.next"] = nil
	if _, err := l.Append(t.Context(), tagOp("x")); !errors.Is(err, ErrUnreadable) {
		t.Errorf("append: %v, want ErrUnreadable", err)
	}
	if _, err := l.Prune(t.Context()); !errors.Is(err, ErrUnreadable) {
		t.Errorf("prune: %v, want ErrUnreadable", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(goldenBody), uint64(2))
	f.Add([]byte(futureBody), uint64(1))
	f.Add([]byte(`{"format":1,"minReader":99}`), uint64(3))
	f.Add([]byte(`null`), uint64(0))
	f.Fuzz(func(t *testing.T, body []byte, n uint64) {
		g, err := decode[openState]("k", n, body)
		if err != nil {
			if !errors.Is(err, ErrUnreadable) {
				t.Fatalf("error of another class: %v", err)
			}
			return
		}
		// What is accepted can be written again and reads the same.
		again, err := g.encode()
		if err != nil {
			t.Fatalf("encode: %v", err)
		}
		h, err := decode[openState]("k", n, again)
		if err != nil {
			t.Fatalf("decode of our own bytes: %v", err)
		}
		if diff := cmp.Diff(g, h); diff != "" {
			t.Fatal(diff)
		}
	})
}
