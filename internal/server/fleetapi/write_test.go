package fleetapi_test

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/token"
)

func wanted(machine string) *fleetv1.InstallMachineRequest {
	return &fleetv1.InstallMachineRequest{
		Machine:  machine,
		Image:    &agentv1.Image{Url: "https://images.example/a.zst", Digest: "sha256:" + strings.Repeat("a", 64), Compression: agentv1.Compression_COMPRESSION_ZSTD, Size: 9},
		RootDisk: &agentv1.DiskSelector{Pick: agentv1.DiskSelector_PICK_LARGEST, MinSize: 5}, FirstBootData: []byte("data"),
		Kexec: true,
	}
}

// TestSecretsOfAnInstallStayHidden asks for everything that a reader can see of an install whose
// URL is presigned, when it is asked for and when it has been handed out.
func TestSecretsOfAnInstallStayHidden(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	o.machines(1)
	agent := o.takeover(o.claim(fleet.ProcessAgentStart)[0])
	client := o.client(token.Operator)
	request := wanted("host-0")
	request.Image.Url = "https://images.example/a.zst?X-Amz-Signature=hidden#hidden"
	request.FirstBootData = []byte("hidden")
	_, err := client.InstallMachine(t.Context(), request)
	o.must(err)
	order, err := o.db.HandOutInstall(t.Context(), agent, 0, 0)
	o.must(err)
	if order == nil || order.Request.Image.URL != request.GetImage().GetUrl() || string(order.Request.FirstBootData) != "hidden" {
		t.Fatalf("the agent gets %+v", order)
	}
	machine, err := client.GetMachine(t.Context(), &fleetv1.GetMachineRequest{Machine: "host-0"})
	o.must(err)
	if got := machine.GetImage(); got.GetDigest() != request.GetImage().GetDigest() || got.GetCompression() != "zstd" {
		t.Errorf("the image is told as %v", got)
	}
	history, err := client.ListHistory(t.Context(), &fleetv1.ListHistoryRequest{Machine: "host-0"})
	o.must(err)
	explained, err := client.ExplainMachine(t.Context(), &fleetv1.ExplainMachineRequest{Machine: "host-0"})
	o.must(err)
	for _, shown := range []string{machine.String(), history.String(), explained.String()} {
		if strings.Contains(shown, "hidden") {
			t.Errorf("a secret is shown: %s", shown)
		}
	}
	for _, shown := range []string{machine.String(), history.String()} {
		if !strings.Contains(shown, "https://images.example/a.zst?…") {
			t.Errorf("it does not say which image: %s", shown)
		}
	}
}

