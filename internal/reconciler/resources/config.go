package resources

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/ironherd/ironherd/internal/reconciler/resources/api"
	"github.com/ironherd/ironherd/internal/reconciler/resources/builtin"
	"github.com/ironherd/ironherd/internal/reconciler/resources/health"
	"github.com/ironherd/ironherd/internal/reconciler/resources/inventory"
	"github.com/ironherd/ironherd/internal/reconciler/resources/manifest"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
)

// Options say which objects are wanted besides the release's own, and how far a pass may go.
type Options struct {
	// Manifests is a directory of manifests, which each pass reads anew; empty: none. It should be
	// the same on every node, because only the leader's counts.
	Manifests string
	// Force takes all fields that other managers own. Without it such a field is a failure that
	// names the managers.
	Force bool
	// MaxPrune is how many objects that are no longer in the manifests a pass may delete. If there
	// are more, it deletes none, and fails. 0: any number that is no more than half of what was
	// created from manifests, as long as others agree. An approval overrules all three
	// (reconciler.Consent).
	MaxPrune int
	// Absence is for how long each pass must have found an object missing from the manifests before
	// one deletes it: one that is moved from file to file is in neither for a moment. Zero:
	// DefaultAbsence.
	Absence time.Duration
	// Settled is for how long a manifest has to be the same before a new text of it counts: until
	// then it may be half of what it is to become. Zero: DefaultSettled; negative: it counts at
	// once.
	Settled time.Duration
	// Vanished is for how long the server must have lacked the kind of an object that is no longer
	// wanted before that is forgotten. Zero: inventory.Settle.
	Vanished time.Duration
	// LookEvery is how long an object that no watch tells of, because it does not bear our label, is
	// taken to be as it was. Zero: DefaultLookEvery.
	LookEvery time.Duration
	// Landing is how long a request that deletes an object, to create it again, may take to be carried
	// out after that was recorded. Zero: DefaultLanding.
	Landing time.Duration
	// Budget is how long a pass works on what the manifests want before it leaves the rest to the
	// next one: what hangs there must not keep what the release needs waiting. Zero: DefaultBudget.
	Budget time.Duration
	// Selection is which parts of the release's own set are wanted.
	Selection builtin.Selection
	// BuiltIn replaces the release's own set; Selection means nothing then.
	BuiltIn []*object.Object
}

// nothing, as Options.BuiltIn, is a release that wants nothing of its own.
var nothing = []*object.Object{}

// DefaultAbsence is the default of Options.Absence.
const DefaultAbsence = 30 * time.Second

// DefaultLanding is the default of Options.Landing. An API server works on a request for a minute,
// unless it is told otherwise; the rest is for the record before it, and for clocks that differ.
const DefaultLanding = 90 * time.Second

// DefaultSettled is the default of Options.Settled.
const DefaultSettled = 2 * time.Second

// DefaultBudget is the default of Options.Budget.
const DefaultBudget = 10 * time.Second

// DefaultLookEvery is the default of Options.LookEvery.
const DefaultLookEvery = 20 * time.Second

// Validate reports every fault.
func (o Options) Validate() error {
	var wrong error
	if o.MaxPrune < 0 {
		wrong = errors.New("max prune must not be negative")
	}
	return errors.Join(wrong, o.Selection.Validate())
}

// release is the release's own set.
type release struct {
	objects []*object.Object
	// offered are the objects that the release could keep. One that is not selected is left as it is.
	offered map[object.Key]bool
	// contested is the key of the object that is in objects as the default class, and yielding the
	// same object for while another class is the default. Nil: no class is to be the default.
	contested, yielding *object.Object
}

func (o Options) release() (r release, err error) {
	if o.BuiltIn != nil {
		r.objects, r.offered = o.BuiltIn, map[object.Key]bool{}
		for _, own := range o.BuiltIn {
			r.offered[own.Key] = true
		}
		return r, nil
	}
	if r.objects, err = builtin.Objects(o.Selection); err != nil {
		return r, err
	}
	if r.offered, err = builtin.Keys(); err != nil || o.Selection.DefaultClass == "" {
		return r, err
	}
	if r.yielding, err = builtin.WithoutDefault(o.Selection); err != nil {
		return r, err
	}
	at := slices.IndexFunc(r.objects, func(own *object.Object) bool { return own.Key == r.yielding.Key })
	r.contested = r.objects[at]
	return r, nil
}

