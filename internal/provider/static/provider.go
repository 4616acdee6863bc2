// Package static is the provider for hosts that exist already: a list of them in a file or behind a
// URL, in YAML or JSON:
//
//	hosts:
//	  - id: rack1-node3
//	    hostname: db3                       # the machine's name; the id where there is none
//	    address: 192.0.2.17
//	    port: 2222                          # the initializer's port and user where there are none
//	    user: root                          # or another with root's rights: sudo is never used
//	    host_key: ssh-ed25519 AAAA…
//	    location: rack 1
//	    labels: {role: database}            # shown, and selected by
//	    jump: {address: 192.0.2.1, port: 22, user: j, host_key: ssh-ed25519 AAAA…}
//
// or the bare list of hosts. Host and capacity are one thing here, and an entry's ID names both.
// Only id and address are needed.
//
// The list does not say whether a host is in use; the BMDB knows (possibly-used). Nothing is ever
// created: Create and FindByToken return the host if it is on the list. A list has no tokens, and
// FindByToken ignores the token, because two creations of one host do not differ in anything.
//
// Each call looks whether the file has changed, so a change needs no restart. (The provider does
// not fetch a URL again for a single host within fetchAge.) What is new in a list counts when that
// is complete, as far as can be told: when the file stays as it is for a moment (settled), or when
// the URL says the same twice, a moment apart. A call waits for that, and fails with kind
// Temporary where it takes too long, or Timeout where a file does not answer. So half of a list
// makes no host gone, and no other host out of one, while it is being written. One that stays cut
// between two lines counts as it is: hosts may be missing, and of its last host the lines behind,
// such as its port and its jump host. Whoever writes to a new file and renames it is safe.
//
// Where the next fetch of a URL may come long after the last one (Config.Spacing), a fetch that
// fails, or says something new, does not keep questions about a single host from their answer: the
// list that counted last gives it for three spacings at most. It does not for a host of which the
// newer one says something else, as that it is gone. Older than one spacing, it does not say of a
// host that it is not there, either: the error is of kind Temporary then, and not NotFound.
//
// Else a list that it cannot read answers nothing; the error names the line. A host that it does
// not understand becomes an entry that says what is wrong; the others are not affected. So does the
// last one of a list that ends in the middle of a line: a writer may have stopped there for long.
package static

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/secret"
)

// listSize bounds a list, in bytes: 335 for each of the most hosts. While it is parsed, a list
// takes some thirty times its size of memory.
const listSize = 32 << 20

// Provider is one host list. It is safe for concurrent use.
type Provider struct {
	config Config
	client *http.Client
	// One of the two is used.
	file   file
	remote remote
}

var _ provider.Provider = (*Provider)(nil)

// New returns a provider for a valid configuration. It does not read the list.
func New(config Config, options provider.Options) (*Provider, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	limits := provider.Limits{Spacing: config.Spacing, InFlight: config.InFlight, AnswerSize: listSize}
	endpoint := func(*http.Request) string { return "GET host list" }
	p := &Provider{
		config: config,
		client: &http.Client{Transport: provider.NewTransport(limits, endpoint, options), CheckRedirect: followed},
		file:   file{path: config.Path, load: readFile},
	}
	p.remote.name, p.remote.fetch, p.remote.pause = p.name(), p.fetch, settled
	if config.Spacing > fetchAge {
		p.remote.spacing = config.Spacing
	}
	return p, nil
}

// maximumRedirects bounds how often one fetch is redirected.
const maximumRedirects = 10

// followed says why a redirect is not followed; nil: it is. What was asked for over https is taken
// over https alone: on the way back to http anybody could put in hosts of their own. Nobody is told
// the URL that was asked for before, which may have a secret in its query.
func followed(next *http.Request, before []*http.Request) error {
	to := next.URL
	stays := before[0].URL.Scheme == "http" && secret.StaysHere(to.Hostname())
	switch {
	case to.Scheme != "https" && (to.Scheme != "http" || !stays):
		return fleet.Errorf(fleet.KindInvalid, "it redirects to %s://%s, and is followed to https alone: name an https URL that serves the list itself",
			to.Scheme, to.Host)
	case len(before) >= maximumRedirects:
		return fleet.Errorf(fleet.KindInvalid, "it redirects more than %d times", maximumRedirects)
	}
	next.Header.Del("Referer")
	return nil
}

// Kind returns "static".
func (p *Provider) Kind() string { return "static" }

// CloseIdleConnections closes the connections that no call uses.
func (p *Provider) CloseIdleConnections() { p.client.CloseIdleConnections() }

// KeepsMachines returns true: the hosts of a list stay where they are.
func (p *Provider) KeepsMachines() bool { return true }

