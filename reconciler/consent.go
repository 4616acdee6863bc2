package reconciler

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/reconciler/etcd"
	"github.com/ironherd/ironherd/reconciler/gate"
	"github.com/ironherd/ironherd/reconciler/node"
	"github.com/ironherd/ironherd/reconciler/release"
)

// Sourcer is an Applier that takes what it keeps from files of its node. The files of two nodes may
// differ, and a disk may not be mounted. So the Service publishes what each node's files say, and
// the Applier asks for consent before it deletes what is no longer in them.
type Sourcer interface {
	// Source reads the files. The Service calls it at intervals on every node, whether it leads or
	// not.
	Source(ctx context.Context) node.Source
	// AskConsent is called once, before anything else, with what Pass has to ask.
	AskConsent(ask func(ctx context.Context, own node.Source) (Consent, error))
}

// Consent is what others say about deleting what is no longer in the files.
type Consent struct {
	// Agreed tells whether the files of every node say the same.
	Agreed gate.Verdict
	// Approved tells that a person has said that what these files say is a decision.
	Approved bool
}

// Approval is a person's word that what the files say is a decision: what is no longer in them may
// be deleted, however much it is and whatever other nodes have. It is of one digest, so it does not
// cover what the files say later. etcd removes it when its time is up.
type Approval struct {
	// Digest of the Source that is approved.
	Digest string `json:"digest"`
	// By says who, and Reason why, for people.
	By     string `json:"by,omitempty"`
	Reason string `json:"reason"`
	// At and Until are when, by the clock of who wrote it. The end is a lease of etcd. Where a change
	// of etcd's own leader has put that off, the approval no longer counts.
	At    time.Time `json:"at"`
	Until time.Time `json:"until"`
}

// MaxApproval is the longest time for which an approval can hold.
const MaxApproval = 24 * time.Hour

// Approve stores an approval in place of any other. It ends by itself after the given time. At and
// Until are filled in. failure.Invalid for what can be no approval.
func Approve(ctx context.Context, client *clientv3.Client, layout etcd.Layout, a Approval, length time.Duration) error {
	switch {
	case a.Digest == "":
		return fleet.Errorf(fleet.KindInvalid, "the digest of the manifests must be given: `status` shows it")
	case a.Reason == "":
		return fleet.Errorf(fleet.KindInvalid, "the reason of an approval must be given, for whoever comes across it")
	case length < time.Second || length > MaxApproval:
		return fleet.Errorf(fleet.KindInvalid, "an approval can hold from a second to %s, not %s", MaxApproval, length)
	}
	a.At = time.Now().UTC().Truncate(time.Second)
	a.Until = a.At.Add(length)
	_, err := putFor(ctx, client, layout.Approval(), a, length, "approve the manifests")
	return err
}

// Withdraw removes the approval. failure.NotFound when there is none.
func Withdraw(ctx context.Context, client *clientv3.Client, layout etcd.Layout) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := client.Delete(ctx, layout.Approval())
	switch {
	case err != nil:
		return etcd.Failed(ctx, client, "withdraw the approval", err)
	case answer.Deleted == 0:
		return fleet.Errorf(fleet.KindNotFound, "no manifests are approved")
	}
	return nil
}

// readApproval returns nil when there is none, when it cannot be read, or when it is over. Known is
// since when it has been seen; nil where it is only to be shown.
func readApproval(ctx context.Context, client *clientv3.Client, layout etcd.Layout, known *sightings) (*Approval, error) {
	a, snapshot, err := readJSON[Approval](ctx, client, layout.Approval())
	if err != nil {
		return nil, err
	}
	known.see(snapshot)
	if a != nil && known.over(layout.Approval(), a.At, a.Until) {
		return nil, nil
	}
	return a, nil
}

// consent asks the registry, linearizably: what is followed may be a moment old, and a deletion
// cannot be taken back.
func (s *Service) consent(ctx context.Context, own node.Source) (Consent, error) {
	return askConsent(ctx, s.config, s.client, s.registry, &s.sightings, own)
}

func askConsent(ctx context.Context, config Config, client *clientv3.Client, registry *node.Registry, known *sightings, own node.Source) (Consent, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	set, err := registry.List(ctx)
	if err != nil {
		return Consent{}, err
	}
	approval, err := readApproval(ctx, client, config.Layout, known)
	if err != nil {
		return Consent{}, err
	}
	return Consent{
		Agreed:   agreed(set, config.Node, config.Build.Release, own),
		Approved: approval != nil && approval.Digest == own.Digest && own.Whole(),
	}, nil
}

// agreed says whether the files of every node say the same as those of the node that asks. Nodes of
// an older release are asked, too: the first node of a new one may have only a part of the files.
func agreed(set node.Set, self string, ours release.Release, own node.Source) gate.Verdict {
	var others []string
	for _, n := range set.Nodes {
		who := n.Name
		if n.Known && n.Release != ours {
			who += " of release " + n.Release.String()
		}
		switch {
		case !n.Counts() || n.Name == self:
		case !n.Known:
			others = append(others, who+" (its record cannot be read)")
		case n.Source == nil:
			others = append(others, who+" (has not said which it has)")
		case !n.Source.Whole():
			others = append(others, who+" (cannot read all of its own)")
		case n.Source.Digest != own.Digest:
			others = append(others, fmt.Sprintf("%s (%s, %d objects)", who, n.Source.Digest, n.Source.Objects))
		}
	}
	if len(others) > 0 {
		return gate.Verdict{Reason: fmt.Sprintf("not every node has the same manifests as %s (%s, %d objects): %s",
			self, own.Digest, own.Objects, strings.Join(others, ", "))}
	}
	return gate.Verdict{OK: true, Reason: "every node has the same manifests"}
}

// declare keeps what the files of this node say in its record, so that whoever leads can compare.
// It reads them at intervals, and when the record does not say what they said: somebody may have
// written it anew.
func (s *Service) declare(ctx context.Context, sourcer Sourcer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sets := s.nodes.Watch(ctx)
	for {
		source := sourcer.Source(ctx)
		source.Own.Release = s.config.Build.Release
		wrote, err := s.registry.Declare(ctx, s.config.Node, source)
		if err != nil && fleet.KindOf(err) != fleet.KindConflict { // a conflict: the next time
			return err
		}
		if wrote {
			s.config.Logger.InfoContext(ctx, "declared the manifests of this node", slog.String("digest", source.Digest),
				slog.Int("objects", source.Objects), slog.Int("faults", source.Faults))
		}
		if !s.awaitUndeclared(ctx, sets, source) {
			return nil
		}
	}
}

// awaitUndeclared waits until the files of this node are to be read again: for the time between
// full passes, or until its record does not say what they said. It returns false when ctx ends.
func (s *Service) awaitUndeclared(ctx context.Context, sets <-chan node.Set, said node.Source) bool {
	next := time.After(s.config.FullPass)
	for {
		select {
		case set := <-sets:
			if !slices.ContainsFunc(set.Nodes, func(n node.Node) bool {
				return n.Name == s.config.Node && n.Source != nil && *n.Source == said
			}) {
				return ctx.Err() == nil
			}
		case <-next:
			return true
		case <-ctx.Done():
			return false
		}
	}
}
