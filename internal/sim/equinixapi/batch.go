package equinixapi

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// batch is a number of devices that were created together.
type batch struct {
	ID      string    `json:"id"`
	Number  int       `json:"number"`
	Project string    `json:"project"`
	Devices []string  `json:"devices"`
	Created time.Time `json:"created"`
}

// batchRequest creates the devices of a batch, which are alike.
type batchRequest struct {
	createRequest
	Quantity  int   `json:"quantity"`
	Hostnames names `json:"hostnames"`
}

// maxBatch bounds how many devices one request creates.
const maxBatch = 1000

// createBatches creates the devices of all batches of a request, or none.
func (a *API) createBatches(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Batches []batchRequest `json:"batches"`
	}
	err := readJSON(w, r, &request)
	var creates []*createRequest
	var sizes []int
	if err == nil {
		creates, sizes, err = devicesOf(request.Batches)
	}
	var made []*batch
	project := r.PathValue("id")
	if err == nil {
		_, err = a.create(project, creates, func(devices []*device) ([]Change, func()) {
			var changes []Change
			for _, n := range sizes {
				a.counters.Batches++
				b := &batch{ID: a.id("batch", a.counters.Batches), Number: a.counters.Batches, Project: project, Created: now()}
				for _, d := range devices[:n] {
					b.Devices = append(b.Devices, d.ID)
				}
				devices, made, changes = devices[n:], append(made, b), append(changes, put("batch/"+b.ID, b))
			}
			return changes, func() {
				for _, b := range made {
					a.batches[b.ID] = b
				}
			}
		})
	}
	if err != nil {
		writeError(w, err)
		return
	}
	if happens(a.cfg.LoseReply) {
		panic(http.ErrAbortHandler) // the connection is cut
	}
	v := viewOf(r)
	list := make([]obj, len(made))
	for i, b := range made {
		list[i] = a.renderBatch(b, v)
	}
	writeJSON(w, http.StatusCreated, obj{"batches": list})
}

// devicesOf returns a request for each device of all batches, and the size of each batch.
func devicesOf(batches []batchRequest) (creates []*createRequest, sizes []int, err error) {
	var wrong []string
	if len(batches) == 0 {
		wrong = append(wrong, "Batches can't be blank")
	}
	for i, b := range batches {
		n := cmp.Or(b.Quantity, len(b.Hostnames), 1)
		if n < 1 || len(b.Hostnames) > 0 && len(b.Hostnames) != n {
			wrong = append(wrong, fmt.Sprintf("batches[%d].quantity must be at least 1, and the number of hostnames if there are any, not %d", i, n))
			continue
		}
		if len(creates)+n > maxBatch {
			return nil, nil, unprocessable(fmt.Sprintf("A request can create at most %d devices", maxBatch))
		}
		for j := range n {
			one := b.createRequest
			if len(b.Hostnames) > 0 {
				one.Hostname = b.Hostnames[j]
			}
			creates = append(creates, &one)
		}
		sizes = append(sizes, n)
	}
	if len(wrong) > 0 {
		return nil, nil, unprocessable(wrong...)
	}
	return creates, sizes, nil
}

func (a *API) renderBatch(b *batch, v view) obj {
	return obj{
		"id": b.ID, "href": Prefix + "/batches/" + b.ID, "state": "completed", "quantity": len(b.Devices), "error_messages": []string{},
		"created_at": b.Created, "updated_at": b.Created, "project": v.ref("project", projectHref(b.Project), a.renderProjectOf(b.Project)),
		"devices": refs(v, "devices", b.Devices, deviceHref, func(id string, v view) obj {
			d, ok := a.deviceOf(id)
			if !ok {
				return hrefTo(deviceHref(id))
			}
			return a.renderDevice(d, v)
		}),
	}
}

func (a *API) batchOf(id string) *batch {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.batches[id]
}

func (a *API) listBatches(w http.ResponseWriter, r *http.Request) {
	var list []*batch
	a.mu.RLock()
	for _, b := range a.batches {
		if b.Project == r.PathValue("id") {
			list = append(list, b)
		}
	}
	a.mu.RUnlock()
	slices.SortFunc(list, func(x, y *batch) int { return cmp.Compare(x.Number, y.Number) })
	v := viewOf(r)
	a.writeAll(w, "batches", len(list), func(i int) obj { return a.renderBatch(list[i], v) })
}

func (a *API) getBatch(w http.ResponseWriter, r *http.Request) {
	b := a.batchOf(r.PathValue("id"))
	if b == nil {
		writeError(w, errNotFound)
		return
	}
	writeJSON(w, http.StatusOK, a.renderBatch(b, viewOf(r)))
}

// deleteBatch deletes a batch and, if asked to, those of its devices that are still there: all or
// none.
func (a *API) deleteBatch(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Devices bool `json:"remove_associated_instances"`
	}
	if err := readJSON(w, r, &request); err != nil {
		writeError(w, err)
		return
	}
	id := r.PathValue("id")
	err := a.locked(func() error {
		b := a.batches[id]
		if b == nil {
			return errNotFound
		}
		var devices []*device
		var wrong []string
		for _, id := range b.Devices {
			if d := a.devices[id]; d != nil && request.Devices {
				devices = append(devices, d)
				if err := d.deletable(); err != nil {
					wrong = append(wrong, d.Hostname+": "+strings.TrimSpace(err.Error()))
				}
			}
		}
		if len(wrong) > 0 {
			return unprocessable(wrong...)
		}
		if err := a.forget(devices, Change{Key: "batch/" + id}); err != nil {
			return err
		}
		delete(a.batches, id)
		return nil
	})
	if err != nil {
		writeError(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
