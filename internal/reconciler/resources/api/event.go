package api

import (
	"context"
	"crypto/rand"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

// Event is what `kubectl describe` and `kubectl get events` show of an object.
type Event struct {
	// Key of the object. Its namespace is that of the event, too; the event on an object that is in
	// none is in the default one.
	object.Key
	// Version of the object's API, and its UID; empty if there is no such object.
	Version, UID string
	// Reason is one word; Note says it in words. Warning tells that somebody should look.
	Reason, Note string
	Warning      bool
}

// maxNote is how long a note may be; the server refuses a longer one.
const maxNote = 1000

// Event writes an event.
func (c *Client) Event(ctx context.Context, e Event) error {
	kind := "Normal"
	if e.Warning {
		kind = "Warning"
	}
	apiVersion := schema.GroupVersion{Group: e.Group, Version: e.Version}.String()
	regarding := map[string]any{"apiVersion": apiVersion, "kind": e.Kind, "name": e.Name}
	namespace := metav1.NamespaceDefault
	if e.Namespace != "" { // kubectl looks for events on objects that are in none by their having none
		namespace, regarding["namespace"] = e.Namespace, e.Namespace
	}
	if e.UID != "" {
		regarding["uid"] = e.UID
	}
	// Names of roles have colons, which a name of an event cannot have.
	name := strings.ToLower("ironherd-reconciler." + rand.Text()[:16])
	note := e.Note
	if len(note) > maxNote {
		note = strings.ToValidUTF8(note[:maxNote], "") + "…"
	}
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	_, err := c.dynamic.Resource(schema.GroupVersionResource{Group: "events.k8s.io", Version: "v1", Resource: "events"}).Namespace(namespace).
		Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "events.k8s.io/v1", "kind": "Event",
			"metadata":            map[string]any{"name": name, "namespace": namespace},
			"eventTime":           time.Now().UTC().Format(metav1.RFC3339Micro),
			"reportingController": "ironherd.dev/reconciler", "reportingInstance": object.Manager,
			"action": "Reconcile", "reason": e.Reason, "note": note, "type": kind, "regarding": regarding,
		}}, metav1.CreateOptions{FieldManager: object.Manager})
	return err
}
