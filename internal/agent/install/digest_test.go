package install

import (
	"bytes"
	"crypto/sha512"
	"fmt"
	"strings"
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

func digest512(data []byte) string { return fmt.Sprintf("sha512:%x", sha512.Sum512(data)) }

// TestAnImageByTheDigestOfItsFile, as publishers give it, alone and beside that of the raw image.
// All that are given must match, or the disk does not boot. Whatever they are, the installed system
// learns the digest of the raw image.
func TestAnImageByTheDigestOfItsFile(t *testing.T) {
	t.Parallel()
	image := testImage(7, 5*mebibyte+4321)
	served := map[agentv1.Compression][]byte{}
	for _, c := range []agentv1.Compression{agentv1.Compression_COMPRESSION_NONE, agentv1.Compression_COMPRESSION_ZSTD, agentv1.Compression_COMPRESSION_GZIP} {
		served[c] = compress(t, image, c)
	}
	other := []byte("another one")
	for name, c := range map[string]struct {
		compression agentv1.Compression
		raw, file   string
		want        string
	}{
		"SHA-256, not compressed":   {agentv1.Compression_COMPRESSION_NONE, "", digestOf(image), ""},
		"SHA-512, zstd":             {agentv1.Compression_COMPRESSION_ZSTD, "", digest512(served[agentv1.Compression_COMPRESSION_ZSTD]), ""},
		"SHA-256, gzip, and raw":    {agentv1.Compression_COMPRESSION_GZIP, digestOf(image), digestOf(served[agentv1.Compression_COMPRESSION_GZIP]), ""},
		"another file":              {agentv1.Compression_COMPRESSION_ZSTD, "", digest512(other), "the image's file has the digest sha512:"},
		"another file, and raw":     {agentv1.Compression_COMPRESSION_ZSTD, digestOf(image), digestOf(other), "the image's file has the digest sha256:"},
		"the file, and another raw": {agentv1.Compression_COMPRESSION_NONE, digestOf(other), digestOf(image), "the image has the digest sha256:"},
		"the raw one for the file":  {agentv1.Compression_COMPRESSION_ZSTD, "", digestOf(image), "the image's file has the digest sha256:"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			request := requestFor(serveBytes(t, served[c.compression]), image)
			request.Image.Compression, request.Image.Digest, request.Image.FileDigest = c.compression, c.raw, c.file
			report := Run(t.Context(), request, m.options())
			if report.GetOk() != (c.want == "") || !strings.HasPrefix(report.GetError(), c.want) {
				t.Fatalf("report: %v", report)
			}
			if c.want != "" {
				m.mustNotBoot(t)
				return
			}
			request.Image.Digest = digestOf(image)
			checkInstalled(t, m, image, request)
		})
	}
}

// TestAFileIsHashedToItsEnd: what lies behind the end of what is compressed belongs to the file.
func TestAFileIsHashedToItsEnd(t *testing.T) {
	t.Parallel()
	image := testImage(7, 2*mebibyte)
	padding := make([]byte, 4096)
	file := append(compress(t, image, agentv1.Compression_COMPRESSION_XZ), padding...)
	m := newMachine(t)
	request := requestFor(serveBytes(t, file), image)
	request.Image.Compression, request.Image.FileDigest = agentv1.Compression_COMPRESSION_XZ, digest512(file)
	if report := Run(t.Context(), request, m.options()); !report.GetOk() {
		t.Fatal(report.GetError())
	}
	checkInstalled(t, m, image, request)
}

func TestDigestsThatCannotBe(t *testing.T) {
	t.Parallel()
	image := testImage(7, 2*mebibyte)
	for name, c := range map[string]struct{ raw, file, want string }{
		"none":                   {"", "", "the image's digest is not"},
		"raw by SHA-512":         {digest512(image), "", "the image's digest is not"},
		"a short file digest":    {"", "sha512:12", "the digest of the image's file cannot be read"},
		"another algorithm":      {digestOf(image), "md5:d41d8cd98f00b204e9800998ecf8427e", "the digest of the image's file cannot be read"},
		"SHA-256 called SHA-512": {"", strings.Replace(digestOf(image), "256", "512", 1), "the digest of the image's file cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			request := requestFor(serveBytes(t, image), image)
			request.Image.Digest, request.Image.FileDigest = c.raw, c.file
			if report := Run(t.Context(), request, m.options()); !strings.HasPrefix(report.GetError(), c.want) {
				t.Errorf("report: %v", report)
			}
			if !bytes.Equal(m.content(t), m.old) {
				t.Error("the disk was touched")
			}
		})
	}
}

// TestWhatIsNoRawImageIsRefused: the digest of a file says nothing of what is in it.
func TestWhatIsNoRawImageIsRefused(t *testing.T) {
	t.Parallel()
	beginsWith := func(text string) []byte { return append([]byte(text), bytes.Repeat([]byte{7}, 2*mebibyte)...) }
	for name, file := range map[string][]byte{
		"is compressed by gzip": beginsWith("\x1f\x8b\x08"),
		"is compressed by zstd": beginsWith("\x28\xb5\x2f\xfd"),
		"is compressed by xz":   beginsWith("\xfd7zXZ\x00"),
		"is a qcow2 file":       beginsWith("QFI\xfb"),
		"is a tar archive":      beginsWith(strings.Repeat("x", 257) + "ustar"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			request := requestFor(serveBytes(t, file), file)
			request.Image.Digest, request.Image.FileDigest = "", digest512(file)
			report := Run(t.Context(), request, m.options())
			if want := "what would be written to the disk " + name; report.GetOk() || !strings.Contains(report.GetError(), want) {
				t.Errorf("report: %v", report)
			}
			if !bytes.Equal(m.content(t), m.old) {
				t.Error("the disk was touched")
			}
		})
	}
}
