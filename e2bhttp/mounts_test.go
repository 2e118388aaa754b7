package e2bhttp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/e2bhttp"
	"github.com/sandvol/sandvol/e2bhttp/wire"
	"github.com/sandvol/sandvol/mount"
	"github.com/sandvol/sandvol/volume"
	"github.com/sandvol/sandvol/volume/store/memstore"
)

// shelf is a repository with a few volumes of each kind.
type shelf struct {
	*api
	data, other, set string // ids; set is ro
}

func newShelf(t testing.TB, opts ...e2bhttp.Option) shelf {
	a := newAPI(t, opts...)
	s := shelf{api: a, data: a.create("data").VolumeID, other: a.create("other").VolumeID}
	s.set = a.do("POST", "/volumes", `{"name":"set","mode":"ro","source":{"volumeID":"other"}}`).is(201).volume().VolumeID
	return s
}

// mounts resolves a body and shows the result.
func (s shelf) mounts(r e2bhttp.MountRules, body string) ([]string, error) {
	entries, err := r.Decode([]byte(body))
	if err != nil {
		return nil, err
	}
	found, err := r.Resolve(context.Background(), s.manager(red), entries, "")
	var shown []string
	for _, m := range found {
		line := m.Path + "=" + m.Volume.Name
		if m.ReadOnly {
			line += " ro"
		}
		if m.SubPath != "" {
			line += " " + m.SubPath
		}
		shown = append(shown, line)
	}
	return shown, err
}

func (s shelf) expand(body string) string {
	return strings.NewReplacer("$DATA", s.data, "$OTHER", s.other, "$SET", s.set).Replace(body)
}

// each form that a client sends names the same mounts.
func TestMountShapes(t *testing.T) {
	s := newShelf(t)
	for shape, c := range map[string]struct{ body, want string }{
		"S0 absent":        {`{"templateID":"base"}`, ""},
		"S0 null":          {`{"volumeMounts":null,"volume_mounts":null}`, ""},
		"S0 array":         {`{"volumeMounts":[]}`, ""},
		"S0 object":        {`{"volumeMounts":{}}`, ""},
		"S1 array":         {`{"volumeMounts":[{"name":"data","path":"/mnt/data"}]}`, "/mnt/data=data"},
		"S1 extra members": {`{"volumeMounts":[{"name":"data","path":"/mnt/data","x":{"y":[1]},"token":"t"}]}`, "/mnt/data=data"},
		"S2 id as name":    {`{"volumeMounts":[{"name":"$DATA","path":"/mnt/data"}]}`, "/mnt/data=data"},
		"S3 map of ids":    {`{"volumeMounts":{"/mnt/data":"$DATA","/b":"$SET"}}`, "/mnt/data=data,/b=set ro"},
		"S4 map of names":  {`{"volumeMounts":{"/mnt/data":"data"}}`, "/mnt/data=data"},
		"S5 map of objects": {`{"volumeMounts":{"/mnt/data":{"name":"data","volumeID":"$DATA","volumeId":"$DATA","token":"secret"}}}`,
			"/mnt/data=data"},
		"S5 only an id":       {`{"volumeMounts":{"/mnt/data":{"volumeId":"$DATA"}}}`, "/mnt/data=data"},
		"S6 snake":            {`{"volume_mounts":[{"volumeID":"$DATA","mountPath":"/data","readOnly":false}]}`, "/data=data"},
		"S6 read-only":        {`{"volume_mounts":[{"volume_id":"$DATA","mount_path":"/data","read_only":true}]}`, "/data=data ro"},
		"S6 under camel":      {`{"volumeMounts":[{"volumeID":"$DATA","mountPath":"/data"}],"volume_mounts":[]}`, "/data=data"},
		"S7 off":              {`{"metadata":{"` + e2bhttp.MetadataMounts + `":"[{\"pvName\":\"data\",\"mountPath\":\"/d\"}]"}}`, ""},
		"ro and mode":         {`{"volumeMounts":[{"name":"set","path":"/d","mode":"ro","readOnly":true}]}`, "/d=set ro"},
		"ro volume twice":     {`{"volumeMounts":{"/a":"set","/b":"set"}}`, "/a=set ro,/b=set ro"},
		"names inside others": {`{"volumeMounts":{"/a":"data","/ab":"other"}}`, "/a=data,/ab=other"},
		"duplicates elsewhere": {`{"x":1,"x":2,"envVars":{"A":"1","A":"2"},"volumeMounts":[{"name":"data","path":"/d"}]}`,
			"/d=data"},
	} {
		t.Run(shape, func(t *testing.T) {
			got, err := s.mounts(e2bhttp.MountRules{}, s.expand(c.body))
			if err != nil || strings.Join(got, ",") != c.want {
				t.Errorf("mounts %q, %v; want %q", got, err, c.want)
			}
		})
	}
}

