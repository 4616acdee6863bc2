package equinix

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/packethost/packngo"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/secret"
)

// client returns an API client for one operation. packngo knows no contexts and keeps state about
// its last answer, so each operation has a client of its own with its context. That costs a few
// allocations; the clients share their connections.
func (p *Provider) client(ctx context.Context, what string) (*packngo.Client, error) {
	token, err := readToken(p.config.TokenFile)
	if err != nil {
		return nil, fleet.Errorf(fleet.KindOf(err), "%s: token_file: %w", what, err)
	}
	p.limit.of(token)
	client, err := packngo.NewClient(
		packngo.WithAuth(p.config.User, token),
		packngo.WithHTTPClient(&http.Client{
			Transport: boundTransport{ctx: ctx, provider: p, what: what},
			// A redirect could carry the token to another host.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}),
		packngo.WithBaseURL(p.base),
	)
	if err != nil {
		return nil, fleet.Errorf(fleet.KindInvalid, "%s: use %s: %w", what, p.base, err)
	}
	return client, nil
}

// boundTransport gives the requests of one operation its context.
type boundTransport struct {
	ctx      context.Context //nolint:containedctx // the library has no other place for it
	provider *Provider
	what     string
}

// RoundTrip makes the call. It removes the headers that make the library print warnings, and logs
// them instead, once for each call.
func (t boundTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.provider.transport.RoundTrip(request.WithContext(t.ctx))
	if err != nil {
		return nil, err
	}
	if sunset := response.Header.Get("Sunset"); sunset != "" || response.Header.Get("Deprecation") != "" {
		call := t.provider.endpoint(request)
		if before, told := t.provider.sunsets.Swap(call, sunset); !told || before != sunset {
			t.provider.logger.WarnContext(t.ctx, "the API says that a call is going away",
				slog.String("call", call), slog.String("sunset", printable(sunset)))
		}
	}
	for _, name := range []string{"Deprecation", "Sunset", "Link"} {
		response.Header.Del(name)
	}
	return response, nil
}

var uuidSegment = regexp.MustCompile(`[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}`)

// endpoint names a request for the observer.
func (p *Provider) endpoint(request *http.Request) string {
	path := request.URL.Path
	if base, err := url.Parse(p.base); err == nil {
		path = strings.TrimPrefix(path, strings.TrimRight(base.Path, "/"))
	}
	return request.Method + " " + uuidSegment.ReplaceAllString(path, "{id}")
}

// classify returns the error of a library call with its kind and with what was being done; nil for
// success.
func classify(what string, response *packngo.Response, err error) error {
	if err == nil {
		return nil
	}
	var refused *packngo.ErrorResponse
	var lost *url.Error
	switch {
	case errors.As(err, &refused):
		return refusal(what, refused)
	case errors.As(err, &lost):
		// Without the URL: it says nothing that "what" does not.
		return &fleet.Error{Kind: fleet.KindOf(lost.Err), Message: what, RetryAfter: fleet.RetryAfter(lost.Err), Err: lost.Err}
	case response != nil && response.Response != nil && response.StatusCode >= http.StatusMultipleChoices:
		return fleet.Errorf(provisional(response.StatusCode), "%s: the provider answered %s, and nothing that can be read",
			what, response.Status)
	}
	return unreadable(what, err)
}

// unreadable is the error for an answer that no decoder understands.
func unreadable(what string, err error) error {
	return fleet.Errorf(fleet.KindTemporary, "%s: the provider's answer cannot be read: %w", what, decodeProblem(err))
}

// refusal is the error for an answer other than success.
func refusal(what string, refused *packngo.ErrorResponse) error {
	status := refused.Response.StatusCode
	kind, own := provider.KindOfStatus(status), fromAPI(refused)
	if !own {
		kind = provisional(status)
	}
	texts := refused.Errors
	if refused.SingleError != "" {
		texts = append(texts, refused.SingleError)
	}
	text := printable(strings.Join(texts, ", "))
	if text == "" {
		text = http.StatusText(status)
	}
	return &fleet.Error{
		Kind: kind, Message: what, RetryAfter: provider.RetryAfter(status, refused.Response.Header),
		Err: &answerError{status: status, text: text, fromAPI: own},
	}
}

// answerError is a refusal in the API's words, or in those of a proxy.
type answerError struct {
	status  int
	text    string
	fromAPI bool
}

// Error tells the text and the status.
func (e *answerError) Error() string {
	return "the provider answered " + e.text + " (" + http.StatusText(e.status) + ")"
}

// fromAPI tells the API's own answers from those of a proxy. The API's are JSON, and have a request
// ID or the form of its errors.
func fromAPI(refused *packngo.ErrorResponse) bool {
	header := refused.Response.Header
	return strings.HasPrefix(header.Get("Content-Type"), "application/json") &&
		(header.Get("X-Request-Id") != "" || len(refused.Errors) > 0 || refused.SingleError != "")
}

// provisional is the kind of a status that a proxy may have made up. It never says that a thing
// does not exist.
func provisional(status int) fleet.Kind {
	if kind := provider.KindOfStatus(status); kind != fleet.KindNotFound {
		return kind
	}
	return fleet.KindUnknown
}

// stateError turns KindInvalid into a conflict, for calls that take nothing that could be invalid.
// The API has one status for both.
func stateError(err error) error {
	if fleet.KindOf(err) == fleet.KindInvalid {
		return &fleet.Error{Kind: fleet.KindConflict, Err: err}
	}
	return err
}

// decodeProblem keeps an error of either JSON decoder from quoting the answer.
func decodeProblem(err error) error {
	var unfit *jsonv2.SemanticError
	if errors.As(err, &unfit) {
		field := cmp.Or(strings.Join(slices.Collect(unfit.JSONPointer.Tokens()), "."), "the whole")
		return errors.New(field + " is a JSON " + jsonKinds[unfit.JSONKind])
	}
	var mistyped *json.UnmarshalTypeError
	if errors.As(err, &mistyped) {
		return errors.New(mistyped.Field + " is a JSON " + mistyped.Value)
	}
	return err
}

// jsonKinds names what stands in an answer instead of what is expected.
var jsonKinds = map[jsontext.Kind]string{'"': "string", '0': "number", 't': "boolean", 'f': "boolean", 'n': "null", '{': "object", '[': "array"}

// printable cuts a text from outside to what fits into a message.
func printable(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
	if runes := []rune(text); len(runes) > 300 {
		text = string(runes[:300]) + "…"
	}
	return strings.TrimSpace(text)
}

const (
	// tokenSize is the most that a token file may hold, in bytes.
	tokenSize = 4 << 10
	// shortestToken is less than any token of such an API has, in characters. What is shorter was
	// cut off, or stands for a token that was to follow.
	shortestToken = 8
)

// CheckToken says what is wrong with a token file.
func CheckToken(path string) error {
	_, err := readToken(path)
	return err
}

// readToken returns the API token from its file. It refuses a file that others can read, and one
// that holds something else than a token. Its errors are of kind Unauthenticated, and never quote
// the file.
func readToken(path string) (string, error) {
	data, err := secret.Read(path, tokenSize)
	if err != nil {
		return "", fleet.Errorf(fleet.KindUnauthenticated, "%w", err)
	}
	token := strings.TrimSpace(string(data))
	if len(token) < shortestToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fleet.Errorf(fleet.KindUnauthenticated, "%s does not hold one token of at least %d characters and nothing else",
			path, shortestToken)
	}
	return token, nil
}
