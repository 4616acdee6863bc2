package provider

import (
	"strings"

	"github.com/google/uuid"

	"github.com/ironherd/ironherd/internal/fleet"
)

// tokenPrefix is how fleet.NewToken starts every token.
const tokenPrefix = "ironherd-"

// Tokens returns those of a machine's tags that have the form of fleet.Token.
func Tokens(tags []string) []fleet.Token {
	var tokens []fleet.Token
	for _, tag := range tags {
		if id, ours := strings.CutPrefix(tag, tokenPrefix); ours && len(id) == 36 && uuid.Validate(id) == nil {
			tokens = append(tokens, fleet.Token(tag))
		}
	}
	return tokens
}