func TestInstallMachine(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	id := o.machines(1)[0]
	client := o.client(token.Operator)
	a, err := client.InstallMachine(t.Context(), wanted("host-0"))
	o.must(err)
	r, err := o.db.Machine(t.Context(), id)
	o.must(err)
	got := r.InstallRequest
	if a.GetInstallGeneration() != 1 || got == nil || got.Actor != "token operator" || got.Image.URL != "https://images.example/a.zst" ||
		got.Image.Compression != fleet.CompressionZstd || got.Image.Size != 9 || !got.Image.Kexec || got.RootDisk != (fleet.DiskSelector{Pick: fleet.PickLargest, MinSize: 5}) ||
		!bytes.Equal(got.FirstBootData, []byte("data")) {
		t.Errorf("recorded %+v", got)
	}
	for name, spoil := range map[string]func(*fleetv1.InstallMachineRequest){
		"image.url":             func(r *fleetv1.InstallMachineRequest) { r.Image.Url = "ftp://x/y" },
		"a user or password":    func(r *fleetv1.InstallMachineRequest) { r.Image.Url = "https://me:secret@x/y" },
		"image.digest":          func(r *fleetv1.InstallMachineRequest) { r.Image.Digest = "sha256:zz" },
		"image.compression":     func(r *fleetv1.InstallMachineRequest) { r.Image.Compression = 0 },
		"image.size":            func(r *fleetv1.InstallMachineRequest) { r.Image.Size = -1 },
		"root_disk.pick":        func(r *fleetv1.InstallMachineRequest) { r.RootDisk.Pick = 77 },
		"root_disk.serial":      func(r *fleetv1.InstallMachineRequest) { r.RootDisk.Serial = strings.Repeat("x", 999) },
		"root_disk.min_size":    func(r *fleetv1.InstallMachineRequest) { r.RootDisk.MinSize = -1 },
		"first_boot_data":       func(r *fleetv1.InstallMachineRequest) { r.FirstBootData = make([]byte, 64<<10+1) },
		"image.url must be set": func(r *fleetv1.InstallMachineRequest) { r.Image = nil },
	} {
		req := wanted("host-0")
		spoil(req)
		_, err := client.InstallMachine(t.Context(), req)
		if code(err) != connect.CodeInvalidArgument || !strings.Contains(message(err), name) || strings.Contains(message(err), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	huge := wanted("host-0")
	huge.FirstBootData = make([]byte, 1<<20)
	if _, err := client.InstallMachine(t.Context(), huge); code(err) != connect.CodeResourceExhausted {
		t.Errorf("a huge request: %v", err)
	}
}

// TestInstallByName: what a name means is settled when the install is asked for.
func TestInstallByName(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	o.machines(1)
	agent := o.takeover(o.claim(fleet.ProcessAgentStart)[0])
	client := o.client(token.Operator)
	for _, test := range []struct {
		request *fleetv1.InstallMachineRequest
		want    string
	}{
		{&fleetv1.InstallMachineRequest{Machine: "host-0", ImageName: "debian-14"}, `no image is named "debian-14": this control plane knows debian-13, small`},
		{&fleetv1.InstallMachineRequest{Machine: "host-0", ImageName: "small", Image: &agentv1.Image{}}, "image and image_name contradict each other: set one of them"},
	} {
		if _, err := client.InstallMachine(t.Context(), test.request); connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got %v, want %q", err, test.want)
		}
	}
	_, err := client.InstallMachine(t.Context(), &fleetv1.InstallMachineRequest{
		Machine: "host-0", ImageName: "debian-13", RootDisk: &agentv1.DiskSelector{Model: "M", Erase: true, Grow: true},
	})
	o.must(err)
	order, err := o.db.HandOutInstall(t.Context(), agent, 0, 0)
	o.must(err)
	want := fleet.Image{
		Name: "debian-13", URL: "https://images.example/d.raw.zst?sig=hidden", Digest: "sha256:" + strings.Repeat("d", 64),
		Compression: fleet.CompressionZstd, Size: 12, FirstBoot: fleet.FirstBootNoCloud,
	}
	if order == nil || order.Request.Image != want || order.Request.RootDisk != (fleet.DiskSelector{Model: "M", Erase: true, Grow: true}) {
		t.Errorf("the agent gets %+v", order)
	}
	machine, err := client.GetMachine(t.Context(), &fleetv1.GetMachineRequest{Machine: "host-0"})
	o.must(err)
	if !strings.Contains(machine.String(), "debian-13, https://images.example/d.raw.zst?…") {
		t.Errorf("nobody can see which image it is: %s", machine)
	}
	images, err := o.client(token.Viewer).ListImages(t.Context(), &fleetv1.ListImagesRequest{})
	o.must(err)
	if text := images.String(); len(images.GetImages()) != 2 || strings.Contains(text, "hidden") || !strings.Contains(text, "nocloud") || !strings.Contains(text, `"area"`) {
		t.Errorf("the catalogue is %s", text)
	}
}

func TestRetryMachine(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	o.machines(1)
	o.must(o.claim(fleet.ProcessAgentStart)[0].Fail(t.Context(), bmdb.Failure{Cause: "no", Backoff: fleet.Backoff{Initial: time.Hour}}))
	client := o.client(token.Operator)
	for _, bad := range []string{"dance", "provision"} {
		if _, err := client.RetryMachine(t.Context(), &fleetv1.RetryMachineRequest{Machine: "host-0", Process: bad}); code(err) != connect.CodeInvalidArgument {
			t.Errorf("%s: %v", bad, err)
		}
	}
	a, err := client.RetryMachine(t.Context(), &fleetv1.RetryMachineRequest{Machine: "host-0"})
	o.must(err)
	if len(a.GetProcesses()) != 1 || a.GetProcesses()[0] != "agent-start" || len(o.claim(fleet.ProcessAgentStart)) != 1 {
		t.Errorf("got %v", a)
	}
}

// TestPlainHTTP is how a person with curl asks.
func TestPlainHTTP(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, o.url+"/ironherd.fleet.v1.FleetService/RetryMachine", strings.NewReader(`{"machine":"host-9"}`))
	o.must(err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+o.tokens[token.Operator])
	a, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	o.must(err)
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	o.must(err)
	if a.StatusCode != http.StatusNotFound || !strings.Contains(string(body), `"not_found"`) {
		t.Errorf("%d %s", a.StatusCode, body)
	}
}

