package static

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestAListThatEndsInTheMiddleOfALine: its last host cannot be used, whatever is in it so far. The
// others can, and so can one whose last value has an end of its own.
func TestAListThatEndsInTheMiddleOfALine(t *testing.T) {
	t.Parallel()
	const first = "- {id: a, address: 192.0.2.1}\n"
	for name, test := range map[string]struct {
		list   string
		usable bool
	}{
		"an address":            {first + "- id: b\n  address: 192.0.2.18", false},
		"another's address":     {first + "- id: b\n  address: 192.0.2.1", false},
		"another's hostname":    {"- {id: a, address: 192.0.2.1, hostname: db1}\n- id: b\n  address: 192.0.2.18\n  hostname: db1", false},
		"another's ID as name":  {first + "- id: b\n  address: 192.0.2.18\n  hostname: a", false},
		"half of an address":    {first + "- id: b\n  address: 192.0.", false},
		"no address yet":        {first + "- id: b", false},
		"which is whole":        {first + "- id: b\n  address: 192.0.2.189\n", true},
		"on Windows":            {first + "- id: b\r\n  address: 192.0.2.189\r\n", true},
		"a port":                {first + "- id: b\n  address: 192.0.2.189\n  port: 22", false},
		"after its key":         {first + "- id: b\n  address: 192.0.2.189\n  port:", false},
		"a label":               {first + "- id: b\n  address: 192.0.2.189\n  labels:\n    role: data", false},
		"a tagged value":        {first + "- id: b\n  address: !!str 192.0.2.18", false},
		"a reference":           {"- {id: a, address: 192.0.2.1, labels: &l {role: web}}\n- id: b\n  address: 192.0.2.189\n  labels: *l", false},
		"under hosts":           {"hosts:\n" + first + "- id: b\n  address: 192.0.2.18", false},
		"with spaces behind":    {first + "- id: b\n  address: 192.0.2.189 ", true},
		"with a comment behind": {first + "- id: b\n  address: 192.0.2.189 # rack 1", true},
		"in quotes":             {first + "- id: b\n  address: '192.0.2.189'", true},
		"in brackets":           {first + "- {id: b, address: 192.0.2.189}", true},
		"JSON":                  {`[{"id": "a", "address": "192.0.2.1"}, {"id": "b", "address": "192.0.2.189"}]`, true},
	} {
		path := filepath.Join(t.TempDir(), "hosts.yaml")
		since(t, path, test.list, time.Hour)
		entries, faults, err := parse([]byte(test.list))
		if err != nil || len(entries) != 2 || entries[0].Invalid != "" {
			t.Errorf("%s: %+v, %v", name, entries, err)
			continue
		}
		if usable := entries[1].Invalid == ""; usable != test.usable || usable != (len(faults) == 0) {
			t.Errorf("%s: usable: %t, faults %q", name, usable, faults)
		}
		if told := entries[1].Invalid; !test.usable && !strings.HasSuffix(told, "end it with a newline") {
			t.Errorf("%s: it is told: %s", name, told)
		}
		if err := CheckList(path); (err == nil) != test.usable {
			t.Errorf("%s: config check tells %v", name, err)
		}
	} // Half of an ID that is another's changes nothing about the other.
	for _, last := range []string{"- id: rack1-node1", "- address: 192.0.2.18\n  id: rack1-node1"} {
		entries, faults, err := parse([]byte("- {id: rack1-node1, address: 192.0.2.1}\n" + last))
		if err != nil || len(entries) != 1 || entries[0].Invalid != "" || entries[0].Address.String() != "192.0.2.1" ||
			len(faults) == 0 || !strings.HasSuffix(faults[0], "end it with a newline") {
			t.Errorf("%s: %+v, faults %q, %v", last, entries, faults, err)
		}
	}
}
