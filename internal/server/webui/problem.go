package webui

import (
	"errors"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/ironherd/ironherd/internal/server/webui/live"
)

// problem is a page that says what is wrong with the request.
type problem struct {
	Title string
	Text  string
	Hints []string
}

func (s *site) problem(w http.ResponseWriter, r *http.Request, status int, p problem) {
	s.render(w, r, status, layout{Title: p.Title}, problemPage(status, p))
}

// refusal returns the status and the page for an error that is an answer of the control plane about
// the request itself; 0 for none, and for errors that a banner tells over the last view.
func refusal(v view, err error) (int, problem) {
	if err == nil {
		return 0, problem{}
	}
	told := problem{Text: sentence(reason(err)), Hints: v.unknown().Hints}
	switch connect.CodeOf(err) {
	case connect.CodeNotFound:
		return http.StatusNotFound, v.unknown()
	case connect.CodeInvalidArgument, connect.CodeOutOfRange:
		told.Title = "The control plane does not understand this request"
		return http.StatusBadRequest, told
	case connect.CodeFailedPrecondition, connect.CodeAborted, connect.CodeAlreadyExists:
		told.Title = "The control plane refuses this request"
		return http.StatusConflict, told
	case connect.CodePermissionDenied, connect.CodeUnauthenticated:
		return http.StatusForbidden, problem{Title: "The control plane does not let this page look", Text: told.Text}
	}
	return 0, problem{}
}

// reason is the error as its sender worded it, without the code in front.
func reason(err error) string {
	if e, ok := errors.AsType[*connect.Error](err); ok {
		return e.Message()
	}
	return err.Error()
}

// outage is what the banner says while the control plane does not answer.
type outage struct {
	since, seen time.Time
	why         string
	gone        bool // it did answer: there is no such thing any more
	refused     bool // it did answer: it does not want to say
}

func outageOf(v view, a live.Answer[*live.Content]) *outage {
	if a.Err == nil {
		return nil
	}
	o := &outage{since: a.Failing, seen: a.At, why: reason(a.Err)}
	status, p := refusal(v, a.Err)
	o.gone, o.refused = status == http.StatusNotFound, status != 0 && status != http.StatusNotFound
	if o.gone {
		o.why = p.Title
	}
	return o
}
