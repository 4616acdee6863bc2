package equinixapi

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// Prefix is the path below which the API is served; paths without it, or with it twice, are served
// too.
const Prefix = "/metal/v1"

// Config describes a provider.
type Config struct {
	// Seed decides durations.
	Seed uint64
	// World tells this provider's IDs from those of others with the same seed. What the provider
	// sells (plans, places, operating systems) has the same IDs everywhere.
	World string
	// Token is the API key of the only user.
	Token string
	// Reservations is how many hardware reservations the first project has; slots from there on,
	// OnDemand of them, are for devices without one. The last Spares reservations are spares that
	// nobody has activated.
	Reservations, OnDemand, Spares int
	// Slot describes the hardware in a slot.
	Slot func(slot int) Slot
	// Plans are the kinds of server that slots have.
	Plans []Plan
	// Hardware is what devices are made of.
	Hardware  Hardware
	Durations Durations
	// MaxPerPage bounds the length of a page. Default 1000.
	MaxPerPage int
	// MaxGone bounds of how many devices that are gone the history is kept. Default 1000.
	MaxGone int
	// RateLimit is how many requests are answered in a minute; 0: any number.
	RateLimit int
	// Commit makes changes durable, all of them or none.
	Commit func(changes ...Change) error
	// State is what Commit was given so far, by key.
	State map[string][]byte
	// Disturb is asked once for each request that carries the right token; LoseReply after each
	// creation that succeeded; FailProvisioning at each creation, and FailReinstall at each reinstall.
	// Shuffle is asked for each page of a list, and says whether that list comes in no order unless
	// the caller sorts. Each may be nil.
	Disturb          func() Disturbance
	LoseReply        func() bool
	FailProvisioning func() bool
	FailReinstall    func() bool
	Shuffle          func() bool
	// Forbid is asked at each request for a device that is gone, and says whether that is answered
	// with 403 instead of 404; NameLate at each end of a device on a reservation, and says whether the
	// reservation names the device until it is free again. Each may be nil.
	Forbid, NameLate func() bool
	// Stale is asked at each GET of a device, which then answers what was true that long ago; Early at
	// each page of reservations, which are provisionable there that long before they are; Steal at
	// each creation on a named reservation, which somebody else's device takes first; Vanish at each
	// creation that succeeded, whose device will be gone. The last two say how long after its
	// provisioning the device goes. 0: it does not happen. Each may be nil.
	Stale, Early, Steal, Vanish func() time.Duration

	Logger *slog.Logger
}

// Change sets one value of the durable state, or removes it when Value is nil.
type Change struct {
	Key   string
	Value []byte
}

// Disturbance is what goes wrong with a request before it is looked at.
type Disturbance struct {
	// Delay holds it up.
	Delay time.Duration
	// Cut closes the connection.
	Cut bool
	// Status, unless 0, is the answer: 401, 429, 500 or 502.
	Status int
	// RetryAfter goes with 429, unless 0.
	RetryAfter time.Duration
}

// Slot is one place for a server, and what stands there.
type Slot struct {
	// Plan and Metro are codes of the catalogue.
	Plan, Metro                   string
	PublicV4, PrivateV4, PublicV6 netip.Addr
	MACs                          [2]string
}

// Plan is a kind of server.
type Plan struct {
	Slug string
	// CPUs of one type; memory in GB; network ports of one type ("10Gbps").
	CPUs     int
	CPU      string
	MemoryGB int
	Drives   []Drive
	NICs     int
	NIC      string
	UEFI     bool
	// ReservedOnly is set for what cannot be had without a reservation.
	ReservedOnly bool
}

// Drive is a number of equal drives of a plan.
type Drive struct {
	Count int
	// Size such as "480GB", Type SSD, HDD or NVME.
	Size, Type string
}

// Span is a duration between Min and Max; the seed decides.
type Span struct{ Min, Max time.Duration }

// Durations says how long things take. A reboot takes its time from the answer until the machine is
// reset; without one, it is reset before the answer.
type Durations struct{ Queued, Provisioning, PowerOff, PowerOn, Reboot, Deprovisioning Span }

