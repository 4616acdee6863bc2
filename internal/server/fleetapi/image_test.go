package fleetapi_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/internal/cli"
	"github.com/ironherd/ironherd/internal/config"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/token"
)

// secret must never be told, whatever is wrong with the URL around it.
const secret = "hunter2"

// TestTheSameImagesAreRefusedEverywhere: images come in through the API, the command line and the
// configuration, and all three refuse the same ones in the same words.
func TestTheSameImagesAreRefusedEverywhere(t *testing.T) {
	t.Parallel()
	o := newFixture(t)
	o.machines(1)
	digest := "sha256:" + strings.Repeat("a", 64)
	digest512 := "sha512:" + strings.Repeat("b", 128)
	registry := "oci://registry.example/debian@" + digest
	image := func(url string) fleet.Image {
		return fleet.Image{URL: url, Digest: digest, Compression: fleet.CompressionNone}
	}
	good := image("https://images.example/a")
	for name, test := range map[string]struct {
		image fleet.Image
		disk  fleet.DiskSelector
		ok    bool
	}{
		"good":               {image: good, disk: fleet.DiskSelector{Serial: "S1", MinSize: 5, Pick: fleet.PickLargest}, ok: true},
		"a port and a query": {image: image("http://images.example:8080/a?v=1"), ok: true},
		"no URL":             {image: image("")},
		"no scheme":          {image: image("images.example/a")},
		"another scheme":     {image: image("ftp://images.example/a")},
		"no host":            {image: image("http:///a")},
		"a port alone":       {image: image("http://:8080/a")},
		"user and password":  {image: image("https://me:" + secret + "@images.example/a")},
		"a user":             {image: image("https://" + secret + "@images.example/a")},
		"not a URL at all":   {image: image("https://me:" + secret + "%zz@images.example/a")},
		"a long URL":         {image: image("https://images.example/" + strings.Repeat(secret, 400))},
		"no digest":          {image: fleet.Image{URL: good.URL, Compression: fleet.CompressionNone}},
		"another digest":     {image: fleet.Image{URL: good.URL, Digest: "sha1:12", Compression: fleet.CompressionNone}},
		"upper-case digest":  {image: fleet.Image{URL: good.URL, Digest: "sha256:" + strings.Repeat("A", 64), Compression: fleet.CompressionNone}},
		"a file's digest": {
			image: fleet.Image{URL: good.URL, FileDigest: digest512, Compression: fleet.CompressionNone}, ok: true,
		},
		"both digests": {
			image: fleet.Image{URL: good.URL, Digest: digest, FileDigest: digest, Compression: fleet.CompressionNone}, ok: true,
		},
		"another file digest": {image: fleet.Image{URL: good.URL, Digest: digest, FileDigest: "md5:12", Compression: fleet.CompressionNone}},
		"SHA-512 of the raw":  {image: fleet.Image{URL: good.URL, Digest: digest512, Compression: fleet.CompressionNone}},
		"a manifest alone":    {image: fleet.Image{URL: registry, Compression: fleet.CompressionLayer}, ok: true},
		"a manifest and file": {image: fleet.Image{URL: registry, FileDigest: digest, Compression: fleet.CompressionNone}},
		"no layer":            {image: fleet.Image{URL: good.URL, Digest: digest, Compression: fleet.CompressionLayer}},
		"another compression": {image: fleet.Image{URL: good.URL, Digest: digest, Compression: "99"}},
		"an OCI manifest":     {image: image("oci://registry.example:5000/debian/trixie@" + digest), ok: true},
		"an OCI tag":          {image: image("oci://registry.example/debian:13")},
		"an OCI query":        {image: image("oci://registry.example/debian@sha256:12?" + secret)},
		"a long model":        {image: good, disk: fleet.DiskSelector{Model: strings.Repeat("m", 257)}},
		"a negative size":     {image: fleet.Image{URL: good.URL, Digest: digest, Compression: fleet.CompressionNone, Size: -1}},
		"an architecture": {
			image: fleet.Image{URL: good.URL, Digest: digest, Compression: fleet.CompressionNone, Architecture: fleet.ArchitectureARM64}, ok: true,
		},
		"no such architecture": {image: fleet.Image{URL: good.URL, Digest: digest, Compression: fleet.CompressionNone, Architecture: "x86_64"}},
		"a long serial":        {image: good, disk: fleet.DiskSelector{Serial: strings.Repeat("s", 257)}},
		"a long WWN":           {image: good, disk: fleet.DiskSelector{WWN: strings.Repeat("w", 257)}},
		"a negative disk":      {image: good, disk: fleet.DiskSelector{MinSize: -1}},
		"everything":           {image: fleet.Image{URL: "ftp://x", Digest: "y", Compression: "99", Size: -1}, disk: fleet.DiskSelector{MinSize: -1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			faults := append(test.image.Validate(), test.disk.Validate()...)
			if (len(faults) == 0) != test.ok {
				t.Fatalf("faults: %+v", faults)
			}
			for way, said := range map[string]string{
				"the API":           throughAPI(o, test.image, test.disk),
				"the command line":  throughCLI(t, o, test.image, test.disk),
				"the configuration": throughConfig(t, test.image, test.disk),
			} {
				if (said == "") != test.ok {
					t.Errorf("%s said %q", way, said)
				}
				for _, f := range faults {
					if !strings.Contains(said, f.Problem) {
						t.Errorf("%s does not say %q, but %q", way, f.Problem, said)
					}
				}
				if strings.Contains(said, secret) {
					t.Errorf("%s tells a secret: %q", way, said)
				}
			}
		})
	}
}

