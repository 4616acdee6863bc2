// Package health says whether a live object does what it is there for.
//
// # How it is told
//
//   - An object that is being deleted is not healthy.
//   - Where the manifest has an expression (annotation object.HealthyWhen, in CEL, with the live
//     object as "self"), that alone is asked: the object is healthy when the expression is true.
//   - Of any other object kstatus tells: what controllers of Kubernetes write into the status of
//     the kinds that come with it, and the conditions Ready, Reconciling and Stalled for the rest.
//     An object whose status says nothing is healthy once it is there.
//
// # What it is not
//
// Health is for people, and for objects that are applied only when others are healthy. It decides
// nothing else: an object is as wanted when it is applied, whatever its health, and no API server
// waits for health.
//
// # Failures
//
// An expression that cannot be compiled is refused with a sentence, before it is asked. One that
// cannot be evaluated (a field is not there yet) or costs too much is answered by "not healthy",
// and the reason. Of a Secret, no reason quotes what is in it. A reason is one line of at most
// MaxReason bytes.
package health

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"unicode"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

const (
	// MaxReason is how long a reason may be.
	MaxReason = 300
	// maxExpression is how long an expression may be, and maxCost what evaluating it once may cost,
	// in CEL's units: less than 100 ms.
	maxExpression = 4 << 10
	maxCost       = 100_000
	// maxCompiled is how many expressions are remembered.
	maxCompiled = 4096
)

// Verdict is whether an object is healthy, and if not, why not.
type Verdict struct {
	OK     bool
	Reason string
}

// Judge tells the health of objects. It remembers the expressions that it has compiled. Safe for
// concurrent use.
type Judge struct {
	environment *cel.Env

	mu       sync.Mutex
	compiled map[string]compiled
}

type compiled struct {
	program cel.Program
	err     error
}

// NewJudge returns a judge.
func NewJudge() (*Judge, error) {
	environment, err := cel.NewEnv(cel.Variable("self", cel.DynType), cel.OptionalTypes(), cel.ParserExpressionSizeLimit(maxExpression))
	if err != nil {
		return nil, fmt.Errorf("prepare expressions of health: %w", err)
	}
	return &Judge{environment: environment, compiled: map[string]compiled{}}, nil
}

// Check returns what is wrong with an expression; nil of an empty one.
func (j *Judge) Check(expression string) error {
	if expression == "" {
		return nil
	}
	_, err := j.compile(expression)
	return err
}

// Ask tells the health of an object as the server has it. The expression is that of its manifest;
// empty: there is none.
func (j *Judge) Ask(ctx context.Context, live *unstructured.Unstructured, expression string) Verdict {
	var v Verdict
	switch {
	case live.GetDeletionTimestamp() != nil:
		v.Reason = "it is being deleted"
	case expression != "":
		v = j.evaluate(ctx, live, expression)
	default:
		v = kstatus(live)
	}
	v.Reason = line(v.Reason)
	return v
}

func (j *Judge) compile(expression string) (cel.Program, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if c, known := j.compiled[expression]; known {
		return c.program, c.err
	}
	if len(j.compiled) >= maxCompiled {
		clear(j.compiled)
	}
	var c compiled
	c.program, c.err = program(j.environment, expression)
	j.compiled[expression] = c
	return c.program, c.err
}

func program(environment *cel.Env, expression string) (cel.Program, error) {
	if len(expression) > maxExpression {
		return nil, fmt.Errorf("the annotation %s is longer than %d bytes", object.HealthyWhen, maxExpression)
	}
	tree, issues := environment.Compile(expression)
	if err := issues.Err(); err != nil {
		return nil, fmt.Errorf("the annotation %s is no expression in CEL: %s", object.HealthyWhen, line(err.Error()))
	}
	if out := tree.OutputType(); !out.IsExactType(cel.BoolType) && !out.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("the annotation %s must be true or false, and is of type %s", object.HealthyWhen, out)
	}
	p, err := environment.Program(tree, cel.CostLimit(maxCost), cel.InterruptCheckFrequency(100))
	if err != nil {
		return nil, fmt.Errorf("the annotation %s: %s", object.HealthyWhen, line(err.Error()))
	}
	return p, nil
}

// evaluate asks the expression.
func (j *Judge) evaluate(ctx context.Context, live *unstructured.Unstructured, expression string) Verdict {
	p, err := j.compile(expression)
	if err != nil {
		return Verdict{Reason: err.Error()}
	}
	answer, _, err := p.ContextEval(ctx, map[string]any{"self": live.Object})
	switch {
	case err != nil && live.GetKind() == "Secret":
		return Verdict{Reason: "its expression cannot be evaluated; why is not said, because it may quote the Secret"}
	case err != nil:
		return Verdict{Reason: "its expression cannot be evaluated: " + err.Error()}
	case answer == types.True:
		return Verdict{OK: true}
	case answer == types.False:
		return Verdict{Reason: "it is not so that " + expression}
	}
	return Verdict{Reason: "its expression is neither true nor false"}
}

// kstatus tells the health by what controllers have written.
func kstatus(live *unstructured.Unstructured) Verdict {
	result, err := computed(live)
	switch {
	case err != nil:
		return Verdict{Reason: "its status cannot be read: " + err.Error()}
	case result.Status == status.CurrentStatus:
		return Verdict{OK: true}
	}
	word := map[status.Status]string{
		status.InProgressStatus: "in progress", status.FailedStatus: "failed", status.TerminatingStatus: "it is being deleted",
	}[result.Status]
	if word == "" {
		word = "unknown"
	}
	if result.Message != "" {
		word += ": " + result.Message
	}
	return Verdict{Reason: word}
}

// computed asks kstatus. What is in a status is anybody's, and kstatus was not written for all of
// it.
func computed(live *unstructured.Unstructured) (result *status.Result, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = errors.New("it is not as its kind has it")
		}
	}()
	return status.Compute(live)
}

// line makes one line of a text.
func line(text string) string {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsGraphic(r) }), " ")
	if len(text) > MaxReason {
		const dots = "…"
		text = strings.ToValidUTF8(text[:MaxReason-len(dots)], "") + dots
	}
	return text
}
