package initializer

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

func request() *agentv1.TakeoverInit {
	return &agentv1.TakeoverInit{MachineId: "m", TakeoverGeneration: 7, Endpoint: "127.0.0.1:1", HeartbeatIntervalMs: 30000}
}

func success() *agentv1.TakeoverResponse {
	return &agentv1.TakeoverResponse{Init: request(), Outcome: &agentv1.TakeoverResponse_Success{Success: &agentv1.TakeoverSuccess{
		PublicKey: bytes.Repeat([]byte{1}, 32), AgentVersion: "v1", BootId: "b",
	}}}
}

func encode(t *testing.T, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestCheckAccepts(t *testing.T) {
	t.Parallel()
	got, err := check(request(), encode(t, success()))
	if err != nil || got.TakeoverGeneration != 7 || len(got.PublicKey) != 32 || got.AgentVersion != "v1" || got.BootID != "b" {
		t.Errorf("got %+v, %v", got, err)
	}
}

// What is stored of a machine's words is fit to be shown.
func TestCheckCleansWhatIsStored(t *testing.T) {
	t.Parallel()
	response := success()
	response.GetSuccess().AgentVersion = "v1\x1b[2J\n2"
	response.GetSuccess().BootId = strings.Repeat("é", 1000)
	got, err := check(request(), encode(t, response))
	if err != nil || got.AgentVersion != "v1[2J2" || len(got.BootID) > textLimit+len("…") {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestCheckRefuses(t *testing.T) {
	t.Parallel()
	failure := func(message string, superseded bool) []byte {
		return encode(t, &agentv1.TakeoverResponse{Init: request(), Outcome: &agentv1.TakeoverResponse_Failure{
			Failure: &agentv1.TakeoverFailure{Message: message, Superseded: superseded},
		}})
	}
	changed := func(change func(*agentv1.TakeoverResponse)) []byte {
		response := success()
		change(response)
		return encode(t, response)
	}
	for name, test := range map[string]struct {
		answer []byte
		kind   fleet.Kind
		text   string
	}{
		"nothing":         {nil, fleet.KindInvalid, "does not echo"},
		"garbage":         {[]byte("\xff\xff\xffhello"), fleet.KindInvalid, `"\xff\xff\xffhello"`},
		"noise":           {[]byte("Welcome, \x1b[31mstranger\n"), fleet.KindInvalid, `"Welcome, \x1b[31mstranger"`},
		"much noise":      {bytes.Repeat([]byte("Welcome to this host\n"), 1000), fleet.KindInvalid, "(20999 bytes)"},
		"another machine": {changed(func(r *agentv1.TakeoverResponse) { r.Init.MachineId = "n" }), fleet.KindInvalid, "does not echo"},
		"a later takeover": {
			changed(func(r *agentv1.TakeoverResponse) { r.Init.TakeoverGeneration = 8 }), fleet.KindInvalid, "does not echo",
		},
		"a short key": {
			changed(func(r *agentv1.TakeoverResponse) { r.GetSuccess().PublicKey = make([]byte, 31) }), fleet.KindInvalid, "31 bytes",
		},
		"no outcome": {changed(func(r *agentv1.TakeoverResponse) { r.Outcome = nil }), fleet.KindInvalid, "no outcome"},
		"failure":    {failure("no \x07disk", false), fleet.KindUnknown, `"no \adisk"`},
		"superseded": {failure("9 was here", true), fleet.KindConflict, "refused takeover generation 7"},
		"not understood": {
			encode(t, &agentv1.TakeoverResponse{Outcome: &agentv1.TakeoverResponse_Failure{Failure: &agentv1.TakeoverFailure{Message: "too large"}}}),
			fleet.KindUnknown, `the agent did not understand what it was given: "too large"`,
		},
		"long failure": {failure(strings.Repeat("x", 10000), false), fleet.KindUnknown, "(10000 bytes)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := check(request(), test.answer)
			if fleet.KindOf(err) != test.kind || !strings.Contains(err.Error(), test.text) || len(err.Error()) > 500 {
				t.Errorf("got %v (%s)", err, fleet.KindOf(err))
			}
		})
	}
}

// Only the control plane knows whether the agent in memory was heard. The times on the host are the
// same when it never was and when somebody restarted the machine hours later.
func TestHeardInMemory(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	started := &fleet.AgentStarted{TakeoverGeneration: 3, BootID: "disk"}
	seen := func(generation fleet.TakeoverGeneration, boot string) *fleet.AgentSeen {
		return &fleet.AgentSeen{TakeoverGeneration: generation, BootID: boot, LastAt: at}
	}
	for name, test := range map[string]struct {
		record fleet.Record
		want   string
	}{
		"heard":                      {fleet.Record{AgentStarted: started, AgentSeen: seen(3, "memory")}, "heard the agent in memory last at 2026-05-01 12:00:00"},
		"no agent was ever heard":    {fleet.Record{AgentStarted: started}, "never heard the agent in memory"},
		"the one before was heard":   {fleet.Record{AgentStarted: started, AgentSeen: seen(2, "memory")}, "never heard the agent in memory"},
		"heard only before the jump": {fleet.Record{AgentStarted: started, AgentSeen: seen(3, "disk")}, "never heard the agent in memory"},
		"nothing is known":           {fleet.Record{}, ""},
		"a newer takeover":           {fleet.Record{AgentStarted: &fleet.AgentStarted{TakeoverGeneration: 4}, AgentSeen: seen(3, "memory")}, ""},
	} {
		if got := heardInMemory(test.record, 3); !strings.Contains(got, test.want) || test.want == "" && got != "" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// FuzzCheck: a host's answer never makes a panic, and never a fact without a key.
func FuzzCheck(f *testing.F) {
	data, _ := proto.Marshal(success())
	f.Add(data)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, answer []byte) {
		got, err := check(request(), answer)
		if err == nil && (len(got.PublicKey) != 32 || got.TakeoverGeneration != 7) {
			t.Errorf("accepted %+v", got)
		}
	})
}

func TestConfig(t *testing.T) {
	t.Parallel()
	good := DefaultConfig()
	good.AgentExecutable, good.Endpoint = "/usr/lib/ironherd/agent", "herd.example:7443"
	if err := good.Validate(); err != nil {
		t.Errorf("a good one: %v", err)
	}
	err := Config{TargetPath: "relative"}.Validate()
	for _, key := range []string{
		"agent_executable", "target_path", "endpoint must be set", "user", "port", "connect_timeout", "step_timeout", "execute_timeout", "work_timeout",
		"provider_backoff.initial", "start_backoff.initial", "id_backoff.initial",
	} {
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("no fault names %s: %v", key, err)
		}
	}
	for _, endpoint := range []string{"host", ":7443", "host:", "host:0", "host:70000", "host:x"} {
		bad := good
		bad.Endpoint = endpoint
		if err := bad.Validate(); err == nil {
			t.Errorf("%q was accepted", endpoint)
		}
	}
	for _, root := range []string{"/", "//", "/.", "/root/.."} {
		bad := good
		bad.TargetPath, bad.OtherTargetPaths = root, []string{"/root/agent/", root}
		err := bad.Validate()
		for _, want := range []string{"target_path must be a directory below /, not ", "other_target_paths[1] must be a directory below /, not "} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v does not say %q", root, err, want)
			}
		}
	}
}
