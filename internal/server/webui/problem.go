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

func (s *site) renderProblem(w http.ResponseWriter, r *http.Request, status int, p problem) {
	s.render(w, r, status, layout{Title: p.Title}, problemPage(status, p))
}

// refusal returns the status and the page for an error by which the control plane refuses the
// request itself. It returns 0 for no error, and for errors that a banner shows over the last view.
func refusal(v view, err error) (int, problem) {
	if err == nil {
		return 0, problem{}
	}
	told := problem{Text: sentence(reason(err)), Hints: v.unknown().Hints}
	switch connect.CodeOf(err) {
	case connect.CodeNotFound:
		told.Title, told.Text = v.unknown().Title, told.Text+" "+v.unknown().Text
		return http.StatusNotFound, told
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

// reason returns the error in its sender's words, without the code in front.
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
	gone        bool // the control plane answered that there is no such thing any more
	refused     bool // the control plane answered that it refuses
}

func outageOf(v view, a live.Answer[*live.Content]) *outage {
	if a.Err == nil {
		return nil
	}
	o := &outage{since: a.Failing, seen: a.At, why: reason(a.Err)}
	status, _ := refusal(v, a.Err)
	o.gone, o.refused = status == http.StatusNotFound, status != 0 && status != http.StatusNotFound
	return o
}
