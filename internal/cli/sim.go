package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/demo"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/secret"
	"github.com/ironherd/ironherd/internal/shell"
	"github.com/ironherd/ironherd/internal/sim"
	"github.com/ironherd/ironherd/internal/sim/fault"
)

// simFlags are the flags of sim.
type simFlags struct {
	world     sim.Config
	imageSize int64
	agent     string
	preload   bool
	output    *format
	logLevel  string
}

// newMachines is how many machines a new world has by default.
const newMachines = 12

func (a *app) simCommand() *cobra.Command {
	var f simFlags
	cmd := &cobra.Command{
		Use:   "sim --dir DIR",
		Short: "Run the simulated world alone, for any client of the Equinix Metal API",
		Long: `Sim runs the simulated world: the provider's API, the machines that answer SSH, and the images. Whatever it has acknowledged is in
its journal: it may be killed at any moment, and goes on where it was when it is started again with the same directory.

When it is ready it prints where it is, and leaves a configuration for "ironherd serve" in the directory. One that is not as it was
written last stays as it is; what it would be is in ironherd.yaml.dist.

With --tls the API speaks TLS. Clients must trust the certificate ca.pem in the directory; most of them, "ironherd serve" too, take it
from SSL_CERT_FILE. Images and the status page stay on plain HTTP.

The faults of --faults; "ironherd sim faults" says more of them:
` + faultNames() + `

` + faultSyntax,
		Example: `  ironherd sim --dir /tmp/world --machines 20
  ironherd serve --config /tmp/world/ironherd.yaml
  ironherd sim --dir /tmp/world --faults 429=5%:2s,list-order=100%
  ironherd sim faults`,
		Args: unknownCommand,
	}
	flags := cmd.Flags()
	flags.StringVar(&f.world.Dir, "dir", "", "directory of the world (required)")
	flags.IntVar(&f.world.Machines, "machines", newMachines, "hardware reservations of a new world; a directory keeps what it was made with")
	flags.Uint64Var(&f.world.Seed, "seed", 1, "seed of a new world; a directory keeps the one that it was made with")
	flags.Float64Var(&f.world.Speed, "speed", 1, "how much faster the simulated hardware is")
	flags.StringVar(&f.world.Faults, "faults", "", "what goes wrong in the world: NAME=SHARE% or NAME=#NUMBER, separated by commas")
	flags.StringVar(&f.world.Listen, "listen", "127.0.0.1:0", "address of the API")
	flags.BoolVar(&f.world.TLS, "tls", false, "the API speaks TLS, with a certificate of the world's own authority")
	flags.IntVar(&f.world.SSHPort, "ssh-port", 0, "port on which every machine answers SSH (default: a free one, kept)")
	flags.IntVar(&f.world.RealAgents, "real-agents", 24, "machines that run the uploaded agent as a process; the others run the same code in this process")
	flags.Int64Var(&f.imageSize, "image-size", 64, "size of the image in MiB")
	flags.StringVar(&f.agent, "agent", "", "the agent's executable, for the configuration that is left (default: ironherd-agent beside this program)")
	flags.BoolVar(&f.preload, "preload-agent", false, "machines have the agent beforehand, so that nothing is uploaded")
	flags.StringVar(&f.logLevel, "log-level", "", "log to standard error: debug, info, warn or error (default: nothing)")
	f.output = outputFlag(cmd)
	cmd.AddCommand(a.simFaultsCommand())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.validate(); err != nil {
			return err
		}
		if sim.Exists(f.world.Dir) { // an existing world keeps what no flag names
			if !flags.Changed("machines") {
				f.world.Machines = 0
			}
			if !flags.Changed("seed") {
				f.world.Seed = 0
			}
		}
		return a.untilHangup(cmd.Context(), func(ctx context.Context) error { return a.sim(ctx, f) })
	}
	return cmd
}

func (f simFlags) validate() error {
	var faults []error
	if f.world.Dir == "" {
		faults = append(faults, errors.New("--dir must be set to a directory for the world"))
	}
	if f.world.Machines < 1 {
		faults = append(faults, fmt.Errorf("--machines must be at least 1, not %d", f.world.Machines))
	}
	if !(f.world.Speed > 0) {
		faults = append(faults, fmt.Errorf("--speed must be above 0, not %g", f.world.Speed))
	}
	if f.world.RealAgents < 0 {
		faults = append(faults, fmt.Errorf("--real-agents must not be negative, not %d", f.world.RealAgents))
	}
	if f.imageSize < 4 {
		faults = append(faults, fmt.Errorf("--image-size must be at least 4, not %d", f.imageSize))
	}
	if _, err := fault.Parse(f.world.Faults); err != nil {
		faults = append(faults, fmt.Errorf("--faults: %w", err))
	}
	return fleet.JoinFaults(faults)
}