func throughAPI(o *fixture, image fleet.Image, disk fleet.DiskSelector) string {
	compressions := map[fleet.Compression]agentv1.Compression{
		fleet.CompressionNone: agentv1.Compression_COMPRESSION_NONE, fleet.CompressionLayer: agentv1.Compression_COMPRESSION_LAYER, "99": 99,
	}
	picks := map[fleet.Pick]agentv1.DiskSelector_Pick{
		fleet.PickOnly: agentv1.DiskSelector_PICK_UNSPECIFIED, fleet.PickLargest: agentv1.DiskSelector_PICK_LARGEST,
	}
	_, err := o.client(token.Operator).InstallMachine(o.t.Context(), &fleetv1.InstallMachineRequest{
		Machine: "host-0",
		Image: &agentv1.Image{
			Url: image.URL, Digest: image.Digest, FileDigest: image.FileDigest, Compression: compressions[image.Compression], Size: image.Size,
			Architecture: string(image.Architecture),
		},
		RootDisk: &agentv1.DiskSelector{Serial: disk.Serial, Wwn: disk.WWN, Model: disk.Model, MinSize: disk.MinSize, Pick: picks[disk.Pick]},
	})
	if err == nil {
		return ""
	}
	return message(err)
}

func throughCLI(t *testing.T, o *fixture, image fleet.Image, disk fleet.DiskSelector) string {
	t.Helper()
	dir := t.TempDir()
	tokenFile := filepath.Join(dir, "token")
	o.must(os.WriteFile(tokenFile, []byte(o.tokens[token.Operator]), 0o600))
	size, err := json.Marshal(image.Size)
	o.must(err)
	minSize, err := json.Marshal(disk.MinSize)
	o.must(err)
	rootDisk := "min-size=" + string(minSize)
	if disk.Serial != "" {
		rootDisk += ",serial=" + disk.Serial
	}
	if disk.WWN != "" {
		rootDisk += ",wwn=" + disk.WWN
	}
	if disk.Model != "" {
		rootDisk += ",model=" + disk.Model
	}
	if disk.Pick != "" {
		rootDisk += "," + string(disk.Pick)
	}
	var stdout, stderr bytes.Buffer
	code := cli.Main(t.Context(), []string{
		"machine", "install", "host-0", "--image", image.URL, "--digest", image.Digest, "--file-digest", image.FileDigest, "--compression", string(image.Compression),
		"--architecture", string(image.Architecture), "--size", string(size), "--root-disk", rootDisk, "--server", o.url, "--token-file", tokenFile,
	}, cli.Env{Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr, Version: "v1"})
	if code == 0 {
		return ""
	}
	return stderr.String()
}

func throughConfig(t *testing.T, image fleet.Image, disk fleet.DiskSelector) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ironherd.yaml")
	text, err := json.Marshal(map[string]any{ // JSON is YAML
		"agent_api":   map[string]any{"endpoint": "herd.example:8443"},
		"initializer": map[string]any{"agent_executable": "/dev/null"},
		"providers": []any{map[string]any{
			"name": "rack", "kind": "static", "static": map[string]any{"url": "https://hosts.example/"},
			"install": map[string]any{
				"url": image.URL, "digest": image.Digest, "file_digest": image.FileDigest, "compression": image.Compression, "size": image.Size, "root_disk": disk,
				"architecture": image.Architecture,
			},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = config.Load(config.Sources{File: file})
	if err == nil {
		return ""
	}
	if _, faulty := errors.AsType[config.Faults](err); !faulty {
		t.Fatal(err)
	}
	return err.Error()
}
