package cli

import (
	"cmp"
	"errors"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shell"
)

// findServer returns the control plane to ask: that of --server, --config, $IRONHERD_SERVER or
// $IRONHERD_CONFIG, the first of these that is set. Where none is, it is the only one that listens
// at a well-known place.
func (a *app) findServer() (string, error) {
	switch server := a.getenv("IRONHERD_SERVER"); {
	case a.server != "" && a.configFile != "":
		return a.server, a.checkServerIsConfigured()
	case a.server != "":
		return a.server, nil
	case a.configFile == "" && server != "":
		return server, nil
	}
	if file := a.namedConfig(); file != "" {
		configured, err := a.configuredServer()
		return "unix://" + configured.Socket, err
	}
	return a.findSocket()
}

// namesServer reports whether a control plane was named.
func (a *app) namesServer() bool {
	return cmp.Or(a.server, a.getenv("IRONHERD_SERVER"), a.namedConfig()) != ""
}

// configuredServer returns where the control plane of --config listens. Faults that have nothing to
// do with that are told, and keep nobody from a control plane that runs.
func (a *app) configuredServer() (config.OperatorAPI, error) {
	var sources config.Sources
	if err := a.completeSources(&sources); err != nil {
		return config.OperatorAPI{}, err
	}
	configured, others, err := config.LoadServer(sources)
	switch {
	case len(others) == 1:
		a.note("Asking the control plane of %s although that has a fault: %s", a.configFile, others[0])
	case len(others) > 1:
		a.note("Asking the control plane of %s although that has %d faults, of which `ironherd config check %s` lists all: %s", a.configFile, len(others),
			shell.Word(a.configFile), others[0])
	}
	return configured, err
}

// checkServerIsConfigured refuses a --server where the control plane of --config does not listen.
// Over TCP that one has names and addresses which are not known here, so the port has to tell.
func (a *app) checkServerIsConfigured() error {
	configured, err := a.configuredServer()
	if err != nil {
		return err
	}
	u, err := url.Parse(a.server)
	if err != nil {
		return badServer(a.server)
	}
	same := cmp.Or(u.Path, u.Opaque) == configured.Socket
	if u.Scheme != "unix" {
		_, port, _ := net.SplitHostPort(configured.Listen)
		same = port != "" && (port == u.Port() || port == "0")
	}
	if !same {
		return fleet.Errorf(fleet.KindInvalid, "--server and --config contradict each other, because the control plane of %s listens at unix://%s: "+
			"give one of them", a.configFile, configured.Socket)
	}
	return nil
}

// findSocket returns the only control plane that listens at a well-known place.
func (a *app) findSocket() (string, error) {
	var found, closed []string
	for _, path := range a.wellKnownSockets() {
		switch info, err := os.Stat(path); {
		case err == nil && info.Mode()&os.ModeSocket != 0 && !leftByDemo(path):
			found = append(found, "unix://"+path)
		case errors.Is(err, fs.ErrPermission):
			closed = append(closed, filepath.Dir(path))
		}
	}
	switch {
	case len(found) > 1:
		return "", fleet.Errorf(fleet.KindInvalid, "several control planes were found (%s): name one with --server or --config", strings.Join(found, ", "))
	case len(found) == 1:
		// Whoever has a control plane with another directory may not mean a demo.
		if filepath.Base(found[0]) == demoSocket {
			a.note("Asking the demo at %s: name another control plane with --server or --config.", found[0])
		}
		return found[0], nil
	case len(closed) > 0:
		return "", fleet.Errorf(fleet.KindForbidden, "this user may not look for a control plane in %s: be root, or use --server with a token", closed[0])
	}
	return "", fleet.Errorf(fleet.KindTemporary,
		"no control plane was found on this host: start one (ironherd demo, ironherd serve), or name one with --server or --config")
}

// leftByDemo reports whether path is the link of a demo that was killed: nobody listens there. Any
// other control plane may be about to come back.
func leftByDemo(path string) bool {
	if filepath.Base(path) != demoSocket {
		return false
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// wellKnownSockets returns where a control plane with the default directory listens, and where a
// demo leaves a link to its own socket.
func (a *app) wellKnownSockets() []string {
	user := config.UserDir(a.env.Environ)
	paths := []string{filepath.Join(config.SystemDir, config.SocketName)}
	if user != "" {
		paths = append(paths, filepath.Join(user, config.SocketName), filepath.Join(user, demoSocket))
	}
	return paths
}

// demoSocket is the name of the link that a demo leaves in the user's directory.
const demoSocket = "demo.sock"
