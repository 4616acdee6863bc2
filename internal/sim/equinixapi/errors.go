package equinixapi

import (
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
