package machine

import "testing"

func TestSuits(t *testing.T) {
	t.Parallel()
	const debian, ubuntu = "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_CODENAME=bookworm\nID=debian\n", "ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\n"
	for _, host := range []struct {
		architecture, release string
		want                  bool
	}{
		{"amd64", debian, true}, {"arm64", debian, false}, {"amd64", ubuntu, false}, {"amd64", "", false},
	} {
		if got := suits(host.architecture, host.release); got != host.want {
			t.Errorf("%v: %v", host, got)
		}
	}
}