// A-129, and D-01: what is wrong is 400 with a reason, and a volume that is not there is 400 too.
func TestWrongMountsAreRefused(t *testing.T) {
	s := newShelf(t)
	for _, c := range []struct{ body, code, message string }{
		{`[]`, "", "JSON object"}, {``, "", "JSON object"}, {`{"volumeMounts":[}`, "", "valid JSON"}, {`{} {}`, "", "behind"},
		{`{"volumeMounts":"x"}`, "", "array or an object"}, {`{"volumeMounts":true}`, "", "array or an object"},
		{`{"volumeMounts":[1]}`, "", "must be an object"}, {`{"volumeMounts":[{}]}`, wire.InvalidPath, "missing"},
		{`{"volumeMounts":[{"path":"/a"}]}`, "", "names no volume"}, {`{"volumeMounts":[{"name":"data"}]}`, wire.InvalidPath, "missing"},
		{`{"volumeMounts":{"/a":""}}`, wire.VolumeNotFound, "names no volume"}, {`{"volumeMounts":{"/a":7}}`, "", "must be an object"},
		{`{"volumeMounts":{"/a":"data","/a":"other"}}`, "", "twice"},
		{`{"volumeMounts":[{"name":"data","name":"other","path":"/a"}]}`, "", "twice"},
		{`{"volumeMounts":[],"volumeMounts":[]}`, "", "twice"},
		{`{"volumeMounts":{"/a":"data"},"volume_mounts":[{"volumeID":"$OTHER","mountPath":"/b"}]}`, "", "only one"},
		{`{"volumeMounts":{"/a":"nobody"}}`, wire.VolumeNotFound, "nobody"}, {`{"volumeMounts":{"/a":"../x"}}`, wire.VolumeNotFound, "../x"},
		{`{"volume_mounts":[{"volumeID":"data","mountPath":"/a"}]}`, wire.VolumeNotFound, "data"}, // a name where an id belongs
		{`{"volumeMounts":[{"name":"data","volumeID":"$OTHER","path":"/a"}]}`, "", "two volumes"},
		{`{"volumeMounts":[{"name":"data","path":"/a","mountPath":"/b"}]}`, wire.InvalidPath, "mountPath"},
		{`{"volumeMounts":{"/a":{"name":"data","path":"/b"}}}`, wire.InvalidPath, "two paths"},
		{`{"volumeMounts":[{"name":"data","path":"/a","readOnly":"yes"}]}`, "", "readOnly"},
		{`{"volumeMounts":[{"name":"data","path":"/a","readOnly":true,"read_only":false}]}`, "", "read_only"},
		{`{"volumeMounts":[{"name":"set","path":"/a","readOnly":false}]}`, wire.UnsupportedMode, "ro"},
		{`{"volumeMounts":[{"name":"data","path":"/a","mode":"ro"}]}`, wire.UnsupportedMode, "for life"},
		{`{"volumeMounts":[{"name":"data","path":"/a","mode":"shared-write"}]}`, wire.UnsupportedMode, "shared-write"},
		{`{"volumeMounts":[{"name":"data","path":"/a","subPath":"x"}]}`, wire.Unsupported, "subPath"},
		{`{"volumeMounts":{"/a":"data","/b":"data"}}`, "", "too"}, {`{"volumeMounts":[{"name":"data","path":"/a"},{"name":"other","path":"/a"}]}`, wire.InvalidPath, "/a"},
		{`{"volumeMounts":{"/a":"data","/a/b":"other"}}`, wire.InvalidPath, "/a/b"}, {`{"volumeMounts":{"/a/b":"data","/a":"other"}}`, wire.InvalidPath, "/a"},
		{`{"metadata":[],"volumeMounts":7}`, "", "array or an object"},
	} {
		_, err := s.mounts(e2bhttp.MountRules{}, s.expand(c.body))
		if !errors.Is(err, volume.ErrInvalid) || !errors.Is(err, e2bhttp.ErrMounts) {
			t.Errorf("%s: %v", c.body, err)
			continue
		}
		if e := e2bhttp.ErrorBody(err); e.Code != 400 || e.ErrorCode != c.code || !strings.Contains(e.Message, c.message) ||
			!strings.HasPrefix(e.Message, "invalid mounts:\n") {
			t.Errorf("%s: %+v, want code %q and %q", c.body, e, c.code, c.message)
		}
	}
}

