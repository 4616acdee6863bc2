package install

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// registryWith serves a registry that others have written, with the blobs as the layers of a
// manifest, and returns the reference of that. wrap may put something in front.
func registryWith(t *testing.T, wrap func(http.Handler) http.Handler, layers ...[]byte) string {
	t.Helper()
	return registryOf(t, wrap, ociLayer{MediaType: "application/vnd.ironherd.disk"}, layers...)
}

// registryOf does, and its layers are said to be as that one is.
func registryOf(t *testing.T, wrap func(http.Handler) http.Handler, as ociLayer, layers ...[]byte) string {
	t.Helper()
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(wrap(inner))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	push := func(method, path, kind string, body []byte) {
		t.Helper()
		request := httptest.NewRequest(method, path, bytes.NewReader(body))
		request.Header.Set("Content-Type", kind)
		recorder := httptest.NewRecorder()
		inner.ServeHTTP(recorder, request)
		if recorder.Code != http.StatusCreated {
			t.Fatalf("%s %s: %s", method, path, recorder.Result().Status)
		}
	}
	type descriptor struct {
		MediaType string `json:"mediaType"`
		Digest    string `json:"digest"`
		Size      int    `json:"size"`

		Annotations map[string]string `json:"annotations,omitempty"`
	}
	manifest := struct {
		SchemaVersion int          `json:"schemaVersion"`
		MediaType     string       `json:"mediaType"`
		Config        descriptor   `json:"config"`
		Layers        []descriptor `json:"layers"`
	}{2, manifestTypes[0], descriptor{"application/vnd.oci.empty.v1+json", digestOf([]byte("{}")), 2, nil}, nil}
	for _, blob := range append([][]byte{[]byte("{}")}, layers...) {
		push(http.MethodPost, "/v2/os/debian/blobs/uploads/?digest="+digestOf(blob), "application/octet-stream", blob)
	}
	for _, blob := range layers {
		manifest.Layers = append(manifest.Layers, descriptor{as.MediaType, digestOf(blob), len(blob), as.Annotations})
	}
	data, err := json.Marshal(manifest)
	if err != nil {
		t.Fatal(err)
	}
	push(http.MethodPut, "/v2/os/debian/manifests/"+digestOf(data), manifest.MediaType, data)
	return "oci://" + host + "/os/debian@" + digestOf(data)
}

func plain(h http.Handler) http.Handler { return h }

func TestInstallFromARegistry(t *testing.T) {
	t.Parallel()
	image := testImage(4, 5*mebibyte+77)
	m := newMachine(t)
	request := requestFor(registryWith(t, plain, compress(t, image, agentv1.Compression_COMPRESSION_ZSTD)), image)
	request.Image.Compression = agentv1.Compression_COMPRESSION_ZSTD
	request.Image.FileDigest = strings.SplitAfter(request.Image.Url, "@")[1]
	if report := Run(t.Context(), request, m.options()); !strings.Contains(report.GetError(), "and the manifest says sha256:") || report.GetDisk() != "" {
		t.Errorf("with the manifest's digest as that of the file: %v", report)
	}
	request.Image.FileDigest = ""
	if report := Run(t.Context(), request, m.options()); !report.GetOk() {
		t.Fatal(report.GetError())
	}
	checkInstalled(t, m, image, request)
}

// TestTheManifestSaysHowALayerIsCompressed, and the request leaves that to it.
func TestTheManifestSaysHowALayerIsCompressed(t *testing.T) {
	t.Parallel()
	image := testImage(4, 2*mebibyte+77)
	titled := func(title string) map[string]string {
		return map[string]string{"org.opencontainers.image.title": title}
	}
	for name, c := range map[string]struct {
		as   ociLayer
		want agentv1.Compression
	}{
		"OCI, zstd":    {ociLayer{MediaType: "application/vnd.oci.image.layer.v1.disk+zstd"}, agentv1.Compression_COMPRESSION_ZSTD},
		"OCI, gzip":    {ociLayer{MediaType: "application/vnd.oci.image.layer.v1.disk+gzip"}, agentv1.Compression_COMPRESSION_GZIP},
		"Docker, gzip": {ociLayer{MediaType: "application/vnd.docker.image.rootfs.diff.gzip"}, agentv1.Compression_COMPRESSION_GZIP},
		"plain zstd":   {ociLayer{MediaType: "application/zstd; version=1"}, agentv1.Compression_COMPRESSION_ZSTD},
		"plain xz":     {ociLayer{MediaType: "application/x-xz"}, agentv1.Compression_COMPRESSION_XZ},
		"by its title": {
			ociLayer{MediaType: "application/vnd.oci.image.layer.v1.tar", Annotations: titled("debian-13.raw.zst")}, agentv1.Compression_COMPRESSION_ZSTD,
		},
		"the type counts more": {
			ociLayer{MediaType: "application/vnd.oci.image.layer.v1.disk+gzip", Annotations: titled("debian-13.raw.zst")}, agentv1.Compression_COMPRESSION_GZIP,
		},
		"not compressed": {ociLayer{MediaType: "application/octet-stream", Annotations: titled("debian-13.raw")}, agentv1.Compression_COMPRESSION_NONE},
		"nothing said":   {ociLayer{}, agentv1.Compression_COMPRESSION_NONE},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			request := requestFor(registryOf(t, plain, c.as, compress(t, image, c.want)), image)
			request.Image.Compression = agentv1.Compression_COMPRESSION_LAYER
			if report := Run(t.Context(), request, m.options()); !report.GetOk() {
				t.Fatal(report.GetError())
			}
			checkInstalled(t, m, image, request)
		})
	}
}

