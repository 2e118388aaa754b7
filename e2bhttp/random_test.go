package e2bhttp_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/sandvol/sandvol/e2bhttp/wire"
	"github.com/sandvol/sandvol/volume"
)

// player is one goroutine's part in the random test: what it made, by name, is the model.
type player struct {
	*api
	t       *testing.T
	rnd     *rand.Rand
	tenant  string
	prefix  string // of all names that it makes
	foreign *ids   // of the other tenant
	own     *ids
	volumes map[string]string          // name to id
	kept    map[string]string          // snapshot to the id of its volume
	held    map[string]*volume.Session // by name
	made    int
}

// ids is what the players of a tenant made: the other tenant's players ask for it.
type ids struct {
	mu  sync.Mutex
	all []string
}

func (s *ids) add(id string) { s.mu.Lock(); defer s.mu.Unlock(); s.all = append(s.all, id) }
func (s *ids) pick(r *rand.Rand) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) == 0 {
		return "nobody"
	}
	return s.all[r.IntN(len(s.all))]
}

// Two tenants use every route at once, in any order. No answer is a 5xx, none shows or changes what belongs to the other
// tenant, each agrees with the model, and in the end there is exactly what the model says, held by whom it says.
//
func TestRandomRequestsOfTwoTenants(t *testing.T) {
	seed := rand.Uint64()
	if s := os.Getenv("SANDVOL_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("repeat with SANDVOL_SEED=%d", seed)
	a := newAPI(t)
	made := map[string]*ids{red: {}, blue: {}}
	var players []*player
	for i := range 8 {
		tenant, other := red, blue
		if i%2 == 1 {
			tenant, other = blue, red
		}
		players = append(players, &player{api: a, t: t, rnd: rand.New(rand.NewPCG(seed, uint64(i))), tenant: tenant,
			prefix: fmt.Sprintf("%s%d-", tenant, i), own: made[tenant], foreign: made[other], volumes: map[string]string{},
			kept: map[string]string{}, held: map[string]*volume.Session{}})
	}
	var wg sync.WaitGroup
	for _, p := range players {
		wg.Go(func() {
			for range 30 {
				p.step()
			}
			p.checkList()
		})
	}
	wg.Wait()
	for _, tenant := range []string{red, blue} {
		checkAll(t, a, tenant, players)
	}
}

// step plays one random move.
func (p *player) step() {
	moves := []func(){p.create, p.create, p.get, p.delete, p.fork, p.snapshot, p.restore, p.deleteSnapshot, p.checkList,
		p.attach, p.release, p.askForeign, p.contend, p.getSnapshot}
	moves[p.rnd.IntN(len(moves))]()
}

func (p *player) send(method, path, body string, want ...int) answer {
	key := redKey
	if p.tenant == blue {
		key = blueKey
	}
	r := p.do(method, path, body, header{"X-API-Key": key})
	if !slices.Contains(want, r.status) {
		p.t.Errorf("%s %s %s: %d %s, want %v", p.tenant, r.what, body, r.status, r.body, want)
	}
	return r
}

func (p *player) fresh() string { p.made++; return p.prefix + strconv.Itoa(p.made) }

func (p *player) note(v wire.Volume) {
	p.volumes[v.Name] = v.VolumeID
	p.own.add(v.VolumeID)
}

// any returns a key of a map, or false.
func anyOf[V any](r *rand.Rand, m map[string]V) (string, bool) {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	if len(keys) == 0 {
		return "", false
	}
	slices.Sort(keys) // a map's order would not be repeated
	return keys[r.IntN(len(keys))], true
}

func (p *player) create() {
	body := `"sizeMB":16`
	if src, ok := anyOf(p.rnd, p.volumes); ok && p.rnd.IntN(2) == 0 {
		body = `"source":{"volumeID":"` + src + `"}`
	}
	r := p.send("POST", "/volumes", `{"name":"`+p.fresh()+`",`+body+`}`, 201)
	if r.status == 201 {
		p.note(r.volume().Volume)
	}
	if taken, ok := anyOf(p.rnd, p.volumes); ok {
		p.send("POST", "/volumes", `{"name":"`+taken+`","sizeMB":16}`, 409)
	}
}

func (p *player) get() {
	if name, ok := anyOf(p.rnd, p.volumes); ok {
		v := p.send("GET", "/volumes/"+name, "", 200).volume()
		if _, held := p.held[name]; v.VolumeID != p.volumes[name] || (v.Reservation != nil) != held {
			p.t.Errorf("%s is %+v, held %v", name, v, held)
		}
	}
}

func (p *player) delete() {
	name, ok := anyOf(p.rnd, p.volumes)
	if !ok {
		return
	}
	if p.held[name] != nil {
		p.send("DELETE", "/volumes/"+name, "", 409)
		return
	}
	p.send("DELETE", "/volumes/"+p.volumes[name], "", 204)
	p.send("DELETE", "/volumes/"+p.volumes[name], "", 404)
	delete(p.volumes, name)
}

func (p *player) fork() {
	name, ok := anyOf(p.rnd, p.volumes)
	if !ok {
		return
	}
	count := 1 + p.rnd.IntN(3)
	r := p.send("POST", "/volumes/"+name+"/fork", fmt.Sprintf(`{"name":%q,"count":%d}`, p.fresh(), count), 201)
	for _, f := range read[[]wire.ForkResult](r) {
		if f.Error != nil || f.Volume == nil {
			p.t.Errorf("%s: %+v", r.what, f.Error)
			continue
		}
		p.note(f.Volume.Volume)
	}
}

func (p *player) snapshot() {
	if name, ok := anyOf(p.rnd, p.volumes); ok {
		k := read[wire.VolumeSnapshot](p.send("POST", "/volumes/"+name+"/snapshots", "", 201))
		p.kept[k.SnapshotID] = p.volumes[name]
		p.own.add(k.SnapshotID)
	}
}

func (p *player) getSnapshot() {
	if id, ok := anyOf(p.rnd, p.kept); ok {
		if k := read[wire.VolumeSnapshot](p.send("GET", "/volume-snapshots/"+id, "", 200)); k.VolumeID != p.kept[id] {
			p.t.Errorf("snapshot %+v, want of %s", k, p.kept[id])
		}
	}
}

func (p *player) restore() {
	id, ok := anyOf(p.rnd, p.kept)
	if !ok {
		return
	}
	of := p.kept[id]
	want := 404 // the volume was deleted
	for _, live := range p.volumes {
		if live == of {
			want = 201
		}
	}
	r := p.send("POST", "/volumes/"+of+"/restore", fmt.Sprintf(`{"snapshotID":%q,"name":%q}`, id, p.fresh()), want)
	if r.status == 201 {
		p.note(r.volume().Volume)
	}
}

func (p *player) deleteSnapshot() {
	if id, ok := anyOf(p.rnd, p.kept); ok {
		p.send("DELETE", "/volume-snapshots/"+id, "", 204)
		delete(p.kept, id)
	}
}

// attach is a sandbox that takes a volume, as package mount would.
func (p *player) attach() {
	name, ok := anyOf(p.rnd, p.volumes)
	if !ok || p.held[name] != nil {
		return
	}
	s, err := p.manager(p.tenant).Attach(context.Background(), name, p.prefix+"sandbox")
	if err != nil {
		p.t.Errorf("attach %s: %v", name, err)
		return
	}
	p.held[name] = s
}

func (p *player) release() {
	name, ok := anyOf(p.rnd, p.held)
	if !ok {
		return
	}
	cut, err := p.held[name].Seal(context.Background(), volume.NewCut(volume.Clean, true))
	if err == nil {
		err = p.held[name].Release(context.Background(), cut)
	}
	if err != nil {
		p.t.Errorf("release %s: %v", name, err)
	}
	delete(p.held, name)
}

// askForeign uses an id of the other tenant on every route.
func (p *player) askForeign() {
	id := p.foreign.pick(p.rnd)
	for _, c := range [][3]string{{"GET", "/volumes/ID", ""}, {"DELETE", "/volumes/ID", ""}, {"POST", "/volumes/ID/fork", "{}"},
		{"POST", "/volumes/ID/snapshots", ""}, {"GET", "/volumes/ID/snapshots", ""}, {"DELETE", "/volume-snapshots/ID", ""},
		{"GET", "/volume-snapshots/ID", ""}, {"POST", "/volumes/ID/restore", `{"snapshotID":"ID"}`}} {
		p.send(c[0], strings.ReplaceAll(c[1], "ID", id), strings.ReplaceAll(c[2], "\"ID\"", strconv.Quote(id)), 404)
	}
}

// contend creates and deletes a volume that all players of the tenant fight for.
func (p *player) contend() {
	p.send("POST", "/volumes", `{"name":"shared","sizeMB":16}`, 201, 409)
	p.send("GET", "/volumes/shared", "", 200, 404)
	p.send("DELETE", "/volumes/shared", "", 204, 404)
}

// checkList compares a list with the model, as far as this player made what is in it.
func (p *player) checkList() {
	got := map[string]string{}
	for _, v := range read[[]wire.Volume](p.send("GET", "/volumes", "", 200)) {
		if !strings.HasPrefix(v.Name, p.tenant) && v.Name != "shared" {
			p.t.Errorf("%s sees %+v", p.tenant, v)
		}
		if strings.HasPrefix(v.Name, p.prefix) {
			got[v.Name] = v.VolumeID
		}
	}
	if len(got) != len(p.volumes) {
		p.t.Errorf("%s lists %v, want %v", p.prefix, got, p.volumes)
	}
	for name, id := range p.volumes {
		if got[name] != id {
			p.t.Errorf("%s is %q in the list, want %q", name, got[name], id)
		}
	}
}

// checkAll compares what a tenant has in the end with all models.
func checkAll(t *testing.T, a *api, tenant string, players []*player) {
	t.Helper()
	want, held, kept := map[string]bool{}, map[string]bool{}, 0
	for _, p := range players {
		if p.tenant != tenant {
			continue
		}
		for name := range p.volumes {
			want[name] = true
		}
		for name := range p.held {
			held[name] = true
		}
		kept += len(p.kept)
	}
	count := 0
	for v, err := range a.manager(tenant).List(context.Background(), volume.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		if _, has := v.Reservation.Holder(); has != held[v.Name] || v.Status != volume.StatusReady {
			t.Errorf("%s: held %v, want %v, status %s", v.Name, has, held[v.Name], v.Status)
		}
		if !want[v.Name] && v.Name != "shared" {
			t.Errorf("%s: nobody has it", v.Name)
		}
		count++
	}
	for _, err := range a.manager(tenant).Checkpoints(context.Background(), volume.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		kept--
	}
	if count < len(want) || kept != 0 {
		t.Errorf("%s: %d volumes, want %d; snapshots missing: %d", tenant, count, len(want), kept)
	}
}

// of many who create one name at once, one does, and the others are told that it exists.
func TestOneOfAThousandCreatesWins(t *testing.T) {
	a := newAPI(t)
	a.create("warm") // the empty file system of this size is there
	statuses := map[int]int{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 1000 {
		wg.Go(func() {
			w := recordBody(a.h, "POST", "/volumes", `{"name":"one","sizeMB":16}`)
			mu.Lock()
			defer mu.Unlock()
			statuses[w.Code]++
		})
	}
	wg.Wait()
	if statuses[201] != 1 || statuses[409] != 999 {
		t.Errorf("statuses %v", statuses)
	}
	if list := read[[]wire.Volume](a.do("GET", "/volumes", "")); len(list) != 2 {
		t.Errorf("%d volumes, want 2", len(list))
	}
}