// List returns the hosts.
func (p *Provider) List(ctx context.Context) ([]provider.Entry, error) {
	l, err := p.read(ctx, false)
	if err != nil {
		return nil, err
	}
	return slices.Clone(l.entries), nil
}

// ListMachines returns the hosts that have an ID.
func (p *Provider) ListMachines(ctx context.Context) ([]provider.Entry, error) {
	entries, err := p.List(ctx)
	return provider.Machines(entries), err
}

// read returns the list as of now; of a URL, where recent is set, as of a moment ago.
func (p *Provider) read(ctx context.Context, recent bool) (*list, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read host list %s: %w", p.name(), context.Cause(ctx))
	}
	if p.config.Path != "" {
		return p.file.read(ctx)
	}
	return p.remote.read(ctx, recent)
}

// Get returns a host.
func (p *Provider) Get(ctx context.Context, id fleet.ProviderID) (provider.Entry, error) {
	if id == "" {
		return provider.Entry{}, fleet.Errorf(fleet.KindInvalid, "a host is asked for by its ID")
	}
	l, err := p.read(ctx, true)
	if err != nil {
		return provider.Entry{}, err
	}
	return p.find(l, id)
}

// find returns what a list says of a host. Its errors are about that host alone.
func (p *Provider) find(l *list, id fleet.ProviderID) (provider.Entry, error) {
	if l.saysNew(id) {
		return provider.Entry{}, fleet.Errorf(fleet.KindTemporary, "host list %s says something new of host %q, which counts when it was fetched again and says the same", p.name(), id)
	}
	if entry, there := l.get(id); there {
		return entry, nil
	}
	if !l.asOf.IsZero() { // it may have been put on the list since
		return provider.Entry{}, fleet.Errorf(fleet.KindTemporary, "host %q was not on the list %s at %s, and what that says now is not known",
			id, p.name(), l.asOf.UTC().Format(time.RFC3339))
	}
	return provider.Entry{}, fleet.Errorf(fleet.KindNotFound, "host %q is not on the list %s", id, p.name())
}

// Create returns the host if it is on the list and makes sense. There is nothing to call:
// BeforeCall is not called. A failure is about that host alone (provider.ConcernsCapacity) unless
// the list cannot be read.
func (p *Provider) Create(ctx context.Context, request provider.CreateRequest) (provider.Entry, error) {
	if request.Token == "" || request.Capacity == "" {
		return provider.Entry{}, fleet.Errorf(fleet.KindInvalid, "a host is taken by its ID and with a token")
	}
	l, err := p.read(ctx, true)
	if err != nil {
		return provider.Entry{}, err
	}
	entry, err := p.find(l, fleet.ProviderID(request.Capacity))
	switch {
	case err != nil:
		return provider.Entry{}, provider.OfCapacity(err)
	case entry.Invalid != "":
		return provider.Entry{}, provider.OfCapacity(fleet.Errorf(fleet.KindInvalid, "host list %s: %s", p.name(), entry.Invalid))
	}
	return entry, nil
}

// FindByToken returns the host if it is on the list; see the package comment.
func (p *Provider) FindByToken(ctx context.Context, capacity fleet.CapacityID, _ fleet.Token) (provider.Entry, error) {
	return p.Get(ctx, fleet.ProviderID(capacity))
}

// name is how messages name the list. It leaves out a URL's user and query, which may be secrets.
func (p *Provider) name() string {
	if p.config.Path != "" {
		return p.config.Path
	}
	address, err := url.Parse(p.config.URL)
	if err != nil {
		return "(URL)"
	}
	return address.Scheme + "://" + address.Host + address.Path
}

func (p *Provider) fetch(ctx context.Context) ([]byte, error) {
	what := "fetch host list " + p.name()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.config.URL, http.NoBody)
	if err != nil {
		return nil, fleet.Errorf(fleet.KindInvalid, "%s: the URL cannot be used", what)
	}
	response, err := p.client.Do(request)
	if err != nil {
		var lost *url.Error
		if errors.As(err, &lost) { // its text has the URL
			err = lost.Err
		}
		return nil, &fleet.Error{Kind: fleet.KindOf(err), Message: what, RetryAfter: fleet.RetryAfter(err), Err: err}
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		kind := provider.KindOfStatus(response.StatusCode)
		// Of the list, and not of a host.
		if kind == fleet.KindNotFound || response.StatusCode == http.StatusGone {
			kind = fleet.KindInvalid
		}
		return nil, fleet.Errorf(kind, "%s: the answer is %s", what, response.Status)
	}
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fleet.Errorf(fleet.KindTemporary, "%s: %w", what, err)
	}
	return data, nil
}
