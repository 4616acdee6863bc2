package provider_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/provider"
)

// TestHostKeysArePrintedWithoutTheirSecret in whatever form, alone and within a request.
func TestHostKeysArePrintedWithoutTheirSecret(t *testing.T) {
	t.Parallel()
	key := provider.NewHostKey("ssh-ed25519 AAAA", "SHA256:A", "hunter2")
	request := provider.CreateRequest{HostKey: key}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", slog.Any("key", key), slog.Any("request", request), slog.Any("pointer", &request))
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", slog.Any("key", key))
	encoded, err := json.Marshal(key)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("%v %+v %#v %s %q %x", key, key, key, key, key, key) +
		fmt.Sprintf("%v %+v %#v", request, request, request) + log.String() + string(encoded)
	if strings.Contains(text, "hunter2") || strings.Contains(text, "68756e746572") || key.Private() != "hunter2" {
		t.Error(text)
	}
}
