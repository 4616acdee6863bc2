package install

import (
	"bytes"
	"strings"
	"testing"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// TestZerosBehindAnImage: what has copied a compressed image block by block leaves them, and every
// tool takes them. Anything else that follows is told.
func TestZerosBehindAnImage(t *testing.T) {
	t.Parallel()
	image := testImage(2, 4*mebibyte)
	for name, compression := range map[string]agentv1.Compression{
		"gzip": agentv1.Compression_COMPRESSION_GZIP, "xz": agentv1.Compression_COMPRESSION_XZ, "zstd": agentv1.Compression_COMPRESSION_ZSTD,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			one := compress(t, image, compression)
			for _, zeros := range []int{1, 4, 9, 512, mebibyte} {
				if zeros < 4 && name == "zstd" || zeros%4 != 0 && name == "xz" { // as the formats have it
					continue
				}
				data := append(bytes.Clone(one), make([]byte, zeros)...)
				m := newMachine(t)
				request := requestFor(serveBytes(t, data), image)
				request.Image.Compression, request.Image.FileDigest = compression, digestOf(data)
				if report := Run(t.Context(), request, m.options()); !report.GetOk() {
					t.Fatalf("%d zeros: %v", zeros, report)
				}
				checkInstalled(t, m, image, request)
				data[len(data)-1] = 1
				refused(t, m, data, image, compression)
			}
			for _, rest := range [][]byte{[]byte("abcd"), []byte("abcdefghij"), append([]byte("abcd"), make([]byte, 508)...)} {
				refused(t, newMachine(t), append(bytes.Clone(one), rest...), image, compression)
			}
			request := requestFor(serveBytes(t, make([]byte, mebibyte)), image)
			request.Image.Compression = compression
			if report := Run(t.Context(), request, newMachine(t).options()); report.GetOk() || strings.Contains(report.GetError(), "follows") {
				t.Errorf("only zeros: %v", report)
			}
		})
	}
}

// refused installs a compressed image that something follows, which is not to be taken for it.
func refused(t *testing.T, m *machine, data, image []byte, compression agentv1.Compression) {
	t.Helper()
	request := requestFor(serveBytes(t, data), image)
	request.Image.Compression = compression
	want := "something follows the compressed image"
	if compression == agentv1.Compression_COMPRESSION_XZ {
		want = "" // its decoder knows no other fault than that it is corrupt
	}
	if report := Run(t.Context(), request, m.options()); report.GetOk() || !strings.Contains(report.GetError(), want) {
		t.Errorf("it ends with %q: %v", data[len(data)-12:], report)
	}
}
