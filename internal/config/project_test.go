package config_test

import (
	"slices"
	"strings"
	"testing"
)

// TestAProjectHasOneProvider, however its API is spelled.
func TestAProjectHasOneProvider(t *testing.T) {
	t.Parallel()
	const project = "7b1d6e0a-5f2c-4c7e-9a51-0c8f4a6f7d11"
	for other, same := range map[string]bool{
		"project: " + project: true,
		"api_url: 'https://API.equinix.com:443/metal/v1/', project: " + strings.ToUpper(project): true,
		"api_url: 'https://metal.example/metal/v1', project: " + project:                         false,
		"project: 7b1d6e0a-5f2c-4c7e-9a51-0c8f4a6f7d12":                                          false,
		"project: CHANGEME": false,
	} {
		found := faults(t, minimal+"providers:\n- {name: a, kind: equinix, equinix: {project: "+project+"}}\n"+
			"- {name: b, kind: equinix, equinix: {"+other+"}}\n")
		const fault = "ironherd.yaml:6: providers[1].equinix.project: is that of providers[0] too, at the same api_url: a machine has one provider, " +
			"so give each a project of its own, or remove the one that has no machines"
		if slices.Contains(found, fault) != same {
			t.Errorf("%s: %q", other, found)
		}
	}
}
