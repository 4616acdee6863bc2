package provider

import (
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
)

func TestTokens(t *testing.T) {
	t.Parallel()
	token := fleet.NewToken()
	got := Tokens([]string{"managed-by-ironherd", "ironherd-", "ironherd-web", string(token), "x" + string(token), string(token) + "x"})
	if len(got) != 1 || got[0] != token {
		t.Errorf("%v", got)
	}
}
