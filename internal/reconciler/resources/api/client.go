// Package api has the requests that we send to a Kubernetes API server: which kinds it has, the
// metadata of objects, server-side apply and deletion under preconditions, and whole objects where
// people want to see a difference.
//
// Every request obeys its context and ends after Timeout. No answer is a reason to ask again here:
// whoever asks finds out at once that the server has too much to do, say. There is no
// client-side rate limit: we send few requests, a few at a time, and the server has priority and
// fairness of its own.
package api

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

// Timeout is how long one request may take; a watch is not one.
const Timeout = 10 * time.Second

// Client speaks to one API server. Safe for concurrent use.
type Client struct {
	log      *slog.Logger
	http     *http.Client
	metadata metadata.Interface
	dynamic  dynamic.Interface
	kinds    *discovery.DiscoveryClient
	host     string
}

// New returns a client, and does not connect yet.
func New(config *rest.Config, log *slog.Logger) (*Client, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	config.UserAgent = object.Manager
	config.WarningHandlerWithContext = &warnings{log: log, seen: map[string]bool{}}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return counter{next: next} })
	c := &Client{log: log, host: config.Host}
	var err error
	if c.http, err = rest.HTTPClientFor(config); err != nil {
		return nil, fmt.Errorf("how to reach the API server: %w", err)
	}
	if c.metadata, err = metadata.NewForConfigAndClient(metadata.ConfigFor(config), c.http); err != nil {
		return nil, fmt.Errorf("how to reach the API server: %w", err)
	}
	if c.dynamic, err = dynamic.NewForConfigAndClient(dynamic.ConfigFor(config), c.http); err != nil {
		return nil, fmt.Errorf("how to reach the API server: %w", err)
	}
	if c.kinds, err = discovery.NewDiscoveryClientForConfigAndClient(config, c.http); err != nil {
		return nil, fmt.Errorf("how to reach the API server: %w", err)
	}
	return c, nil
}

