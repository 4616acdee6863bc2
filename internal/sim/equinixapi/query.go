package equinixapi

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// references has for each kind of object what can be included in it or excluded from it, and of
// which kind that is. Of anything, nothing is known, so every name below it is accepted.
var references = map[string]map[string]string{
	"device": {
		"plan": "plan", "operating_system": "system", "facility": "facility", "metro": "metro", "project": "project", "project_lite": "project",
		"ssh_keys": "key", "hardware_reservation": "reservation", "created_by": "user", "ip_addresses": "address", "network_ports": "port",
		"provisioning_events": "event", "volumes": "anything",
	},
	"reservation": {"plan": "plan", "facility": "facility", "metro": "metro", "project": "project", "device": "device"},
	"project": {
		"organization": "organization", "members": "user", "devices": "device", "ssh_keys": "key", "payment_method": "payment",
		"memberships": "anything", "invitations": "anything",
	},
	"organization": {"projects": "project", "members": "user", "owners": "user", "primary_owner": "user", "address": "anything", "memberships": "anything"},
	"user":         {"default_organization": "organization", "memberships": "anything", "ssh_keys": "anything"},
	"key":          {"owner": "anything", "entity": "anything", "user": "user"},
	"event":        {"relationships": "device", "modified_by": "user"},
	"batch":        {"project": "project", "devices": "device"},
	"address":      {"assigned_to": "device", "project": "project", "metro": "metro", "facility": "anything", "parent_block": "anything"},
	"facility":     {"metro": "metro", "address": "anything"},
	"plan":         {"available_in": "facility", "available_in_metros": "metro"},
	"port":         {"bond": "anything", "virtual_networks": "anything", "native_virtual_network": "anything"},
	"metro":        {},
	"system":       {},
	"payment":      {},
}

// always are the parameters that every list accepts, also one that has no pages.
var always = []string{"page", "per_page"}

// accepts lets pass what a route can honour, and refuses the rest: an answer to a filter that was
// misspelt would look like an answer to the filter that was meant.
func (rt route) accepts(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := rt.check(r); err != nil {
			writeError(w, err)
			return
		}
		next(w, r)
	}
}

func (rt route) check(r *http.Request) error {
	var wrong []string
	query := r.URL.Query()
	for _, name := range slices.Sorted(maps.Keys(query)) {
		switch bare := strings.TrimSuffix(name, "[]"); bare {
		case "include", "exclude":
			for _, path := range splitNames(query[name]) {
				if !rt.knows(path) {
					wrong = append(wrong, fmt.Sprintf("%s: there is no %q in %s", bare, path, withArticle(rt.kind)))
				}
			}
		default:
			// A query of POST, PUT, PATCH and DELETE has fields of the request.
			if r.Method == http.MethodGet && !slices.Contains(rt.query, name) {
				wrong = append(wrong, fmt.Sprintf("%q is not a parameter here: known are %s", name, strings.Join(append([]string{"include", "exclude"}, rt.query...), ", ")))
			}
		}
	}
	if len(wrong) > 0 {
		return unprocessable(wrong...)
	}
	return nil
}

// withArticle names a kind of object in a sentence.
func withArticle(kind string) string {
	switch kind {
	case "":
		return "this answer"
	case "event", "organization", "address":
		return "an " + kind
	case "system":
		return "an operating system"
	}
	return "a " + kind
}

// knows reports whether a dotted name leads from one reference to the next.
func (rt route) knows(path string) bool {
	kind := rt.kind
	for i, name := range strings.Split(path, ".") {
		if kind == "anything" || i == maxDepth {
			return true
		}
		next, known := references[kind][name]
		if !known {
			return false
		}
		kind = next
	}
	return true
}

// splitNames are the names of comma-separated lists.
func splitNames(values []string) []string {
	var all []string
	for _, value := range values {
		for name := range strings.SplitSeq(value, ",") {
			if name = strings.TrimSpace(name); name != "" {
				all = append(all, name)
			}
		}
	}
	return all
}

// oneOf refuses a parameter whose value is none of those that are known.
func oneOf(name, value string, known ...string) error {
	if slices.Contains(known, value) {
		return nil
	}
	return unprocessable(fmt.Sprintf("%s must be one of %s, not %q", name, strings.Join(known, ", "), value))
}

// truthOf reads a parameter that is true or false; nil if it is not there.
func truthOf(query url.Values, name string) (*bool, error) {
	if !query.Has(name) {
		return nil, nil //nolint:nilnil // not there, and nothing wrong
	}
	truth, err := strconv.ParseBool(query.Get(name))
	if err != nil {
		return nil, unprocessable(fmt.Sprintf("%s must be true or false, not %q", name, query.Get(name)))
	}
	return &truth, nil
}

// listOf reads a parameter that is a list, however the client writes lists.
func listOf(query url.Values, name string) []string {
	return splitNames(append(slices.Clone(query[name]), query[name+"[]"]...))
}