func TestMountPaths(t *testing.T) {
	s := newShelf(t)
	rules := e2bhttp.MountRules{Reserved: []string{"/opt/agent/"}}
	for p, ok := range map[string]bool{
		"/a": true, "/mnt/data": true, "/devil": true, "/opt": true, "/opt/agents": true, "/ä": true, "/a.b-c_d": true,
		"": false, "a": false, "/": false, "/a/": false, "//a": false, "/a/../b": false, "/a/.": false, "/..": false,
		"/a b": false, "/a,b": false, "/a:b": false, `/a\b`: false, "/a\u0000": false, "/a\u007f": false,
		"/proc": false, "/proc/x": false, "/sys": false, "/dev/shm": false, "/run": false, "/opt/agent": false, "/opt/agent/x": false,
		"/" + strings.Repeat("x", 256): false, strings.Repeat("/x", 600): false,
	} {
		quoted, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.mounts(rules, fmt.Sprintf(`{"volumeMounts":[{"name":"data","path":%s}]}`, quoted))
		if (err == nil) != ok {
			t.Errorf("path %q: %v, want ok %v", p, err, ok)
		}
		if err != nil && e2bhttp.ErrorBody(err).ErrorCode != wire.InvalidPath {
			t.Errorf("path %q: %+v", p, e2bhttp.ErrorBody(err))
		}
	}
}

// Every bad entry is reported, with where it is; a request that is wrong is 400 even if a volume in it is held too.
func TestAllBadMountsAreReportedAtOnce(t *testing.T) {
	s := newShelf(t)
	if _, err := s.manager(red).Attach(context.Background(), "other", "sandbox-9"); err != nil {
		t.Fatal(err)
	}
	_, err := s.mounts(e2bhttp.MountRules{}, `{"volumeMounts":[{"name":"nobody","path":"/a"},{"name":"other","path":"/b"},
		{"name":"data","path":"relative"},{"name":"set","path":"/a"}]}`)
	e := e2bhttp.ErrorBody(err)
	lines := strings.Split(e.Message, "\n")
	if e.Code != 400 || len(lines) != 5 {
		t.Fatalf("%+v", e)
	}
	for i, want := range []string{"invalid mounts:", "[0]: volume \"nobody\" not found", "sandbox-9", "[2]: path \"relative\"", "volumeMounts[0]"} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("line %d is %q, want %q", i, lines[i], want)
		}
	}
}

