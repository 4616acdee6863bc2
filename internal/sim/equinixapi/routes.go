package equinixapi

import (
	"net/http"
	"slices"
	"strconv"
)

// route is a method of a path.
type route struct {
	pattern string
	handle  http.HandlerFunc
	// kind of the object that is answered, or that a list is of; see references.
	kind string
	// query has the parameters that are honoured beside include and exclude.
	query []string
}

// Parameters that several lists have.
var (
	sorted      = append([]string{"sort_by", "sort_direction"}, always...)
	searched    = append([]string{"search", "query"}, always...)
	devices     = slices.Concat(deviceFilters, sorted)
	plansBy     = append([]string{"categories", "categories[]", "type", "slug", "deployment_type"}, always...)
	reserved    = append([]string{"query", "search", "state", "provisionable"}, sorted...)
	projectsBy  = append([]string{"name", "search"}, sorted...)
	capacityBy  = []string{"legacy"}
	bandwidthBy = []string{"from", "until"}
)

// table is the API without its prefix.
func (a *API) table() []route {
	return slices.Concat(a.catalogueRoutes(), a.accountRoutes(), a.deviceRoutes())
}

func (a *API) catalogueRoutes() []route {
	return []route{
		{"GET /plans", a.listPlans, "plan", plansBy},
		{"GET /plans/{id}", a.getPlan, "plan", nil},
		{"GET /projects/{id}/plans", a.inProject(a.listPlans), "plan", plansBy},
		{"GET /organizations/{id}/plans", a.inOrganization(a.listPlans), "plan", plansBy},
		{"GET /locations/metros", a.listMetros, "metro", always},
		{"GET /locations/metros/{id}", a.getMetro, "metro", nil},
		{"GET /facilities", a.listFacilities, "facility", always},
		{"GET /facilities/{id}", a.getFacility, "facility", nil},
		{"GET /projects/{id}/facilities", a.inProject(a.listFacilities), "facility", always},
		{"GET /organizations/{id}/facilities", a.inOrganization(a.listFacilities), "facility", always},
		{"GET /operating-systems", a.listSystems, "system", always},
		{"GET /operating-systems/{id}", a.getSystem, "system", nil},
		{"GET /operating-system-versions", a.listSystems, "system", always},
		{"GET /organizations/{id}/operating-systems", a.inOrganization(a.listSystems), "system", always},
		{"GET /capacity", a.listCapacity(false), "", capacityBy},
		{"GET /capacity/metros", a.listCapacity(true), "", capacityBy},
		{"POST /capacity", a.checkCapacity(false), "", nil},
		{"POST /capacity/metros", a.checkCapacity(true), "", nil},
		{"GET /organizations/{id}/capacity", a.inOrganization(a.listCapacity(false)), "", capacityBy},
		{"GET /organizations/{id}/capacity/metros", a.inOrganization(a.listCapacity(true)), "", capacityBy},
		{"POST /organizations/{id}/capacity", a.inOrganization(a.checkCapacity(false)), "", nil},
		{"POST /organizations/{id}/capacity/metros", a.inOrganization(a.checkCapacity(true)), "", nil},
	}
}

func (a *API) accountRoutes() []route {
	return []route{
		{"GET /user", a.getUser, "user", nil},
		{"GET /users", a.listUsers, "user", always},
		{"GET /users/{id}", a.getUser, "user", nil},
		{"GET /organizations", a.listOrganizations, "organization", always},
		{"POST /organizations", a.createOrganization, "organization", nil},
		{"GET /organizations/{id}", a.getOrganization, "organization", nil},
		{"GET /organizations/{id}/projects", a.inOrganization(a.listProjects), "project", projectsBy},
		{"POST /organizations/{id}/projects", a.inOrganization(a.createProject), "project", nil},
		{"GET /projects", a.listProjects, "project", projectsBy},
		{"POST /projects", a.createProject, "project", nil},
		{"GET /projects/{id}", a.getProject, "project", nil},
		{"PUT /projects/{id}", a.updateProject, "project", nil},
		{"PATCH /projects/{id}", a.updateProject, "project", nil},
		{"DELETE /projects/{id}", a.deleteProject, "project", nil},

		{"GET /ssh-keys", a.listUserKeys, "key", searched},
		{"POST /ssh-keys", a.createUserKey, "key", nil},
		{"GET /ssh-keys/{id}", a.getKey, "key", nil},
		{"PUT /ssh-keys/{id}", a.updateKey, "key", nil},
		{"PATCH /ssh-keys/{id}", a.updateKey, "key", nil},
		{"DELETE /ssh-keys/{id}", a.deleteKey, "key", nil},
		{"GET /projects/{id}/ssh-keys", a.inProject(a.listProjectKeys), "key", searched},
		{"POST /projects/{id}/ssh-keys", a.inProject(a.createProjectKey), "key", nil},
		{"GET /devices/{id}/ssh-keys", a.ofDevice(a.listDeviceKeys), "key", searched},
	}
}

