package equinix

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

const (
	listKeys  = "GET projects/" + projectID + "/ssh-keys"
	createKey = "POST projects/" + projectID + "/ssh-keys"
)

const otherKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"

func TestEnsureKey(t *testing.T) {
	t.Parallel()
	created := answer{status: 201, body: `{"id":"` + keyUUID + `","label":"ironherd"}`}
	for name, test := range map[string]struct {
		lists   []answer
		creates []answer
		kind    fleet.Kind
		says    string
	}{
		"there":                   {[]answer{{body: sshKeys("ironherd", publicKey)}}, nil, 0, ""},
		"there, other comment":    {[]answer{{body: sshKeys("ironherd", publicKey+" me@home\n")}}, nil, 0, ""},
		"not there":               {[]answer{{body: `{"ssh_keys":[]}`}}, []answer{created}, 0, ""},
		"others are there":        {[]answer{{body: sshKeys("other", otherKey)}}, []answer{created}, 0, ""},
		"label of another key":    {[]answer{{body: sshKeys("ironherd", otherKey)}}, nil, fleet.KindConflict, "another SSH key under the label"},
		"key under another label": {[]answer{{body: sshKeys("other", publicKey)}}, nil, fleet.KindConflict, `under the label "other"`},
		"somebody was faster": {
			[]answer{{body: `{"ssh_keys":[]}`}, {body: sshKeys("ironherd", publicKey)}},
			[]answer{{status: 422, body: errorsBody("key has already been taken")}},
			0, "",
		},
		"reply lost": {
			[]answer{{body: `{"ssh_keys":[]}`}, {body: sshKeys("ironherd", publicKey)}}, []answer{{status: 500, body: errorsBody("Oh snap")}}, 0, "",
		},
		"refused": {
			[]answer{{body: `{"ssh_keys":[]}`}}, []answer{{status: 422, body: errorsBody("key is invalid")}}, fleet.KindInvalid, "key is invalid",
		},
		"not allowed":   {[]answer{{status: 403, body: errorsBody("no")}}, nil, fleet.KindForbidden, ""},
		"strange reply": {[]answer{{body: `{"ssh_keys":[]}`}}, []answer{{status: 201, body: `{}`}}, fleet.KindInvalid, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, api := newScripted(t)
			api.on(listKeys, test.lists...)
			api.on(createKey, test.creates...)
			p.key.forget()
			_, err := p.ensureKey(t.Context())
			if fleet.KindOf(err) != test.kind || (err != nil) != (test.kind != 0) || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v (%s)", err, fleet.KindOf(err))
			}
			if got := api.count(createKey); got != len(test.creates) {
				t.Errorf("%d keys were created", got)
			}
			if len(test.creates) > 0 && !strings.Contains(api.bodies[createKey], `"label":"ironherd"`) {
				t.Error(api.bodies[createKey])
			}
			if id := p.key.get(); (id == keyUUID) != (err == nil) {
				t.Errorf("the memo is %q", id)
			}
		})
	}
}

func TestOneCallerLooksForTheKey(t *testing.T) {
	t.Parallel()
	p, api := newScripted(t)
	api.on(listKeys, answer{body: `{"ssh_keys":[]}`})
	api.on(createKey, answer{status: 201, body: `{"id":"` + keyUUID + `"}`})
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			if id, err := p.ensureKey(t.Context()); id != keyUUID || err != nil {
				t.Errorf("%s, %v", id, err)
			}
		})
	}
	callers.Wait()
	if api.count(createKey) != 1 || api.count(listKeys) != 1 {
		t.Errorf("%d keys were created, %d lists read", api.count(createKey), api.count(listKeys))
	}
}

// When somebody removes our key from the project, the refused create makes the provider look again.
func TestARefusedCreateForgetsTheKey(t *testing.T) {
	t.Parallel()
	p, api := newScripted(t)
	api.on(createDevice, answer{status: 422, body: errorsBody("ssh key does not exist")})
	for range 2 {
		if _, err := p.Create(t.Context(), createRequest()); fleet.KindOf(err) != fleet.KindInvalid {
			t.Error(err)
		}
	}
	if api.count(listKeys) != 2 {
		t.Errorf("the keys were listed %d times", api.count(listKeys))
	}
}