// TestALayerIsWhatTheManifestSays: with no other digest than the manifest's, another blob than the
// one that it names does not boot.
func TestALayerIsWhatTheManifestSays(t *testing.T) {
	t.Parallel()
	image, other := testImage(4, 5*mebibyte+77), testImage(5, 5*mebibyte+77)
	for name, served := range map[string][]byte{"the layer": image, "another blob": other} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			wrap := func(inner http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if strings.Contains(r.URL.Path, "/blobs/") {
						_, _ = w.Write(served)
						return
					}
					inner.ServeHTTP(w, r)
				})
			}
			request := requestFor(registryWith(t, wrap, image), image)
			request.Image.Digest = ""
			report := Run(t.Context(), request, m.options())
			if name == "the layer" {
				if !report.GetOk() {
					t.Fatal(report.GetError())
				}
				request.Image.Digest = digestOf(image)
				checkInstalled(t, m, image, request)
				return
			}
			if want := "the image's file has the digest " + digestOf(other) + ", not " + digestOf(image); report.GetError() != want {
				t.Errorf("report: %v", report)
			}
			m.mustNotBoot(t)
		})
	}
}

// TestRegistryWantsAToken: the token is for anybody, runs out in the middle, and the connection is
// cut besides.
func TestRegistryWantsAToken(t *testing.T) {
	t.Parallel()
	image := testImage(5, 6*mebibyte)
	var tokens, blobs atomic.Int64
	wrap := func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/token" {
				if got := r.URL.Query(); got.Get("scope") != "repository:os/debian:pull" || got.Get("service") != "the registry" || r.Header.Get("Authorization") != "" {
					t.Errorf("a token was asked for with %v", got)
				}
				_, _ = fmt.Fprintf(w, `{"token": "token-%d"}`, tokens.Add(1))
				return
			}
			if r.Header.Get("Authorization") != fmt.Sprintf("Bearer token-%d", tokens.Load()) || tokens.Load() == 0 {
				w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+r.Host+`/token",service="the registry"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			if strings.Contains(r.URL.Path, "/blobs/") && blobs.Add(1) == 1 {
				tokens.Add(1) // the one in hand counts no more
				w.Header().Set("Content-Length", fmt.Sprint(len(image)))
				_, _ = w.Write(image[:2*mebibyte])
				return
			}
			inner.ServeHTTP(w, r)
		})
	}
	m := newMachine(t)
	request := requestFor(registryWith(t, wrap, image), image)
	if report := Run(t.Context(), request, m.options()); !report.GetOk() {
		t.Fatal(report.GetError())
	}
	checkInstalled(t, m, image, request)
	if tokens.Load() != 3 || blobs.Load() != 2 {
		t.Errorf("%d tokens, %d requests for the blob", tokens.Load(), blobs.Load())
	}
}

// TestRegistryInTroubleForAWhile: when the disk is wiped, what a registry refuses may come all the
// same.
func TestRegistryInTroubleForAWhile(t *testing.T) {
	t.Parallel()
	image := testImage(5, 6*mebibyte)
	var requests atomic.Int64
	challenges := []string{"Basic realm=x", "Bearer service=x", `Bearer realm="http://HOST/token"`}
	wrap := func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch n := int(requests.Load()); {
			case r.URL.Path == "/token":
				_, _ = io.WriteString(w, `{"token": ""}`)
			case !strings.Contains(r.URL.Path, "/blobs/"):
				inner.ServeHTTP(w, r)
			case n == 0:
				requests.Add(1)
				w.Header().Set("Content-Length", fmt.Sprint(len(image)))
				_, _ = w.Write(image[:2*mebibyte])
			case n <= len(challenges):
				requests.Add(1)
				w.Header().Set("WWW-Authenticate", strings.ReplaceAll(challenges[n-1], "HOST", r.Host))
				w.WriteHeader(http.StatusUnauthorized)
			default:
				requests.Add(1)
				inner.ServeHTTP(w, r)
			}
		})
	}
	m := newMachine(t)
	request := requestFor(registryWith(t, wrap, image), image)
	if report := Run(t.Context(), request, m.options()); !report.GetOk() {
		t.Fatal(report.GetError())
	}
	checkInstalled(t, m, image, request)
	if n := int(requests.Load()); n != len(challenges)+2 {
		t.Errorf("%d requests for the blob", n)
	}
}

func TestRegistryRefusals(t *testing.T) {
	t.Parallel()
	image := testImage(6, 2*mebibyte)
	challenge := func(header string) func(http.Handler) http.Handler {
		return func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("WWW-Authenticate", header)
				w.WriteHeader(http.StatusUnauthorized)
			})
		}
	}
	other := func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"layers":[{"digest":"x"}]}`) })
	}
	for name, test := range map[string]struct {
		url, want string
	}{
		"another manifest":  {registryWith(t, other, image), "has another digest than was asked for"},
		"two layers":        {registryWith(t, plain, image, image[1:]), "has 2 layers, and one is wanted"},
		"no layers":         {registryWith(t, plain), "has 0 layers"},
		"not there":         {strings.Replace(registryWith(t, plain, image), "debian", "ubuntu", 1), `the server says "404 Not Found"`},
		"a password":        {registryWith(t, challenge("Basic realm=x"), image), "wants credentials, and none can be given"},
		"a realm elsewhere": {registryWith(t, challenge(`Bearer realm="http://192.0.2.1/token"`), image), "names no place to get a token from"},
		"a tag":             {"oci://registry.example/os/debian:13", "is not oci://REGISTRY/REPOSITORY@sha256:DIGEST"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			report := Run(t.Context(), requestFor(test.url, image), m.options())
			if report.GetOk() || !strings.Contains(report.GetError(), test.want) {
				t.Errorf("report: %v", report)
			}
			if !bytes.Equal(m.content(t), m.old) {
				t.Error("the disk was touched")
			}
		})
	}
}
