package e2bhttp_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandvol/sandvol/e2bhttp"
	"github.com/sandvol/sandvol/e2bhttp/client"
	"github.com/sandvol/sandvol/e2bhttp/wire"
	"github.com/sandvol/sandvol/volume/store"
	"github.com/sandvol/sandvol/volume/store/memstore"
)

// of many sandboxes that are created at once with one exclusive volume, one starts; the others get 409, and
// hold nothing.: an ro volume goes to all of them.
func TestOneOfManySandboxesGetsAVolume(t *testing.T) {
	s, url := newHost(t)
	a := serve(t, e2bhttp.ForRepository(s.repo))
	a.url = url
	a.create("ws")
	a.do("POST", "/volumes", `{"name":"set","mode":"ro","source":{"volumeID":"ws"}}`).is(201)
	for i := range 12 {
		a.create(fmt.Sprintf("own%d", i))
	}
	answers := make([]answer, 12)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			answers[i] = a.do("POST", "/v2/sandboxes", fmt.Sprintf(`{"templateID":"base","volumeMounts":[{"name":"ws","path":"/ws"},
				{"name":"own%d","path":"/own"},{"name":"set","path":"/set"}]}`, i))
		})
	}
	wg.Wait()
	won := -1
	for i, r := range answers {
		switch {
		case r.status == 201 && won < 0:
			won = i
		case r.status != 409:
			t.Errorf("%d %s", r.status, r.body)
		default:
			r.fails(409, wire.VolumeInUse)
		}
	}
	for i := range answers {
		if v := a.do("GET", fmt.Sprintf("/volumes/own%d", i), "").volume(); (v.Reservation != nil) != (i == won) {
			t.Errorf("own%d: reservation %+v, the winner is %d", i, v.Reservation, won)
		}
	}
	for range 3 {
		a.do("POST", "/sandboxes", `{"volumeMounts":{"/set":"set"}}`).is(201)
	}
}

// stalling blocks the claim of a name until it may go on.
type stalling struct {
	store.Store
	arrived, goOn chan struct{}
}

func (s stalling) PutIfAbsent(ctx context.Context, key string, body []byte) error {
	if strings.HasPrefix(key, "v1/names/red/slow/") {
		s.arrived <- struct{}{}
		<-s.goOn
	}
	return s.Store.PutIfAbsent(ctx, key, body)
}

// while its creation is under way a volume is shown as uploading, on other nodes too, and is not mounted.
func TestUploadingIsShownOnOtherNodes(t *testing.T) {
	shared := memstore.New()
	slow := stalling{shared, make(chan struct{}), make(chan struct{})}
	one := serve(t, e2bhttp.ForRepository(openRepository(t, slow, "node-1")))
	repo := openRepository(t, shared, "node-2")
	two := serve(t, e2bhttp.ForRepository(repo))
	one.create("warm")
	var made answer
	var wg sync.WaitGroup
	wg.Go(func() { made = one.do("POST", "/volumes", `{"name":"slow","sizeMB":16}`) })
	<-slow.arrived
	list := read[[]wire.Volume](two.do("GET", "/volumes?status=uploading", "").is(200))
	if len(list) != 1 || list[0].Name != "slow" || list[0].Status != "uploading" {
		t.Fatalf("uploading: %+v", list)
	}
	rules := e2bhttp.MountRules{}
	entries, err := rules.Decode([]byte(`{"volumeMounts":{"/a":"` + list[0].VolumeID + `"}}`))
	if err != nil {
		t.Fatal(err)
	}
	m, err := repo.Tenant(red)
	if err != nil {
		t.Fatal(err)
	}
	_, err = rules.Resolve(context.Background(), m, entries, "")
	if e := e2bhttp.ErrorBody(err); e.Code != 409 || e.ErrorCode != wire.VolumeNotReady {
		t.Errorf("mounted while uploading: %+v", e)
	}
	two.do("POST", "/volumes/"+list[0].VolumeID+"/fork", "").fails(409, wire.VolumeNotReady)
	close(slow.goOn)
	wg.Wait()
	if v := made.is(201).volume(); v.VolumeID != list[0].VolumeID || two.do("GET", "/volumes/slow", "").is(200).volume().Status != "ready" {
		t.Errorf("made %+v", v)
	}
}

// the Go client on all routes.
func TestGoClientOnAllRoutes(t *testing.T) {
	a := newAPI(t)
	c, err := client.New(client.Config{URL: a.url, APIKey: redKey}, client.WithHTTPClient(a.http))
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	v, err := c.Create(ctx, wire.NewVolume{Name: "v", SizeMB: 16, Labels: map[string]string{"a": "b"}})
	check(err)
	got, err := c.Get(ctx, "v")
	check(err)
	if diff := cmp.Diff(v, got); diff != "" {
		t.Error(diff)
	}
	forks, err := c.Fork(ctx, v.VolumeID, wire.Fork{Name: "f", Count: 2, Mode: "ro"})
	check(err)
	if len(forks) != 2 || forks[1].Volume.Name != "f-2" {
		t.Errorf("forks %+v", forks)
	}
	k, err := c.Snapshot(ctx, "v", wire.NewSnapshot{Name: "s"})
	check(err)
	same, err := c.GetSnapshot(ctx, k.SnapshotID)
	check(err)
	if diff := cmp.Diff(k, same); diff != "" {
		t.Error(diff)
	}
	restored, err := c.Restore(ctx, "v", wire.Restore{SnapshotID: k.SnapshotID, Name: "r"})
	check(err)
	_, err = c.Create(ctx, wire.NewVolume{Name: "c", Source: &wire.Source{SnapshotID: k.SnapshotID}})
	check(err)
	var names []string
	for v, err := range c.List(ctx, client.ListOptions{Status: "ready"}) {
		check(err)
		names = append(names, v.Name)
	}
	slices.Sort(names)
	if want := []string{"c", "f-1", "f-2", "r", "v"}; !slices.Equal(names, want) {
		t.Errorf("names %q, want %q", names, want)
	}
	for range c.List(ctx, client.ListOptions{Labels: map[string]string{"a": "c"}}) {
		t.Error("a volume with a label that none has")
	}
	count := 0
	for _, err := range c.SnapshotsOf(ctx, "v", client.ListOptions{Name: "s"}) {
		check(err)
		count++
	}
	for _, err := range c.Snapshots(ctx, client.ListOptions{VolumeID: v.VolumeID}) {
		check(err)
		count++
	}
	if count != 2 {
		t.Errorf("%d snapshots listed, want the one twice", count)
	}
	check(c.DeleteSnapshot(ctx, k.SnapshotID))
	check(c.Delete(ctx, restored.VolumeID))
}
