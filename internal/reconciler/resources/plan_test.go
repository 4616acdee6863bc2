package resources_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
	"github.com/ironherd/ironherd/reconciler"
	"github.com/ironherd/ironherd/reconciler/node"
)

// TestPlanHidesSecrets: nothing that a Secret holds is in a plan: not what it had, not what it is
// to have, not the copy that kubectl keeps in an annotation, and not what is wrong with it.
func TestPlanHidesSecrets(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	secret := func(word string) string {
		encoded := base64.StdEncoding.EncodeToString([]byte(word))
		return fmt.Sprintf(`apiVersion: v1
kind: Secret
metadata:
  name: hidden
  namespace: default
  annotations:
    kubernetes.io/description: what it is for
    kubectl.kubernetes.io/last-applied-configuration: |
      {"apiVersion":"v1","kind":"Secret","data":{"password":%q}}
    other.example.com/password: %s
stringData: {password: %s}
---
`, encoded, word, word)
	}
	words := []string{"first-word", "second-word", "31337", "third-word"}
	hidden := func(what string, a *applier) {
		t.Helper()
		diff, err := a.Plan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(diff)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range words {
			for _, form := range []string{word, base64.StdEncoding.EncodeToString([]byte(word))} {
				if strings.Contains(string(text), form) {
					t.Errorf("%s: %s is shown: %s", what, form, text)
				}
			}
		}
		if !strings.Contains(string(text), "Secret default/hidden") {
			t.Errorf("%s: nothing is planned: %s", what, text)
		}
	}
	w.approving = true
	a := w.start(resources.Options{BuiltIn: []*object.Object{}})
	w.write("a.yaml", secret("first-word"))
	hidden("create", a)
	a.done()
	w.write("a.yaml", secret("second-word"))
	hidden("update", a)
	w.write("a.yaml", "immutable: true\n"+secret("second-word"))
	a.done()
	w.write("a.yaml", "immutable: true\n"+secret("third-word"))
	hidden("create again", a)
	w.write("a.yaml", configMap("another", "1")+configMap("one-more", "1"))
	hidden("delete", a)
	a.AskConsent(func(context.Context, node.Source) (reconciler.Consent, error) { return reconciler.Consent{}, nil })
	hidden("a deletion that is held back", a)
	a.AskConsent(approve)
	for _, wrong := range []string{"data: {pin: 31337}", "data: {pin: third-word}", "stringData: {pin: 31337}"} {
		w.write("a.yaml", configMap("another", "1")+configMap("one-more", "1")+"apiVersion: v1\nkind: Secret\nmetadata: {name: hidden, namespace: default}\n"+wrong+"\n")
		hidden(wrong, a)
	}
	w.write("a.yaml", configMap("another", "1")+configMap("one-more", "1")+
		"apiVersion: v1\nkind: Secret\nmetadata: {name: hidden, namespace: default, annotations: {pin: 31337}}\n")
	hidden("an annotation that is no text", a)
}