// simReady is what sim prints once the world is ready.
type simReady struct {
	URL     string    `yaml:"url"`
	Project string    `yaml:"project"`
	Token   string    `yaml:"tokenFile"`
	CA      string    `yaml:"caFile,omitempty"`
	SSHPort int       `yaml:"sshPort"`
	Image   sim.Image `yaml:"image"`
	Config  string    `yaml:"config"`
}

func (a *app) sim(ctx context.Context, f simFlags) (err error) {
	if f.world.Logger, err = a.loggerAt(f.logLevel); err != nil {
		return err
	}
	if f.world.Dir, err = filepath.Abs(f.world.Dir); err != nil {
		return fleet.Errorf(fleet.KindInvalid, "--dir: %w", err)
	}
	f.world.Agent = demo.Agent(a.env.Version)
	f.world.Images = []sim.ImageSpec{{Name: "demo", Size: f.imageSize << 20}}
	if f.preload {
		if f.world.Preload, err = demo.Preload(a.agentNamed(f.agent)); err != nil {
			return err
		}
	}
	world, err := demo.OpenWorld(ctx, f.world)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, world.Close()) }()
	ready, err := a.describeWorld(world, f)
	if err != nil {
		return err
	}
	if err := a.print(*f.output, ready, func(w *screen) { simTable(w, ready) }); err != nil {
		return err
	}
	return world.Run(ctx)
}

// describeWorld stores the world's token and a configuration for "ironherd serve" in the world's
// directory.
func (a *app) describeWorld(world *sim.World, f simFlags) (simReady, error) {
	token := filepath.Join(f.world.Dir, "token")
	if err := os.WriteFile(token, []byte(world.Token()+"\n"), 0o600); err != nil {
		return simReady{}, fmt.Errorf("store the world's token: %w", err)
	}
	address := demo.Describe(world, token)
	herd := filepath.Join(f.world.Dir, "herd")
	c := demo.Settings(herd, a.agentNamed(f.agent), world.Machines(), address)
	// Agents must find a control plane that was restarted under the same address.
	endpoint := net.JoinHostPort(endpointHost(address.URL), "7443")
	c.AgentAPI.Listen, c.AgentAPI.Endpoint = endpoint, endpoint
	c.OperatorAPI.Listen = config.Default().OperatorAPI.Listen
	c.Initializer.Endpoint = ""
	text, err := config.Encode(c, "A control plane for the simulated world beside this file:\nironherd serve --config THIS_FILE")
	if err != nil {
		return simReady{}, err
	}
	file := filepath.Join(f.world.Dir, "ironherd.yaml")
	if err := a.leaveConfig(file, text); err != nil {
		return simReady{}, fmt.Errorf("store a configuration: %w", err)
	}
	return simReady{
		CA: world.CAFile(), URL: address.URL, Project: address.ProjectID, Token: token, SSHPort: address.SSHPort, Image: address.Image, Config: file,
	}, nil
}

// leaveConfig writes a configuration where there is none, or where the one that is there is as it
// was written last. What it was to be is beside it.
func (a *app) leaveConfig(file string, text []byte) error {
	beside := file + ".dist"
	before, err := os.ReadFile(beside)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	is, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && bytes.Equal(is, before):
		err = secret.Write(file, text, true)
	case err == nil && !bytes.Equal(is, text):
		a.note("%s is not as it was written last, and stays as it is. Remove it to have it written anew, as %s is.", file, beside)
	}
	if err != nil {
		return err
	}
	return secret.Write(beside, text, true)
}

// endpointHost returns where agents of a world call: loopback, or this host's address at which its
// API is reached. All its machines are here, which a configuration that names an API elsewhere does
// not say: it would be refused with an endpoint that only this host reaches.
func endpointHost(api string) string {
	if u, err := url.Parse(api); err == nil {
		if ip, err := netip.ParseAddr(u.Hostname()); err == nil && !ip.IsUnspecified() && !ip.IsLoopback() {
			return u.Hostname()
		}
	}
	return "127.0.0.1"
}

func simTable(w *screen, r simReady) {
	pairs := [][2]string{{"API", r.URL}, {"Project", r.Project}, {"Token", r.Token}}
	serve := "ironherd serve --config " + shell.Word(r.Config)
	if r.CA != "" {
		pairs = append(pairs, [2]string{"Certificate", r.CA})
		serve = "SSL_CERT_FILE=" + shell.Word(r.CA) + " " + serve
	}
	w.pairs(append(
		pairs,
		[2]string{"SSH port", fmt.Sprint(r.SSHPort)},
		[2]string{"Image", r.Image.URL + " " + r.Image.Digest},
		[2]string{"Control plane", serve},
	)...)
}