// a volume that is held or not ready is a conflict, and the answer says by whom or why.
func TestHeldAndUnreadyVolumesAreConflicts(t *testing.T) {
	s := newShelf(t)
	if _, err := s.manager(red).Attach(context.Background(), "data", "sandbox-1"); err != nil {
		t.Fatal(err)
	}
	body := `{"volumeMounts":{"/a":"data"}}`
	_, err := s.mounts(e2bhttp.MountRules{}, body)
	e := e2bhttp.ErrorBody(err)
	if e.Code != 409 || e.ErrorCode != wire.VolumeInUse || !strings.Contains(e.Message, "sandbox-1") || !errors.Is(err, volume.ErrConflict) {
		t.Errorf("%+v, %v", e, err)
	}
	entries, err := e2bhttp.MountRules{}.Decode([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (e2bhttp.MountRules{}).Resolve(context.Background(), s.manager(red), entries, "sandbox-1"); err != nil {
		t.Errorf("its own volume: %v", err)
	}
	for status, code := range map[volume.Status]string{volume.StatusUploading: wire.VolumeNotReady, volume.StatusFailed: wire.VolumeFailed,
		volume.StatusDeleting: wire.VolumeDeleting, volume.StatusUnreadable: wire.UnreadableRecord} {
		one := fixed{v: volume.Volume{ID: "id", Name: "data", Status: status}}
		_, err := e2bhttp.MountRules{}.Resolve(context.Background(), one, entries, "")
		if e := e2bhttp.ErrorBody(err); e.Code != 409 || e.ErrorCode != code {
			t.Errorf("%s: %+v", status, e)
		}
	}
	down := fixed{err: fmt.Errorf("%w: no answer", volume.ErrUnavailable)}
	if _, err := (e2bhttp.MountRules{}).Resolve(context.Background(), down, entries, ""); !errors.Is(err, volume.ErrUnavailable) {
		t.Errorf("store down: %v", err)
	}
}

// fixed answers every Get alike.
type fixed struct {
	e2bhttp.Volumes
	v   volume.Volume
	err error
}

func (f fixed) Get(context.Context, string) (volume.Volume, error) { return f.v, f.err }

// another tenant's volume cannot be mounted, and the answer is that for one that never was.
func TestForeignVolumesCannotBeMounted(t *testing.T) {
	s := newShelf(t)
	for _, body := range []string{`{"volumeMounts":{"/a":"$DATA"}}`, `{"volumeMounts":{"/a":"data"}}`, `{"volume_mounts":[{"volumeID":"$DATA","path":"/a"}]}`} {
		entries, err := e2bhttp.MountRules{}.Decode([]byte(s.expand(body)))
		if err != nil {
			t.Fatal(err)
		}
		_, err = e2bhttp.MountRules{}.Resolve(context.Background(), s.manager(blue), entries, "")
		if e := e2bhttp.ErrorBody(err); e.Code != 400 || e.ErrorCode != wire.VolumeNotFound {
			t.Errorf("%s: %+v", body, e)
		}
	}
}

// OpenKruise's metadata form, where the host turns it on: merged with volumeMounts; what contradicts is refused.
func TestMetadataMounts(t *testing.T) {
	s := newShelf(t)
	meta := func(list, mounts string) string {
		return fmt.Sprintf(`{"volumeMounts":%s,"metadata":{"a":"b",%q:%q}}`, mounts, e2bhttp.MetadataMounts, s.expand(list))
	}
	rules := e2bhttp.MountRules{Metadata: true, SubPaths: true}
	got, err := s.mounts(rules, meta(`[{"pvName":"$DATA","mountPath":"/d","subPath":"a/b","readOnly":true}]`, `{"/s":"set"}`))
	if diff := cmp.Diff([]string{"/s=set ro", "/d=data ro a/b"}, got); diff != "" || err != nil {
		t.Errorf("%v: %s", err, diff)
	}
	if got, err := s.mounts(rules, meta(`[{"pvName":"data","mountPath":"/d"}]`, `[{"name":"data","path":"/d"}]`)); err != nil || len(got) != 1 {
		t.Errorf("the same twice: %v, %v", got, err)
	}
	for _, body := range []string{
		meta(`[{"pvName":"data","mountPath":"/d","readOnly":true}]`, `[{"name":"data","path":"/d"}]`),
		meta(`[{"pvName":"data","mountPath":"/e"}]`, `[{"name":"data","path":"/d"}]`),
		meta(`[{"pvName":"data","mountPath":"/d","subPath":"../x"}]`, `[]`), meta(`[{"pvName":"data","mountPath":"/d","subPath":"/x"}]`, `[]`),
		meta(`[{"mountPath":"/d"}]`, `[]`), meta(`[{"pvName":"data"}]`, `[]`), meta(`{}`, `[]`), meta(`not json`, `[]`), meta(`[1`, `[]`),
		`{"metadata":{"` + e2bhttp.MetadataMounts + `":[]}}`, `{"metadata":7}`,
	} {
		if _, err := s.mounts(rules, body); !errors.Is(err, volume.ErrInvalid) {
			t.Errorf("%s: %v", body, err)
		}
	}
	if _, err := s.mounts(e2bhttp.MountRules{Max: 1}, `{"volumeMounts":{"/a":"data","/b":"other"}}`); !errors.Is(err, volume.ErrInvalid) {
		t.Errorf("too many: %v", err)
	}
}

// the middleware serves any path, passes the body on, and answers what is wrong itself.
func TestMountsMiddleware(t *testing.T) {
	s := newShelf(t)
	host := http.NewServeMux()
	create := s.h.Mounts(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Context().Err() != nil {
			t.Error(err, r.Context().Err())
		}
		answer, err := e2bhttp.AddMounts([]byte(`{"sandboxID":"i1","body":`+fmt.Sprintf("%q", body)+`}`), e2bhttp.ShowMounts(e2bhttp.MountsFrom(r.Context())))
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Tenant", e2bhttp.TenantFrom(r.Context()))
		_, _ = w.Write(answer)
	}))
	host.Handle("POST /sandboxes", create)
	host.Handle("POST /v2/sandboxes", create)
	host.Handle("GET /sandboxes/{id}", s.h.Authenticate(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e2bhttp.WriteError(w, fmt.Errorf("sandbox %s of %s: %w", r.PathValue("id"), e2bhttp.TenantFrom(r.Context()), volume.ErrNotFound))
	})))
	srv := httptest.NewServer(host)
	t.Cleanup(srv.Close)
	s.url = srv.URL
	for _, path := range []string{"/sandboxes", "/v2/sandboxes"} {
		body := `{"templateID":"base","volumeMounts":[{"name":"data","path":"/mnt/data"}]}`
		r := s.do("POST", path, body).is(200)
		got := read[struct {
			SandboxID, Body string
			VolumeMounts    []wire.VolumeMount
		}](r)
		want := []wire.VolumeMount{{Name: "data", Path: "/mnt/data", VolumeID: s.data}}
		if got.SandboxID != "i1" || got.Body != body || !cmp.Equal(got.VolumeMounts, want) || r.header.Get("X-Tenant") != red {
			t.Errorf("%s: %s", path, r.body)
		}
		if r := s.do("POST", path, "").is(200); !strings.Contains(string(r.body), `"volumeMounts":[]`) {
			t.Errorf("without a body: %s", r.body)
		}
		s.do("POST", path, `{"volumeMounts":{"/a":"nobody"}}`).fails(400, wire.VolumeNotFound)
		s.do("POST", path, body, header{"X-API-Key": ""}).is(401)
		s.do("POST", path, strings.Repeat(" ", 2<<20)).is(413)
	}
	s.do("GET", "/sandboxes/x", "").is(404)
	s.do("GET", "/sandboxes/x", "", header{"X-API-Key": "x"}).is(401)
}