func (a *API) deviceRoutes() []route {
	return []route{
		{"GET /projects/{id}/hardware-reservations", a.inProject(a.listReservations), "reservation", reserved},
		{"GET /organizations/{id}/hardware-reservations", a.inOrganization(a.listReservations), "reservation", reserved},
		{"GET /hardware-reservations/{id}", a.getReservation, "reservation", nil},
		{"POST /hardware-reservations/{id}/move", a.moveReservation, "reservation", nil},
		{"POST /hardware-reservations/{id}/activate", a.activateReservation, "reservation", nil},

		{"GET /projects/{id}/devices", a.inProject(a.listDevices), "device", devices},
		{"POST /projects/{id}/devices", a.inProject(a.createDevice), "device", nil},
		{"POST /projects/{id}/devices/batch", a.inProject(a.createBatches), "batch", nil},
		{"GET /projects/{id}/batches", a.inProject(a.listBatches), "batch", always},
		{"GET /batches/{id}", a.getBatch, "batch", nil},
		{"DELETE /batches/{id}", a.deleteBatch, "batch", nil},
		{"GET /organizations/{id}/devices", a.inOrganization(a.listDevices), "device", devices},
		{"GET /devices/{id}", a.ofDevice(a.getDevice), "device", nil},
		{"PUT /devices/{id}", a.ofDevice(a.updateDevice), "device", nil},
		{"PATCH /devices/{id}", a.ofDevice(a.updateDevice), "device", nil},
		{"DELETE /devices/{id}", a.ofDevice(a.deleteDevice), "device", nil},
		{"POST /devices/{id}/actions", a.ofDevice(a.actOnDevice), "device", nil},
		{"GET /devices/{id}/userdata", a.ofDevice(a.getUserData), "", nil},
		{"GET /devices/{id}/metadata", a.ofDevice(a.getMetadata), "", nil},
		{"GET /devices/{id}/bandwidth", a.ofDevice(a.getBandwidth), "", bandwidthBy},
		{"GET /devices/{id}/diagnostics/health/rollup", a.ofDevice(a.getHealth), "", nil},
		{"GET /devices/{id}/ips", a.ofDevice(a.listDeviceAddresses), "address", always},
		{"GET /projects/{id}/ips", a.inProject(a.listProjectAddresses), "address", always},
		{"GET /ips/{id}", a.getAddress, "address", nil},
		{"GET /devices/{id}/events", a.listDeviceEvents, "event", always},
		{"GET /projects/{id}/events", a.inProject(a.listEvents), "event", always},
		{"GET /organizations/{id}/events", a.inOrganization(a.listEvents), "event", always},
		{"GET /events", a.listEvents, "event", always},
		{"GET /events/{id}", a.getEvent, "event", nil},
	}
}

// routes maps paths, without their prefix, to handlers.
func (a *API) routes() http.Handler {
	mux := http.NewServeMux()
	for _, rt := range a.table() {
		mux.HandleFunc(rt.pattern, rt.accepts(rt.handle))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if handler, pattern := mux.Handler(r); pattern == "" {
			writeMissing(w, r, handler)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// writeMissing answers for a path or a method that is not there. The multiplexer's handler knows
// which of the two it is; what it would write is no JSON.
func writeMissing(w http.ResponseWriter, r *http.Request, handler http.Handler) {
	verdict := &verdict{header: http.Header{}}
	handler.ServeHTTP(verdict, r)
	if verdict.status != http.StatusMethodNotAllowed {
		writeError(w, errNotFound)
		return
	}
	w.Header().Set("Allow", verdict.header.Get("Allow"))
	writeErrors(w, http.StatusMethodNotAllowed, "The method "+r.Method+" is not allowed here")
}

// verdict keeps the status and the header of an answer that nobody gets.
type verdict struct {
	header http.Header
	status int
}

// Header is part of http.ResponseWriter, as the following are.
func (v *verdict) Header() http.Header { return v.header }

func (v *verdict) WriteHeader(status int) { v.status = status }

func (v *verdict) Write(p []byte) (int, error) { return len(p), nil }

// inProject answers 404 for a project that does not exist.
func (a *API) inProject(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a.mu.RLock()
		known := a.projects[r.PathValue("id")] != nil
		a.mu.RUnlock()
		if !known {
			writeError(w, errNotFound)
			return
		}
		next(w, r)
	}
}

// inOrganization answers 404 for another organization than ours. What comes after it finds no
// project in the path, and answers for all of them.
func (a *API) inOrganization(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("id") != a.org {
			writeError(w, errNotFound)
			return
		}
		r.SetPathValue("id", "")
		next(w, r)
	}
}

func sizeGB(n int) string { return strconv.Itoa(n) + "GB" }