// Hardware is what devices are made of. Calls for one device come one at a time, except Reset and
// Remove. All are idempotent: after a kill they may come again.
type Hardware interface {
	// Deploy gives the device a machine with the provider's operating system, and returns when it
	// answers, not before that instant.
	Deploy(ctx context.Context, deployment Deployment, notBefore time.Time) error
	// Reset restarts the machine, into a rescue system from the network if asked to; it returns when
	// that cannot be undone.
	Reset(device string, rescue bool) error
	PowerOff(ctx context.Context, device string) error
	PowerOn(ctx context.Context, device string) error
	// Remove takes the machine away.
	Remove(ctx context.Context, device string) error
}

// Deployment is what a machine is to be.
type Deployment struct {
	Device string
	Slot   int
	// Generation counts the installations of the provider's operating system: each has a host key of
	// its own.
	Generation     int
	Hostname       string
	AuthorizedKeys []string
	UserData       string
}

// API is a provider. It implements http.Handler.
type API struct {
	cfg     Config
	handler http.Handler
	user    string
	org     string
	project string

	mu       sync.RWMutex
	devices  map[string]*device
	keys     map[string]*key
	projects map[string]*project
	batches  map[string]*batch
	gone     map[string]*goneDevice
	slots    map[int]*slotState
	bySlot   map[int]string
	// reservations maps IDs to slots.
	reservations map[string]int
	counters     counters
	shuffle      *rand.Rand

	// spawn runs a task under Start's context; nil before Start.
	spawn    func(task func(ctx context.Context))
	requests atomic.Uint64
	// constants has the parts that are the same in all answers, as JSON.
	constants sync.Map
	window    rateWindow
	tasks     sync.WaitGroup
}

// New returns a provider in the state that cfg.State holds. No device changes before Start.
func New(cfg Config) (*API, error) {
	if cfg.MaxPerPage == 0 {
		cfg.MaxPerPage = 1000
	}
	if cfg.MaxGone == 0 {
		cfg.MaxGone = 1000
	}
	a := &API{
		cfg: cfg, devices: map[string]*device{}, keys: map[string]*key{}, projects: map[string]*project{},
		batches: map[string]*batch{}, gone: map[string]*goneDevice{}, slots: map[int]*slotState{}, bySlot: map[int]string{}, reservations: map[string]int{},
		shuffle: rand.New(rand.NewPCG(cfg.Seed, 0x5eed)),
	}
	a.user, a.org, a.project = a.id("user", 0), a.id("organization", 0), a.id("project", 0)
	for slot := range cfg.Reservations {
		a.reservations[a.reservationID(slot)] = slot
	}
	if err := a.load(cfg.State); err != nil {
		return nil, err
	}
	if a.projects[a.project] == nil {
		first := &project{ID: a.project, Name: "Ironherd", Created: now()}
		if err := a.commit(put("project/"+first.ID, first)); err != nil {
			return nil, err
		}
		a.projects[first.ID] = first
	}
	a.handler = a.routes()
	return a, nil
}

// Start resumes all transitions and runs them until ctx ends. It is called once, before the first
// request.
func (a *API) Start(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.spawn = func(task func(ctx context.Context)) { a.tasks.Go(func() { task(ctx) }) }
	for _, d := range a.devices {
		if d.Task != nil {
			a.start(d.ID)
		}
		a.vanishLater(d)
		a.rebootLater(d)
	}
}

// Wait returns when all transitions have stopped, after the end of Start's context.
func (a *API) Wait() { a.tasks.Wait() }

// ProjectID is the project that has the reservations.
func (a *API) ProjectID() string { return a.project }

// id is the n-th UUID of a kind of thing.
func (a *API) id(kind string, n int) string {
	if a.cfg.World != "" {
		return uuidOf(fmt.Sprintf("%s %d %d %s", kind, a.cfg.Seed, n, a.cfg.World))
	}
	return uuidOf(fmt.Sprintf("%s %d %d", kind, a.cfg.Seed, n))
}

// catalogueID is the UUID of something that the provider sells, the same in every world.
func catalogueID(kind, name string) string { return uuidOf("catalogue " + kind + " " + name) }

func uuidOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	id := uuid.UUID(sum[:16])
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return id.String()
}