// TestARefusedHostKeyIsAPersonsTurn: while the start of an agent fails because of it.
func TestARefusedHostKeyIsAPersonsTurn(t *testing.T) {
	t.Parallel()
	const shown = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHDZ6GhhqEXsp3oNMdNMmqmNZ3k7G5Wf8G3vOqWgY0y8"
	for name, again := range map[string]bool{"another key": true, "another fault since": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newFixture(t)
			id := string(o.machines(1)[0])
			wrong := &remote.HostKeyError{Presented: remote.Fingerprint(shown), Key: shown}
			backoff := fleet.Backoff{Initial: time.Hour}
			failure := bmdb.Failure{Cause: wrong.Error(), Backoff: backoff, Answer: fleet.AnswerOtherKey}
			o.must(o.claim(fleet.ProcessAgentStart)[0].Fail(t.Context(), failure, bmdb.RefuseHostKey(shown, wrong.Presented)))
			if !again {
				_, err := o.db.Retry(t.Context(), "ada", fleet.MachineID(id), "")
				o.must(err)
				o.must(o.claim(fleet.ProcessAgentStart)[0].Fail(t.Context(), bmdb.Failure{Cause: "connection refused", Backoff: backoff}))
			}
			client := o.client(token.Viewer)
			is, err := client.ExplainMachine(t.Context(), &fleetv1.ExplainMachineRequest{Machine: id})
			o.must(err)
			who, command := "ironherd", ""
			if again {
				who, command = "operator", "ironherd machine host-key accept "+id+" "+wrong.Presented+" --reason WHY"
			}
			if is.GetNext().GetWho() != who || is.GetNext().GetCommand() != command {
				t.Errorf("next: %v", is.GetNext())
			}
			concerns := func() (texts []string) {
				summary, err := client.GetSummary(t.Context(), &fleetv1.GetSummaryRequest{})
				o.must(err)
				for _, c := range summary.GetConcerns() {
					if c.GetKind() == "host-key" || c.GetKind() == "refusal" {
						texts = append(texts, c.GetText())
					}
				}
				return texts
			}
			want := []string{"a machine shows a host key that is not the known one, so no agent is started on it: `ironherd machine explain " + id + "` tells what accepts it"}
			if !again {
				want = nil
			}
			if got := concerns(); !slices.Equal(got, want) {
				t.Errorf("the concerns are %q, want %q", got, want)
			}
			if !again { // nor does it know our key then
				_, err := o.db.Retry(t.Context(), "ada", fleet.MachineID(id), "")
				o.must(err)
				refusal := bmdb.Failure{Cause: "dial: 192.0.2.7:22 refuses the key SHA256:x for user root", Backoff: backoff, Answer: fleet.AnswerRefused}
				o.must(o.claim(fleet.ProcessAgentStart)[0].Fail(t.Context(), refusal))
				want := "a host does not let the control plane in, so no agent is started on it: `ironherd machine explain " + id + "` tells what it says"
				if got := concerns(); !slices.Equal(got, []string{want}) {
					t.Errorf("the concerns are %q, want %q", got, want)
				}
			}
			o.must(o.db.AcceptHostKey(t.Context(), "ada", fleet.MachineID(id), shown, wrong.Presented, "seen on the console"))
			if is, err = client.ExplainMachine(t.Context(), &fleetv1.ExplainMachineRequest{Machine: id}); err != nil || is.GetNext().GetWho() != "ironherd" {
				t.Errorf("accepted: %v, %v", is.GetNext(), err)
			}
			if got := concerns(); got != nil {
				t.Errorf("accepted: %q", got)
			}
		})
	}
}