// what a sandbox answer shows is an array, under present names, also of volumes that are gone.
func TestDrivesAreShownInSandboxAnswers(t *testing.T) {
	s := newShelf(t)
	name := "renamed"
	if _, err := s.manager(red).Update(context.Background(), s.data, volume.Update{Name: &name}); err != nil {
		t.Fatal(err)
	}
	set := mount.DriveSet{Drives: []mount.SetDrive{{Path: "/a", Volume: s.data}, {Path: "/b", Volume: "0197c2b0-0000-7000-8000-000000000000", ReadOnly: true}}}
	got, err := e2bhttp.ShowDrives(context.Background(), s.manager(red), set)
	want := []wire.VolumeMount{{Name: "renamed", Path: "/a", VolumeID: s.data},
		{Name: "0197c2b0-0000-7000-8000-000000000000", Path: "/b", VolumeID: "0197c2b0-0000-7000-8000-000000000000", ReadOnly: true}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v: %s", err, diff)
	}
	for _, c := range [][2]string{{`{}`, `{"volumeMounts":[]}`}, {`{"volumeMounts":{},"a":1}`, `{"a":1,"volumeMounts":[]}`}} {
		if got, err := e2bhttp.AddMounts([]byte(c[0]), nil); err != nil || string(got) != c[1] {
			t.Errorf("%s: %s, %v", c[0], got, err)
		}
	}
	for _, body := range []string{``, `null`, `[]`, `{`} {
		if _, err := e2bhttp.AddMounts([]byte(body), nil); !errors.Is(err, volume.ErrInvalid) {
			t.Errorf("%q: %v", body, err)
		}
	}
}

