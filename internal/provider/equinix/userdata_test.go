package equinix

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/ironherd/ironherd/internal/provider"
)

const privateHalf = "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2hunter2\nhunter2\n-----END OPENSSH PRIVATE KEY-----\n"

func hostKey() provider.HostKey {
	return provider.NewHostKey("ssh-ed25519 AAAAC3Nz", "SHA256:A", privateHalf)
}

// sentUserData creates a device and returns the user data of the request.
func sentUserData(t *testing.T, inject bool, key provider.HostKey) string {
	t.Helper()
	p, api := newScripted(t)
	p.config.InjectHostKey = inject
	request := createRequest()
	request.HostKey = key
	api.on(createDevice, answer{status: 201, body: deviceJSON(map[string]any{"state": "queued", "tags": []string{string(request.Token)}})})
	if _, err := p.Create(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	var sent struct {
		UserData string `json:"userdata"`
	}
	if err := json.Unmarshal([]byte(api.bodies[createDevice]), &sent); err != nil {
		t.Fatal(err)
	}
	if p.InjectsHostKey() != inject {
		t.Error("it says otherwise than it does")
	}
	return sent.UserData
}

func TestHostKeysTravelAsCloudConfig(t *testing.T) {
	t.Parallel()
	text := sentUserData(t, true, hostKey())
	var config map[string]any
	if err := yaml.Unmarshal([]byte(text), &config); err != nil || !strings.HasPrefix(text, "#cloud-config\n") {
		t.Fatalf("%v in %q", err, text)
	}
	keys, _ := config["ssh_keys"].(map[string]any)
	if len(config) != 2 || config["ssh_deletekeys"] != true || len(keys) != 2 ||
		keys["ed25519_private"] != privateHalf || keys["ed25519_public"] != "ssh-ed25519 AAAAC3Nz" {
		t.Errorf("%+v", config)
	}
	if key := injectedKey(text); key != hostKey().Public || injectedKey("#cloud-config\nssh_deletekeys: true\n") != "" {
		t.Errorf("the key in it is %q", key)
	}
	if text := sentUserData(t, false, hostKey()); text != "" {
		t.Errorf("switched off, it sends %q", text)
	}
	if text := sentUserData(t, true, provider.HostKey{}); text != "" {
		t.Errorf("without a key, it sends %q", text)
	}
}

// TestHostKeysAreNotPrinted: neither by us, at any level and whatever fails, nor by the library,
// which has a variable for it.
func TestHostKeysAreNotPrinted(t *testing.T) {
	t.Setenv("PACKNGO_DEBUG", "1")
	stderr := os.Stderr
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	os.Stderr = write
	t.Cleanup(func() { os.Stderr = stderr })

	api := &scriptedAPI{t: t, answers: make(map[string][]answer), bodies: make(map[string]string)}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	api.on("GET projects/"+projectID+"/ssh-keys", answer{body: sshKeys("ironherd", publicKey)})
	api.on("GET hardware-reservations/"+reservation1, answer{body: freeReservation})
	var log bytes.Buffer
	p, err := New(testConfig(t, server.URL+"/metal/v1"), provider.Options{
		Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.CloseIdleConnections)
	request := createRequest()
	request.HostKey = hostKey()
	said := ""
	for _, a := range []answer{
		{status: 422, body: errorsBody("userdata is wrong")},
		{status: 500, body: errorsBody("Oh snap")},
		{status: 201, body: `{"id":"3333`},
		{status: 201, body: deviceJSON(map[string]any{"userdata": privateHalf, "tags": []string{string(request.Token)}})},
	} {
		api.on(createDevice, a)
		entry, err := p.Create(t.Context(), request)
		if err != nil {
			said += err.Error()
		}
		said += entry.Detail + entry.Hostname + entry.Invalid
	}
	os.Stderr = stderr
	_ = write.Close()
	var printed bytes.Buffer
	if _, err := printed.ReadFrom(read); err != nil {
		t.Fatal(err)
	}
	if text := said + log.String() + printed.String(); strings.Contains(text, "hunter2") {
		t.Errorf("it shows the key: %s", text)
	}
	if !strings.Contains(api.bodies[createDevice], "hunter2") {
		t.Error("no key was sent")
	}
}
