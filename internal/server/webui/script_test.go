package webui

import (
	"os"
	"testing"

	"github.com/dop251/goja"
)

// browser is a page whose script runs, in what testdata/browser.js has of a browser.
type browser struct {
	t  *testing.T
	vm *goja.Runtime
}

// browse loads the page and its script, after what is to be so before.
func browse(t *testing.T, before string) *browser {
	t.Helper()
	b := &browser{t: t, vm: goja.New()}
	stub, err := os.ReadFile("testdata/browser.js")
	if err != nil {
		t.Fatal(err)
	}
	script, err := assetFiles.ReadFile("assets/live.js")
	if err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{string(stub), before, string(script)} {
		b.do(source)
	}
	return b
}

func (b *browser) do(script string) {
	b.t.Helper()
	if _, err := b.vm.RunString(script); err != nil {
		b.t.Fatalf("%.100s: %v", script, err)
	}
}

// want compares what an expression says.
func (b *browser) want(expression, want string) {
	b.t.Helper()
	got, err := b.vm.RunString(expression)
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	if got.String() != want {
		b.t.Errorf("%s: %q, want %q", expression, got, want)
	}
}

// greeted is a page whose stream has said hello.
func greeted(t *testing.T) *browser {
	t.Helper()
	b := browse(t, "")
	b.do(`stream().open(); stream().send("hello", { build: "b1" })`)
	b.want("link.textContent", "live")
	return b
}

// TestScriptPausesWhileHidden: a page that nobody sees has no stream, and goes on when it is seen.
func TestScriptPausesWhileHidden(t *testing.T) {
	t.Parallel()
	b := greeted(t)
	b.want("connected() + stream().url", "1/live?view=overview")
	for _, goes := range []string{"show(false)", "page.fire('pagehide')"} {
		b.do(goes)
		b.want("connected()", "0")
		b.do("pass(600000)")
		b.want("connected() + ', ' + asked", "0, 0")
		b.do(`show(true); page.fire("pageshow"); stream().open(); stream().send("hello", { build: "b1" })`)
		b.want("connected() + link.textContent", "1live")
	}
	b.do("show(false)")
	b.want("link.textContent + lost.hidden", "pausedtrue")

	b = browse(t, "document.hidden = true")
	b.want("streams.length", "0")
	b.do("show(true)")
	b.want("streams.length", "1")
}

// TestScriptConnectsAgain: a connection that is lost for more than a moment is told, and the page
// goes on when it is back.
func TestScriptConnectsAgain(t *testing.T) {
	t.Parallel()
	b := greeted(t)
	b.do("stream().breaks(); pass(2900)")
	// the browser connects by itself
	b.want("link.textContent + lost.hidden + streams.length", "not connectedtrue1")
	b.do("pass(200)")
	b.want("lost.hidden + lost.textContent.slice(0, 40)", "falseNo connection to the control plane since")
	b.do(`stream().open(); stream().send("beat")`)
	b.want("link.textContent + lost.hidden", "livetrue")

	b.do("pass(34000)")
	b.want("streams.length", "1")
	b.do("pass(1000)") // nothing was heard for three beats
	b.want("connected() + ' of ' + streams.length + ': ' + link.textContent", "1 of 2: not connected")

	b.do("answer = 0")
	for range 3 { // nobody is there
		b.do("stream().refuse(); pass(4900)")
		b.want("connected()", "0")
		b.do("pass(100)")
		b.want("connected()", "1")
	}
	b.want("reloads + lost.textContent.slice(0, 40)", "0No connection to the control plane since")
}

// TestScriptStopsWhenRefused: who may not read any more is told so, and does not try again.
func TestScriptStopsWhenRefused(t *testing.T) {
	t.Parallel()
	for _, status := range []string{"401", "403"} {
		b := greeted(t)
		b.do("answer = " + status + "; stream().refuse()")
		b.want("link.textContent + ', ' + lost.hidden", "not live, false")
		b.want("lost.textContent.slice(0, 30)", "You are not let in any more: y")
		b.do("pass(600000)")
		b.want("[connected(), streams.length, asked, reloads].join()", "0,1,1,0")
	}
	b := greeted(t)
	b.do("answer = 200; stream().refuse()")
	b.want("lost.textContent.slice(0, 42) + reloads", "No live updates: too many live pages are o1")
}

// TestScriptSwaps: what has changed is put in, but for an element in which text is selected.
func TestScriptSwaps(t *testing.T) {
	t.Parallel()
	b := greeted(t)
	swap := `stream().send("swap", { title: "2 machines", swaps: [{ id: "fleet", mark: "m2", html: "two" }] })`
	b.do("select(fleet); " + swap)
	b.want("fleet.innerHTML + link.textContent + ', ' + document.title", "paused: text is selected, 2 machines · Ironherd")
	b.do("select(null)")
	b.want("streams.length", "2") // asked for anew
	b.do("stream().open(); " + swap)
	b.want("fleet.innerHTML + fleet.dataset.mark + link.textContent", "twom2live")
	b.want("reloads", "0")
}

// TestScriptShowsATableThatIsAsItWas: a row that changed alone, and was back while the page had no
// stream, is shown as it is. The table then is the one that the page began with.
func TestScriptShowsATableThatIsAsItWas(t *testing.T) {
	t.Parallel()
	b := browse(t, `const { row } = Object.assign(elements, { row: element("row") });
		row.parentElement = { ...element("scroll"), parentElement: fleet }; fleet.dataset.mark = "m1"; fleet.innerHTML = "row: installed"`)
	greet := `stream().open(); stream().send("hello", { build: "b1" })`
	table := `stream().send("swap", { title: "x", swaps: [{ id: "fleet", mark: "m1", html: "row: installed" }] })`
	b.do(greet + `; fleet.innerHTML = "as it is"; ` + table)
	b.want("fleet.innerHTML", "as it is") // it has what is sent

	b.do(`stream().send("swap", { title: "x", swaps: [{ id: "row", mark: "r2", html: "operation is under way" }] })`)
	b.want("row.innerHTML", "operation is under way")
	b.do("show(false); pass(60000); show(true); " + greet + "; " + table)
	b.want("fleet.innerHTML + fleet.dataset.mark", "row: installedm1")
}

// TestScriptLoadsThePageAnew where it lacks an element or is of another build: once a minute, and
// neither without a stream, nor while somebody fills in the form.
func TestScriptLoadsThePageAnew(t *testing.T) {
	t.Parallel()
	b := greeted(t)
	lacks := `stream().send("swap", { title: "x", swaps: [{ id: "other", mark: "m", html: "" }] })`
	b.do(lacks)
	b.want("reloads", "1")
	b.do("beating(1); " + lacks + "; beating(58)")
	b.want("reloads", "1")
	b.do("beating(1)")
	b.want("reloads", "2")
	b.do(lacks + "; stream().breaks(); pass(70000)")
	b.want("reloads", "2")

	b = greeted(t)
	b.do(`document.activeElement = search; search.value = "herd-0"; stream().send("hello", { build: "b2" }); beating(20)`)
	b.do(`stream().send("swap", { title: "x", swaps: [{ id: "fleet", mark: "m3", html: "three" }] }); beating(20)`)
	b.want("[reloads, search.value, fleet.innerHTML].join()", "0,herd-0,three")
	b.do(`search.value = ""; beating(5)`)
	b.want("reloads", "1")
}
