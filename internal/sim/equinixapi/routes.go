package equinixapi

import (
	"net/http"
	"strconv"
)

// routes maps paths, without their prefix, to handlers.
func (a *API) routes() http.Handler {
	mux := http.NewServeMux()
	for pattern, handler := range map[string]http.HandlerFunc{
		"GET /user":                     a.getUser,
		"GET /users":                    a.listUsers,
		"GET /users/{id}":               a.getUser,
		"GET /organizations":            a.listOrganizations,
		"GET /organizations/{id}":       a.getOrganization,
		"GET /projects":                 a.listProjects,
		"POST /projects":                a.createProject,
		"GET /projects/{id}":            a.getProject,
		"PUT /projects/{id}":            a.updateProject,
		"PATCH /projects/{id}":          a.updateProject,
		"DELETE /projects/{id}":         a.deleteProject,
		"GET /plans":                    a.listPlans,
		"GET /projects/{id}/plans":      a.inProject(a.listPlans),
		"GET /organizations/{id}/plans": a.inOrganization(a.listPlans),
		"GET /locations/metros":         a.listMetros,
		"GET /locations/metros/{id}":    a.getMetro,
		"GET /facilities":               a.listFacilities,
		"GET /projects/{id}/facilities": a.inProject(a.listFacilities),
		"GET /operating-systems":        a.listSystems,
		"GET /capacity":                 a.listCapacity(false),
		"GET /capacity/metros":          a.listCapacity(true),

		"GET /ssh-keys":                a.listUserKeys,
		"POST /ssh-keys":               a.createUserKey,
		"GET /ssh-keys/{id}":           a.getKey,
		"PUT /ssh-keys/{id}":           a.updateKey,
		"PATCH /ssh-keys/{id}":         a.updateKey,
		"DELETE /ssh-keys/{id}":        a.deleteKey,
		"GET /projects/{id}/ssh-keys":  a.inProject(a.listProjectKeys),
		"POST /projects/{id}/ssh-keys": a.inProject(a.createProjectKey),
		"GET /devices/{id}/ssh-keys":   a.listDeviceKeys,

		"GET /projects/{id}/hardware-reservations":      a.inProject(a.listReservations),
		"GET /organizations/{id}/hardware-reservations": a.inOrganization(a.listReservations),
		"GET /hardware-reservations/{id}":               a.getReservation,
		"POST /hardware-reservations/{id}/move":         a.moveReservation,
		"POST /hardware-reservations/{id}/activate":     a.activateReservation,

		"GET /projects/{id}/devices":      a.inProject(a.listDevices),
		"POST /projects/{id}/devices":     a.inProject(a.createDevice),
		"GET /organizations/{id}/devices": a.inOrganization(a.listDevices),
		"GET /devices/{id}":               a.getDevice,
		"PUT /devices/{id}":               a.updateDevice,
		"PATCH /devices/{id}":             a.updateDevice,
		"DELETE /devices/{id}":            a.deleteDevice,
		"POST /devices/{id}/actions":      a.actOnDevice,
		"GET /devices/{id}/userdata":      a.getUserData,
		"GET /devices/{id}/events":        a.listDeviceEvents,
		"GET /projects/{id}/events":       a.inProject(a.listEvents),
		"GET /events":                     a.listEvents,
		"GET /events/{id}":                a.getEvent,
	} {
		mux.HandleFunc(pattern, handler)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { writeError(w, errNotFound) })
	return mux
}

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
