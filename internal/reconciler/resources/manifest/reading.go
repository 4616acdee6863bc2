package manifest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

// Limit is how long anybody waits for a reading, from its begin on, or for a file that changes all
// the time.
const Limit = 10 * time.Second

// Reading is what the files of a directory say.
type Reading struct {
	// Objects are in the order of the names of their files.
	Objects []*object.Object
	// Faults are what could not be read.
	Faults []Fault
	// Unsettled tells that a file has changed, and may be unfinished. It has the objects that it had
	// before.
	Unsettled bool
	// Unknown tells that no reading has ended yet: nothing at all is known of the files.
	Unknown bool
}

// Directory is a directory of manifests, for one who reads it.
type Directory struct {
	*readings
	// taken is the late reading that Read has returned last.
	taken *flight
}

// readings are those of a directory, for all who read it.
type readings struct {
	path    string
	settled time.Duration
	load    func(path string) ([]byte, error)

	mu sync.Mutex
	// under is the reading that is under way; nil: none is. It alone touches known, which has the
	// files of the last one, by their names below path.
	under *flight
	known map[string]file
	last  Reading
	// late is the last reading, if nobody waited for it until it ended. The lock guards taken, too.
	late *flight
}

// flight is a reading that is under way.
type flight struct {
	begun time.Time
	done  chan struct{}
	says  Reading // set before done is closed
}

// At returns the directory at a path. The one at an empty path has no manifests. Settled is for how
// long a text has to be the same before it counts; if that is not positive, it counts at once.
func At(path string, settled time.Duration) *Directory {
	return &Directory{readings: &readings{path: path, settled: settled, load: readFile, last: Reading{Unknown: true}}}
}

// Aside returns the same directory for somebody else who reads it: neither takes a late reading
// from the other one.
func (d *Directory) Aside() *Directory { return &Directory{readings: d.readings} }

// LoadBy has files loaded by a function, in place of the operating system: it may be slower. It is
// called before anything is read.
func (d *Directory) LoadBy(load func(path string) ([]byte, error)) { d.load = load }

// Read reads the directory as it is now. If that takes too long, or ctx ends, Read returns what the
// reading before said, and a fault beside it. At most one reading is under way: one that hangs is
// not begun again, and is not waited for twice. One that took too long, and is not old, is what the
// next Read returns, once, while another one is under way: so who reads again and again is told
// what there is, a little later, and waits no more.
func (d *Directory) Read(ctx context.Context) Reading {
	if d.path == "" {
		return Reading{}
	}
	for {
		f, ours := d.begin()
		if err := f.wait(ctx); err != nil {
			return d.before(err)
		}
		if ours {
			return f.says
		}
	}
}

// wait waits until a reading has ended.
func (f *flight) wait(ctx context.Context) error {
	select {
	case <-f.done: // nobody waits any more
		return nil
	default:
	}
	select {
	case <-f.done:
		return nil
	case <-time.After(time.Until(f.begun.Add(Limit))):
		return fmt.Errorf("it does not answer within %s, as a disk that hangs; what was read before counts", Limit)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// old is how long ago a reading began that is of no use any more.
const old = 2 * time.Minute

// begin returns the reading that is under way. If there is none, it begins one, which is ours, as
// is a late one.
func (d *Directory) begin() (under *flight, ours bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	begun := d.under == nil
	if begun {
		d.under = &flight{begun: time.Now(), done: make(chan struct{})}
		go d.fly(d.under)
	}
	if late := d.late; late != nil && late != d.taken && time.Since(late.begun) < old {
		d.taken = late
		return late, true
	}
	return d.under, begun
}

// fly makes a reading. A panic is one fault more than the last reading had.
func (d *Directory) fly(f *flight) {
	looked := false
	defer func() {
		if v := recover(); v != nil {
			f.says = d.before(fmt.Errorf("panic: %v; what was read before counts", v))
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if looked {
			d.last, d.late = f.says, nil
			if time.Since(f.begun) >= Limit {
				d.late = f
			}
		}
		d.under = nil
		close(f.done)
	}()
	f.says = d.look()
	looked = true
}

// before is what the last reading said that came to its end, and why there is none from now.
func (d *Directory) before(err error) Reading {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.last
	r.Faults = append(slices.Clip(r.Faults), Fault{Source: d.path, Err: err})
	return r
}