// The call that named the removed key is made once more with the new one, so that nothing is said
// to be wrong with the reservation. Where the key is there, the refusal stands.
func TestAKeyThatWasRemovedIsMadeAnew(t *testing.T) {
	t.Parallel()
	for _, removed := range []bool{true, false} {
		p, api := newScripted(t)
		request := createRequest()
		calls := 0
		request.BeforeCall = func(context.Context) error { calls++; return nil }
		const before = "44444444-4444-4444-8444-444444444400"
		p.key.set(keyUUID)
		if removed {
			p.key.set(before)
			api.on(listKeys, answer{body: `{"ssh_keys":[]}`})
			api.on(createKey, answer{status: 201, body: `{"id":"` + keyUUID + `","label":"ironherd"}`})
		}
		ours := answer{status: 201, body: deviceJSON(map[string]any{"tags": []string{string(request.Token)}})}
		api.on(createDevice, answer{status: 422, body: errorsBody("Project ssh key is not valid")}, ours)
		entry, err := p.Create(t.Context(), request)
		switch {
		case removed && (err != nil || entry.ID != device1 || calls != 2 || !strings.Contains(api.bodies[createDevice], keyUUID)):
			t.Errorf("%+v, %v, %d calls, %s", entry, err, calls, api.bodies[createDevice])
		case !removed && (fleet.KindOf(err) != fleet.KindInvalid || calls != 1):
			t.Errorf("with the key there: %+v, %v, %d calls", entry, err, calls)
		}
	}
}

// TestAReplacedKeyIsNotTheReservationsFault: where the key that a refused call named is not there,
// and the call cannot be made once more, no device can be there, and all other creations would fail
// alike.
func TestAReplacedKeyIsNotTheReservationsFault(t *testing.T) {
	t.Parallel()
	none, made := answer{body: `{"ssh_keys":[]}`}, answer{status: 201, body: `{"id":"` + keyUUID + `","label":"ironherd"}`}
	for name, test := range map[string]struct {
		list, create answer
		before       error // of the second call
		says         string
	}{
		"another key has the label":  {list: answer{body: sshKeys("ironherd", otherKey)}, says: "another SSH key under the label"},
		"no right to make one":       {list: none, create: answer{status: 403, body: errorsBody("no keys for you")}, says: "no keys for you"},
		"the keys cannot be listed":  {list: answer{body: "7"}, says: "list SSH keys"},
		"the database takes nothing": {list: none, create: made, before: fleet.Errorf(fleet.KindTimeout, "no answer"), says: "not valid"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, api := newScripted(t)
			request := createRequest()
			calls := 0
			request.BeforeCall = func(context.Context) error {
				if calls++; calls == 2 {
					return test.before
				}
				return nil
			}
			p.key.set("44444444-4444-4444-8444-444444444400")
			api.on(listKeys, test.list)
			api.on(createKey, test.create)
			api.on(createDevice, answer{status: 422, body: errorsBody("Project ssh key is not valid")})
			_, err := p.Create(t.Context(), request)
			if fleet.KindOf(err) != fleet.KindForbidden || provider.NothingSent(err) || provider.MayHaveCreated(err) || provider.ConcernsCapacity(err) {
				t.Errorf("%v (%s)", err, fleet.KindOf(err))
			}
			if !strings.Contains(err.Error(), test.says) || api.count(createDevice) != 1 {
				t.Errorf("after %d requests: %v", api.count(createDevice), err)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	good := testConfig(t, "https://api.equinix.com/metal/v1")
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for key, change := range map[string]func(*Config){
		"api_url must be set":             func(c *Config) { c.APIURL = "" },
		"api_url must be an http":         func(c *Config) { c.APIURL = "ftp://x" },
		"api_url must be without a user":  func(c *Config) { c.APIURL = "https://a:b@x/" },
		"api_url must be https":           func(c *Config) { c.APIURL = "http://api.example/" },
		"api_url must be without a query": func(c *Config) { c.APIURL = "https://x/?token=1" },
		"token_file must be set":          func(c *Config) { c.TokenFile = " " },
		"project must be the UUID":        func(c *Config) { c.Project = "mine" },
		"ssh_key_label must be set":       func(c *Config) { c.SSHKeyLabel = "" },
		"device_prefix must be set":       func(c *Config) { c.DevicePrefix = "" },
		"device_prefix must be 1 to 40":   func(c *Config) { c.DevicePrefix = "a_b" },
		"operating_system must be set":    func(c *Config) { c.OperatingSystem = "" },
		"operating_system must be a slug": func(c *Config) { c.OperatingSystem = "Debian 12" },
		"spacing must not be negative":    func(c *Config) { c.Spacing = -1 },
		"in_flight must be at least 1":    func(c *Config) { c.InFlight = 0 },
		"page_size must be from 1":        func(c *Config) { c.PageSize = 1001 },
	} {
		config := good
		change(&config)
		if err := config.Validate(); err == nil || !strings.HasPrefix(err.Error(), key) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", key, err)
		}
	}
	for _, placeholder := range []string{"CHANGEME", "changeme", "change-me", "CHANGE_ME!", "<prefix>", "<your prefix>", "${PREFIX}", "TODO", "xxx"} {
		config := good
		config.DevicePrefix = placeholder
		if err := config.Validate(); err == nil || !strings.Contains(err.Error(), "still the placeholder") {
			t.Errorf("%s: %v", placeholder, err)
		}
	}
	if err := (Config{}).Validate(); err == nil || strings.Count(err.Error(), "\n") != 7 {
		t.Errorf("an empty configuration has %v", err)
	}
}