// Open prepares an Applier for the API server that a kubeconfig file names in its current context.
// Nothing is asked of it yet.
func Open(kubeconfig string, o Options, log *slog.Logger) (*Applier, error) {
	if kubeconfig == "" {
		return nil, errors.New("kubeconfig must be set: a file that says how to reach the API server")
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	return New(config, o, log)
}

// New is Open with a client configuration instead of a file.
func New(config *rest.Config, o Options, log *slog.Logger) (*Applier, error) {
	a, err := offline(o, log)
	if err != nil {
		return nil, err
	}
	if a.client, err = api.New(config, log); err != nil {
		return nil, err
	}
	return a, nil
}

// Check returns what is wrong with the manifests, by themselves and beside the release's own set,
// or beside nothing if the options do not say what that is. It asks nobody.
func Check(ctx context.Context, o Options) ([]reconciler.Failure, error) {
	log := slog.New(slog.DiscardHandler)
	a, err := offline(o, log)
	if err != nil {
		a, err = offline(Options{Manifests: o.Manifests, BuiltIn: nothing}, log)
	}
	if err != nil {
		return nil, err
	}
	return a.Faults(ctx), nil
}

// CheckKubeconfig returns what is wrong with a kubeconfig, and with the files that it names, or
// else where the API server listens. It asks nobody.
func CheckKubeconfig(kubeconfig string) (server string, err error) {
	a, err := Open(kubeconfig, Options{BuiltIn: nothing}, slog.New(slog.DiscardHandler))
	if err != nil {
		return "", err
	}
	defer a.Close()
	return a.Address(), nil
}

// SecretFiles returns the files that have what a kubeconfig's current context proves itself to the
// API server with: a key, a token or a password. The kubeconfig is one where it has that itself, or
// gives it to a program that fetches such.
func SecretFiles(kubeconfig string) (files []string, err error) {
	resolved, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	config, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	if u := userOf(config); u != nil {
		program := u.Exec != nil && len(u.Exec.Env) > 0 || u.AuthProvider != nil && len(u.AuthProvider.Config) > 0
		if len(u.ClientKeyData) > 0 || u.Token != "" || u.Password != "" || program {
			files = append(files, kubeconfig)
		}
	}
	for _, file := range []string{resolved.KeyFile, resolved.BearerTokenFile} {
		if file != "" {
			files = append(files, file)
		}
	}
	return files, nil
}

// userOf returns the user of a kubeconfig's current context; nil: it names none.
func userOf(config *clientcmdapi.Config) *clientcmdapi.AuthInfo {
	if context := config.Contexts[config.CurrentContext]; context != nil {
		return config.AuthInfos[context.AuthInfo]
	}
	return nil
}

// Certificate is where the certificate is by which a kubeconfig's current context is known to the
// API server.
type Certificate struct {
	// File has it: the kubeconfig itself may. Empty: there is none.
	File string
	// embedded is what the kubeconfig itself has.
	embedded []byte
}

// ClientCertificate finds the certificate of a kubeconfig.
func ClientCertificate(kubeconfig string) (Certificate, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	switch {
	case err != nil:
		return Certificate{}, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	case len(config.CertData) > 0:
		return Certificate{kubeconfig, config.CertData}, nil
	}
	return Certificate{File: config.CertFile}, nil
}

// Read returns the certificate in PEM, as a process presents it that has read the kubeconfig when
// this was found: it reads a file of its own again, but never the kubeconfig.
func (c Certificate) Read() ([]byte, error) {
	if c.embedded != nil || c.File == "" {
		return c.embedded, nil
	}
	return os.ReadFile(c.File)
}

// offline returns an Applier that knows what is wanted, and has no client yet.
func offline(o Options, log *slog.Logger) (*Applier, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	own, err := o.release()
	if err != nil {
		return nil, fmt.Errorf("built-in resources: %w", err)
	}
	judge, err := health.NewJudge()
	if err != nil {
		return nil, err
	}
	for _, o := range own.objects {
		if err := judge.Check(o.HealthyWhen()); err != nil {
			return nil, fmt.Errorf("%s: %w", o.Key, err)
		}
	}
	o.Absence, o.LookEvery = cmp.Or(o.Absence, DefaultAbsence), cmp.Or(o.LookEvery, DefaultLookEvery)
	o.Vanished, o.Settled = cmp.Or(o.Vanished, inventory.Settle), cmp.Or(o.Settled, DefaultSettled)
	o.Landing, o.Budget = cmp.Or(o.Landing, DefaultLanding), cmp.Or(o.Budget, DefaultBudget)
	directory := manifest.At(o.Manifests, o.Settled)
	return &Applier{
		judge: judge, options: o, release: own, log: log, directory: directory, aside: directory.Aside(),
		changed: make(chan struct{}, 1), attached: make(chan struct{}),
	}, nil
}