// Address is where the server listens: HOST:PORT.
func (c *Client) Address() string {
	u, _, err := rest.DefaultServerUrlFor(&rest.Config{Host: c.host, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if err != nil {
		return c.host
	}
	if u.Port() != "" {
		return u.Host
	}
	return net.JoinHostPort(u.Hostname(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Logging returns a context that makes the Kubernetes libraries log to our logger, and not to
// standard error.
func (c *Client) Logging(ctx context.Context) context.Context {
	return klog.NewContext(ctx, logr.FromSlogHandler(c.log.Handler()))
}

// counted is the key under which a context carries a count of requests.
type counted struct{}

// Counting returns a context whose requests are counted.
func Counting(ctx context.Context, n *atomic.Int64) context.Context {
	return context.WithValue(ctx, counted{}, n)
}

// counter counts each request as it is sent. It hides from the libraries after which time to ask
// again, because they would do so ten times, for longer than a request may take.
type counter struct{ next http.RoundTripper }

func (c counter) RoundTrip(r *http.Request) (*http.Response, error) {
	if n, ok := r.Context().Value(counted{}).(*atomic.Int64); ok {
		n.Add(1)
	}
	response, err := c.next.RoundTrip(r)
	if response != nil {
		response.Header.Del("Retry-After")
	}
	return response, err
}

// warnings logs each text that the server warns of once.
type warnings struct {
	log  *slog.Logger
	mu   sync.Mutex
	seen map[string]bool
}

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (w *warnings) HandleWarningHeaderWithContext(ctx context.Context, _ int, _, text string) {
	const most = 1000
	w.mu.Lock()
	seen := w.seen[text]
	if len(w.seen) < most {
		w.seen[text] = true
	}
	w.mu.Unlock()
	if !seen {
		w.log.WarnContext(ctx, "the API server warns", slog.String("warning", text))
	}
}

// Ready asks the server once whether it is ready to serve. It returns nil when the server answers
// and has no complaint about itself, whatever it thinks of us.
func (c *Client) Ready(ctx context.Context) error {
	_, err := c.readyz(ctx)
	return err
}

// Usable is Ready, and fails also if the server rejects our credentials. A server that knows us and
// does not let us ask is usable: nobody needs the right to ask that.
func (c *Client) Usable(ctx context.Context) error {
	status, err := c.readyz(ctx)
	if err == nil && status == http.StatusUnauthorized {
		return fmt.Errorf("the API server at %s rejects our credentials: they have expired, or it never knew them", c.host)
	}
	return err
}

// readyz asks once, and returns the HTTP status of an answer without a complaint.
func (c *Client) readyz(ctx context.Context) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	text, err := c.kinds.RESTClient().Get().AbsPath("/readyz").MaxRetries(0).Do(ctx).StatusCode(&status).Raw()
	switch {
	case ctx.Err() != nil:
		return 0, fmt.Errorf("the API server at %s does not answer: %w", c.host, context.Cause(ctx))
	case status == 0 && err != nil:
		return 0, fmt.Errorf("the API server at %s cannot be reached: %w", c.host, err)
	case status >= http.StatusInternalServerError:
		return 0, fmt.Errorf("the API server at %s is not ready: %s", c.host, complaints(text))
	}
	return status, nil
}

// complaints returns the checks that have failed, from the answer of /readyz.
func complaints(text []byte) string {
	var failed []string
	for line := range strings.Lines(string(text)) {
		if name, ok := strings.CutPrefix(line, "[-]"); ok {
			failed = append(failed, strings.TrimSpace(name))
		}
	}
	if len(failed) == 0 {
		return "it does not say why"
	}
	return strings.Join(failed, "; ")
}

// Metadata lists and watches the metadata of a kind, in all namespaces.
func (c *Client) Metadata(kind Kind) metadata.ResourceInterface {
	return c.metadata.Resource(kind.Resource)
}

// in is the metadata client for the objects of a namespace.
func (c *Client) in(kind Kind, namespace string) metadata.ResourceInterface {
	if namespace == "" {
		return c.metadata.Resource(kind.Resource)
	}
	return c.metadata.Resource(kind.Resource).Namespace(namespace)
}

// whole is the client for whole objects of a namespace.
func (c *Client) whole(kind Kind, namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return c.dynamic.Resource(kind.Resource)
	}
	return c.dynamic.Resource(kind.Resource).Namespace(namespace)
}

// Alive reports whether the server answers at all, whatever it thinks of us: there are clusters in
// which few may ask for the version. What is its own fault, or a gateway's, is no answer, nor is
// what a load balancer says that knows no server, or that has waited for one.
func (c *Client) Alive(ctx context.Context) bool {
	const soon = 2 * time.Second
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	status := 0
	c.kinds.RESTClient().Get().AbsPath("/version").Do(ctx).StatusCode(&status)
	return status > 0 && status < http.StatusInternalServerError && status != http.StatusNotFound && status != http.StatusRequestTimeout
}

// Get returns the metadata of an object as the server has it now.
func (c *Client) Get(ctx context.Context, kind Kind, key object.Key) (*metav1.PartialObjectMetadata, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	return c.in(kind, key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
}

// GetWhole returns an object as the server has it now.
func (c *Client) GetWhole(ctx context.Context, kind Kind, key object.Key) (*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	return c.whole(kind, key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
}

// Apply is how an object is applied.
type Apply struct {
	// Mark of our creation, if there is one.
	Mark string
	object.Precondition
	// Force takes fields that other managers have.
	Force bool
	// DryRun changes nothing.
	DryRun bool
}

func (a Apply) options() metav1.PatchOptions {
	// unknown fields are refused anyway
	o := metav1.PatchOptions{FieldManager: object.Manager, Force: &a.Force}
	if a.DryRun {
		o.DryRun = []string{metav1.DryRunAll}
	}
	return o
}

// Apply applies an object and returns its metadata.
func (c *Client) Apply(ctx context.Context, kind Kind, o *object.Object, a Apply) (*metav1.PartialObjectMetadata, error) {
	body, err := o.Body(a.Mark, a.Precondition)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	return c.in(kind, o.Namespace).Patch(ctx, o.Name, types.ApplyPatchType, body, a.options())
}

// ApplyWhole is Apply; it returns the object.
func (c *Client) ApplyWhole(ctx context.Context, kind Kind, o *object.Object, a Apply) (*unstructured.Unstructured, error) {
	body, err := o.Body(a.Mark, a.Precondition)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	return c.whole(kind, o.Namespace).Patch(ctx, o.Name, types.ApplyPatchType, body, a.options())
}

// Creatable asks whether the server would accept an object that is there as a new one, under the
// same name. Nothing is changed. A server asks everybody who may refuse an object before it looks
// whether there is one.
func (c *Client) Creatable(ctx context.Context, kind Kind, o *object.Object) error {
	content := unstructured.Unstructured{Object: o.With("", object.Precondition{})}
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	_, err := c.whole(kind, o.Namespace).Create(ctx, content.DeepCopy(), metav1.CreateOptions{
		FieldManager: object.Manager, DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict,
	})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// Delete deletes the very object that was seen, in the very state in which it was seen, and nothing
// else.
func (c *Client) Delete(ctx context.Context, kind Kind, seen *metav1.PartialObjectMetadata) error {
	propagation := metav1.DeletePropagationBackground
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	return c.in(kind, seen.Namespace).Delete(ctx, seen.Name, metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &seen.UID, ResourceVersion: &seen.ResourceVersion},
		PropagationPolicy: &propagation,
	})
}

// ConfigMaps is the client for the ConfigMaps of a namespace.
func (c *Client) ConfigMaps(namespace string) ConfigMaps {
	return ConfigMaps{c.whole(ConfigMap, namespace)}
}

// ConfigMaps reads and writes those of a namespace.
type ConfigMaps struct{ all dynamic.ResourceInterface }

// Get returns one as the server has it now.
func (c ConfigMaps) Get(ctx context.Context, name string, o metav1.GetOptions, sub ...string) (*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	return c.all.Get(ctx, name, o, sub...)
}

// Create creates one, and returns what is stored.
func (c ConfigMaps) Create(ctx context.Context, m *unstructured.Unstructured, o metav1.CreateOptions, sub ...string) (*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	return c.all.Create(ctx, m, o, sub...)
}

// Update writes one, if it has the version that is given, and returns what is stored.
func (c ConfigMaps) Update(ctx context.Context, m *unstructured.Unstructured, o metav1.UpdateOptions, sub ...string) (*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	return c.all.Update(ctx, m, o, sub...)
}
