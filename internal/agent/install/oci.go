package install

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// ociReference names a manifest in a registry by its digest.
type ociReference struct {
	// base is the registry's URL, without a path.
	base                       string
	host, repository, manifest string
}

var ociPath = regexp.MustCompile(`^/([a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*)@(sha256:[0-9a-f]{64})$`)

// parseOCI reads oci://REGISTRY/REPOSITORY@sha256:DIGEST. As everywhere, a registry on this very
// host is spoken to without TLS.
func parseOCI(address *url.URL) (ociReference, error) {
	match := ociPath.FindStringSubmatch(address.Path)
	if match == nil || address.Host == "" || address.RawQuery != "" {
		return ociReference{}, errors.New("the image's URL is not oci://REGISTRY/REPOSITORY@sha256:DIGEST")
	}
	scheme := "https"
	if ip := net.ParseIP(address.Hostname()); address.Hostname() == "localhost" || ip != nil && ip.IsLoopback() {
		scheme = "http"
	}
	return ociReference{base: scheme + "://" + address.Host, host: address.Host, repository: match[1], manifest: match[2]}, nil
}

func (r ociReference) url(kind, digest string) string {
	return r.base + "/v2/" + r.repository + "/" + kind + "/" + digest
}

// Bounds on what a registry may answer besides the image.
const (
	maxManifest = 4 << 20
	maxToken    = 64 << 10
)

// The types of a manifest with layers (OCI image specification; Docker's own, which is the same).
var manifestTypes = []string{"application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"}

// ociLayer is what a manifest says of a layer.
type ociLayer struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Annotations map[string]string `json:"annotations"`
}

// compression is how the layer is compressed: as its media type says (RFC 6839 and the OCI image
// specification have it behind a plus or a dot), or, where that does not, the name of the file that
// it was made of.
func (l ociLayer) compression() agentv1.Compression {
	title := behindLast(l.Annotations["org.opencontainers.image.title"], ".")
	kind, _, _ := strings.Cut(l.MediaType, ";")
	suffix := behindLast(strings.TrimSpace(kind), "+./")
	for _, name := range []string{suffix, title} {
		switch strings.TrimPrefix(strings.ToLower(name), "x-") {
		case "zstd", "zst":
			return agentv1.Compression_COMPRESSION_ZSTD
		case "gzip", "gz":
			return agentv1.Compression_COMPRESSION_GZIP
		case "xz":
			return agentv1.Compression_COMPRESSION_XZ
		}
	}
	return agentv1.Compression_COMPRESSION_NONE
}

// behindLast returns what lies behind the last of the separators.
func behindLast(text, separators string) string {
	return text[strings.LastIndexAny(text, separators)+1:]
}

// layer returns the one layer that the manifest has. The manifest is what its digest says, so that
// nobody else can choose the layer.
func (r ociReference) layer(ctx context.Context, fetch func(ctx context.Context, address string, header http.Header) (*http.Response, error)) (ociLayer, error) {
	var none ociLayer
	response, err := fetch(ctx, r.url("manifests", r.manifest), http.Header{"Accept": manifestTypes})
	if err != nil {
		return none, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return none, statusError("read the manifest of "+r.host+"/"+r.repository, response)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, maxManifest+1))
	if err != nil {
		return none, err
	}
	fail := func(text string) (ociLayer, error) {
		return none, &permanentError{"the manifest of " + r.host + "/" + r.repository + " " + text}
	}
	if len(data) > maxManifest {
		return fail("is too large")
	}
	if got := fmt.Sprintf("sha256:%x", sha256.Sum256(data)); got != r.manifest {
		return fail("has another digest than was asked for: " + got)
	}
	var manifest struct {
		Layers []ociLayer `json:"layers"`
	}
	if err := json.Unmarshal(data, &manifest); err != nil {
		return fail("is not a manifest")
	}
	if len(manifest.Layers) != 1 {
		return fail(fmt.Sprintf("has %d layers, and one is wanted: the image of the disk", len(manifest.Layers)))
	}
	if _, err := parseDigest(manifest.Layers[0].Digest); err != nil {
		return fail("names its layer by another digest than SHA-256 or SHA-512")
	}
	return manifest.Layers[0], nil
}

// statusError says what a server answered, and whether asking again has a point.
func statusError(doing string, response *http.Response) error {
	answer := fmt.Errorf("the server says %q", response.Status)
	switch code := response.StatusCode; {
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests, code >= 500:
		return answer
	case code == http.StatusRequestedRangeNotSatisfiable: // it has another file
		return &permanentError{doing + ": " + answer.Error()}
	default:
		return &refusedError{doing, answer}
	}
}

var challengeParameter = regexp.MustCompile(`([a-z]+)="([^"]*)"`)

// token gets a token for anybody, as a registry's refusal asks for it (the token authentication of
// the distribution specification). Only the registry's own word is followed: the realm must be
// https, or on the registry's host.
func (r ociReference) token(ctx context.Context, client *http.Client, challenge string) (string, error) {
	rest, ok := strings.CutPrefix(challenge, "Bearer ")
	if !ok {
		return "", &refusedError{"the registry " + r.host, errors.New("it wants credentials, and none can be given")}
	}
	parameters := map[string]string{}
	for _, match := range challengeParameter.FindAllStringSubmatch(rest, -1) {
		parameters[match[1]] = match[2]
	}
	realm, err := url.Parse(parameters["realm"])
	if err != nil || realm.Host == "" || realm.Scheme != "https" && (realm.Scheme != "http" || realm.Host != r.host) {
		return "", &refusedError{"the registry " + r.host, errors.New("it names no place to get a token from")}
	}
	query := realm.Query()
	if service := parameters["service"]; service != "" {
		query.Set("service", service)
	}
	query.Set("scope", "repository:"+r.repository+":pull")
	realm.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, realm.String(), nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", withoutURL(err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return "", statusError("get a token for "+r.host+"/"+r.repository, response)
	}
	var answer struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxToken)).Decode(&answer); err != nil {
		return "", fmt.Errorf("get a token for %s/%s: the answer is not one", r.host, r.repository)
	}
	if answer.Token == "" {
		answer.Token = answer.AccessToken
	}
	if answer.Token == "" || strings.ContainsAny(answer.Token, "\r\n") {
		return "", &refusedError{"the registry " + r.host, errors.New("it gives no token to anybody")}
	}
	return answer.Token, nil
}
