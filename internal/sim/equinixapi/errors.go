package equinixapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
)

// obj is a JSON object.
type obj = map[string]any

// refusal is an answer other than success.
type refusal struct {
	status int
	errors []string
}

// Error returns the messages.
func (r *refusal) Error() string { return strings.Join(r.errors, "; ") }

func refuse(status int, messages ...string) error { return &refusal{status, messages} }

var errNotFound = refuse(http.StatusNotFound, notFound)

func unprocessable(messages ...string) error {
	return refuse(http.StatusUnprocessableEntity, messages...)
}

// writeError answers with an error: what a refusal says, else 500.
func writeError(w http.ResponseWriter, err error) {
	if r, ok := errors.AsType[*refusal](err); ok {
		writeErrors(w, r.status, r.errors...)
		return
	}
	writeErrors(w, http.StatusInternalServerError, ohSnap)
}

func writeErrors(w http.ResponseWriter, status int, messages ...string) {
	writeJSON(w, status, obj{"errors": messages})
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	text := encode(value) // before the status: a panic is a 500 of the server's
	w.WriteHeader(status)
	_, _ = w.Write(text)
}

// maxBody bounds what a request may send.
const maxBody = 1 << 20

// readJSON reads a request's body. A body that is missing is an empty object.
func readJSON(w http.ResponseWriter, r *http.Request, into any) error {
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(into)
	if err != nil && err.Error() != "EOF" {
		return refuse(http.StatusBadRequest, "Invalid JSON: "+err.Error())
	}
	return nil
}