// duration picks from a span, for a purpose of the n-th device.
func (a *API) duration(s Span, purpose string, n int) time.Duration {
	if s.Max <= s.Min {
		return s.Min
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "duration %s %d %d", purpose, a.cfg.Seed, n))
	return s.Min + time.Duration(binary.BigEndian.Uint64(sum[:])%uint64(s.Max-s.Min))
}

// now is the present as the API tells it.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// ServeHTTP answers a request.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("X-Request-Id", a.id("request", int(a.requests.Add(1))))
	header.Set("Content-Type", "application/json; charset=utf-8")
	limited := !a.window.take(a.cfg.RateLimit, time.Now(), header)
	if subtle.ConstantTimeCompare([]byte(r.Header.Get("X-Auth-Token")), []byte(a.cfg.Token)) != 1 {
		writeJSON(w, http.StatusUnauthorized, wrongToken)
		return
	}
	if limited {
		header.Set("Retry-After", strconv.Itoa(a.window.seconds(time.Now())))
		writeErrors(w, http.StatusTooManyRequests, tooMany)
		return
	}
	if a.cfg.Disturb != nil && a.disturbed(w, r) {
		return
	}
	path := r.URL.Path
	for strings.Contains(path, "//") { // some clients join paths with one slash too many
		path = strings.ReplaceAll(path, "//", "/")
	}
	for range 2 {
		if rest, ok := strings.CutPrefix(path, Prefix); ok && (rest == "" || rest[0] == '/') {
			path = rest
		}
	}
	clone := *r
	url := *r.URL
	url.Path, url.RawPath = path, ""
	clone.URL = &url
	a.handler.ServeHTTP(w, &clone)
}

const (
	tooMany  = "Too many requests, please try again later"
	ohSnap   = "Oh snap, something went wrong! We've logged the error and will take a look - please reach out to us if you continue having trouble."
	notFound = "Not found"
	// forbidden is also the answer of older versions of the API for a device that is gone.
	forbidden = "You are not authorized to view this device"
)

var wrongToken = obj{"error": "Invalid authentication token"}

// disturbed injects the faults that Config.Disturb asks for, and reports whether one of them has
// answered the request.
func (a *API) disturbed(w http.ResponseWriter, r *http.Request) bool {
	d := a.cfg.Disturb()
	if d.Delay > 0 {
		timer := time.NewTimer(d.Delay)
		select {
		case <-timer.C:
		case <-r.Context().Done():
			timer.Stop()
		}
	}
	if d.Cut {
		panic(http.ErrAbortHandler)
	}
	switch d.Status {
	case 0:
		return false
	case http.StatusUnauthorized:
		writeJSON(w, d.Status, wrongToken)
	case http.StatusTooManyRequests:
		w.Header().Set("X-RateLimit-Remaining", "0")
		if d.RetryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int((d.RetryAfter+time.Second-1)/time.Second)))
		}
		writeErrors(w, d.Status, tooMany)
	case http.StatusBadGateway:
		w.Header().Del("X-Request-Id")
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(d.Status)
		_, _ = w.Write([]byte("<html><body><h1>502 Bad Gateway</h1></body></html>\n"))
	default:
		writeErrors(w, d.Status, ohSnap)
	}
	return true
}

// rateWindow counts the requests of the current minute.
type rateWindow struct {
	mu    sync.Mutex
	start time.Time
	used  int
}

// unlimited is what the headers say when there is no limit.
const unlimited = 1_000_000

func (w *rateWindow) take(limit int, now time.Time, header http.Header) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now.Sub(w.start) >= time.Minute {
		w.start, w.used = now, 0
	}
	w.used++
	shown := limit
	if limit == 0 {
		shown = unlimited
	}
	header.Set("X-RateLimit-Limit", strconv.Itoa(shown))
	header.Set("X-RateLimit-Remaining", strconv.Itoa(max(shown-w.used, 0)))
	header.Set("X-RateLimit-Reset", strconv.FormatInt(w.start.Add(time.Minute).Unix(), 10))
	return limit == 0 || w.used <= limit
}

// seconds until the window ends.
func (w *rateWindow) seconds(now time.Time) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(1, int(w.start.Add(time.Minute).Sub(now)/time.Second))
}