// TestHostKeyIsAccepted: only the key that was refused, by its fingerprint.
func TestHostKeyIsAccepted(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	o.machines(1)
	const known = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDvTbE7BlkKUmIcD9PgQ4tDB1Ps6MoXxwMJT6jTf7fqx"
	const shown = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHDZ6GhhqEXsp3oNMdNMmqmNZ3k7G5Wf8G3vOqWgY0y8"
	session, err := o.db.StartSession(t.Context(), bmdb.SessionOptions{Component: "test", Lease: time.Minute})
	o.must(err)
	claim, err := session.Claim(t.Context(), bmdb.ClaimRequest{Process: fleet.ProcessAgentStart, Limit: 1})
	o.must(err)
	if len(claim.Works) != 1 {
		t.Fatalf("claimed %d machines", len(claim.Works))
	}
	o.must(claim.Works[0].Note(t.Context(), bmdb.PinHostKeys(claim.Works[0].Record.ID, []string{known})))
	o.must(claim.Works[0].Cancel(t.Context(), "another key", bmdb.RefuseHostKey(shown, "SHA256:…")))

	client := o.client(token.Admin)
	keys, err := client.GetHostKeys(t.Context(), &fleetv1.GetHostKeysRequest{Machine: "host-0"})
	o.must(err)
	if len(keys.GetKnown()) != 1 || keys.GetKnown()[0].GetKey() != known || keys.GetSource() != "first use" || keys.GetRefused().GetKey() != shown ||
		!strings.HasPrefix(keys.GetRefused().GetFingerprint(), "SHA256:") {
		t.Fatalf("keys %v", keys)
	}
	accept := func(fingerprint, reason string) error {
		_, err := client.AcceptHostKey(t.Context(), &fleetv1.AcceptHostKeyRequest{Machine: "host-0", Fingerprint: fingerprint, Reason: reason})
		return err
	}
	if err := accept(keys.GetKnown()[0].GetFingerprint(), "because"); code(err) != connect.CodeFailedPrecondition ||
		!strings.Contains(err.Error(), "`ironherd machine host-key show ") {
		t.Errorf("a key that was not refused: %v", err)
	}
	if err := accept(keys.GetRefused().GetFingerprint(), " "); code(err) != connect.CodeInvalidArgument {
		t.Errorf("without a reason: %v", err)
	}
	o.must(accept(keys.GetRefused().GetFingerprint(), "reinstalled by hand"))
	o.must(accept(keys.GetRefused().GetFingerprint(), "reinstalled by hand")) // the answer was lost
	if keys, err = client.GetHostKeys(t.Context(), &fleetv1.GetHostKeysRequest{Machine: "host-0"}); err != nil || keys.GetRefused() != nil ||
		keys.GetSource() != "accepted" || keys.GetKnown()[0].GetKey() != shown {
		t.Errorf("keys %v, %v", keys, err)
	}
}
