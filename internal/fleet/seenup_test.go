package fleet_test

import (
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
)

func TestSeenUp(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"unit": "", "ssh": "", "": "",
		"http://{address}/healthz": "", "https://{address}:8443": "", "HTTP://{address}": "", "http://web.example:8080/up": "",
		"ftp://{address}/":                    "unit, ssh, or an http or https URL",
		"rsh":                                 "unit, ssh, or an http or https URL",
		"http://":                             "URL with a host",
		"http://192.0.2.1/":                   "must name the machine as {address}",
		"http://[2001:db8::1]/":               "must name the machine as {address}",
		"http://web-{address}.example/":       "in the place of the whole host, and nowhere else",
		"http://{address}.example/":           "in the place of the whole host, and nowhere else",
		"http://web.example/{address}/up":     "in the place of the whole host, and nowhere else",
		"http://web.example//{address}/up":    "in the place of the whole host, and nowhere else",
		"http://{address}/{address}":          "in the place of the whole host, and nowhere else",
		"http://address.invalid/://{address}": "in the place of the whole host, and nowhere else",
		"http://address.invalid/{address}":    "in the place of the whole host, and nowhere else",
		"http://ada:secret@web.example/":      "user, password, query or fragment",
		"http://ada:secret@{address}/":        "user, password, query or fragment",
		"http://web.example/?token=1":         "user, password, query or fragment",
		"http://web.example/?":                "user, password, query or fragment",
		"http://web.example/#x":               "user, password, query or fragment",
		"http://web.example:0/":               "port from 1 to 65535",
		"http://web.example:70000/":           "port from 1 to 65535",
		"http://" + strings.Repeat("a", 2000): "at most 1024 bytes",
	} {
		s := fleet.ParseSeenUp(text)
		faults := s.Validate()
		switch {
		case want == "" && len(faults) > 0:
			t.Errorf("%q: %v", text, faults)
		case want != "" && (len(faults) != 1 || !strings.Contains(faults[0].Problem, want) || strings.Contains(faults[0].Problem, "secret")):
			t.Errorf("%q: %v, want it to say %q", text, faults, want)
		case want == "" && fleet.ParseSeenUp(s.String()) != s:
			t.Errorf("%q becomes %q", text, s)
		}
		if s.Watch = true; want == "" && len(s.Validate()) > 0 {
			t.Errorf("%q, watched: %v", text, s.Validate())
		}
	}
	for name, s := range map[string]fleet.SeenUp{
		"ca unit": {CA: "no certificate"},
		"ca":      {By: fleet.SeenByHTTP, URL: "https://{address}/", CA: "no certificate"},
		"ca ssh":  {By: fleet.SeenBySSH, CA: "no certificate"},
		"ca http": {By: fleet.SeenByHTTP, URL: "http://{address}/", CA: "no certificate"},
		"seen_up": {By: "smell"},
	} {
		field, _, _ := strings.Cut(name, " ")
		if faults := s.Validate(); len(faults) != 1 || faults[0].Field != field {
			t.Errorf("%s: %v", name, faults)
		}
	}
}
