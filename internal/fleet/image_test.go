package fleet_test

import (
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
)

// TestAnImageIsKnownByOneOfItsDigests, and people see which.
func TestAnImageIsKnownByOneOfItsDigests(t *testing.T) {
	t.Parallel()
	raw, file := "sha256:"+strings.Repeat("a", 64), "sha512:"+strings.Repeat("b", 128)
	for name, c := range map[string]struct {
		image       fleet.Image
		want, short string
	}{
		"raw":      {fleet.Image{URL: "http://x/i", Digest: raw}, raw, "sha256:aaaaaaaaaaaa…"},
		"file":     {fleet.Image{URL: "http://x/i", FileDigest: file}, "file " + file, "file sha512:bbbbbbbbbbbb…"},
		"both":     {fleet.Image{URL: "http://x/i", Digest: raw, FileDigest: file}, raw, "sha256:aaaaaaaaaaaa…"},
		"registry": {fleet.Image{URL: "oci://x/i@" + raw}, "manifest " + raw, "manifest sha256:aaaaaaaaaaaa…"},
		"none":     {fleet.Image{URL: "http://x/i"}, "", ""},
	} {
		if got, short := c.image.Identity(), c.image.ShortIdentity(); got != c.want || short != c.short {
			t.Errorf("%s: %q, %q", name, got, short)
		}
	}
}

func TestCompressionOfAURL(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]fleet.Compression{
		"http://x/i.raw": fleet.CompressionNone, "http://x/i.zst?a=b.gz": fleet.CompressionZstd, "http://x/i.gz": fleet.CompressionGzip,
		"http://x/i.xz": fleet.CompressionXZ, "oci://x/i@sha256:" + strings.Repeat("a", 64): fleet.CompressionLayer,
	} {
		if got := fleet.CompressionOf(address); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}