// FuzzMountDecoder: no input panics, what is decoded is bounded, and decoding again gives the same.
func FuzzMountDecoder(f *testing.F) {
	for _, seed := range corpus(f, "mounts") {
		f.Add(seed)
	}
	repo := openRepository(f, memstore.New(), "node-1")
	m, err := repo.Tenant(red)
	if err != nil {
		f.Fatal(err)
	}
	rules := e2bhttp.MountRules{Metadata: true, SubPaths: true, Max: 8}
	f.Fuzz(func(t *testing.T, body []byte) {
		entries, err := rules.Decode(body)
		if err != nil {
			if !errors.Is(err, e2bhttp.ErrMounts) || len(err.Error()) > 4096 {
				t.Errorf("%v", err)
			}
			return
		}
		if len(entries) > 8 {
			t.Errorf("%d entries", len(entries))
		}
		mounts, err := rules.Resolve(context.Background(), m, entries, "")
		if (len(entries) > 0) != (err != nil) || len(mounts) > 0 {
			t.Errorf("%d entries of a repository without volumes: %v, %v", len(entries), mounts, err)
		}
		if err != nil && e2bhttp.ErrorBody(err).Code != 400 {
			t.Errorf("%+v", e2bhttp.ErrorBody(err))
		}
	})
}

// FuzzCreateBody: whatever is posted is answered with 201 or a JSON error of the caller's class.
func FuzzCreateBody(f *testing.F) {
	for _, seed := range corpus(f, "create") {
		f.Add(seed)
	}
	repo := openRepository(f, memstore.New(), "node-1")
	h := e2bhttp.NewHandler(e2bhttp.ForRepository(repo), apiKeys(f))
	f.Fuzz(func(t *testing.T, body []byte) {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("POST", "/volumes", strings.NewReader(string(body)))
		r.Header.Set("X-API-Key", redKey)
		h.ServeHTTP(w, r)
		if w.Code != 201 && (w.Code < 400 || w.Code >= 500) && w.Code != 501 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		got := read[map[string]any](answer{t, "POST", w.Code, w.Header(), w.Body.Bytes()})
		if w.Code != 201 && got["code"] != float64(w.Code) {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

// corpus reads the lines of a file of seeds.
func corpus(f *testing.F, name string) (seeds [][]byte) {
	f.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "seeds", name+".jsonl"))
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		seeds = append(seeds, []byte(strings.TrimSuffix(line, "\n")))
	}
	return seeds
}
