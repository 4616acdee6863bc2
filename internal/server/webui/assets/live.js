// Keeps a page current: swaps the elements that have changed, counts times, and says when the
// connection is lost.
"use strict";
(() => {
  const body = document.body;
  document.documentElement.classList.add("js");

  // Times are counted by the server's clock, not by this computer's.
  let skew = Number(body.dataset.now) - Date.now();
  const coarse = s => s < 100 ? s + " s" : s < 6000 ? Math.floor(s / 60) + " min" : s < 172800 ? Math.floor(s / 3600) + " h" : Math.floor(s / 86400) + " d";
  const counted = ms => Math.abs(ms) < 1000 ? "now" : ms < 0 ? "in " + coarse(Math.floor(-ms / 1000)) : coarse(Math.floor(ms / 1000)) + " ago";
  const count = root => {
    const now = Date.now() + skew;
    for (const t of root.querySelectorAll("time[datetime]")) {
      const text = counted(now - Date.parse(t.dateTime));
      if (t.textContent !== text) t.textContent = text;
    }
  };
  setInterval(() => count(document), 1000);

  // Swaps an element. One in which text is selected waits until nothing is; focus and opened details
  // stay. What else changes meanwhile may be newer than what waits, or a part of it: in the end all
  // is asked for anew.
  const waiting = new Set();
  const selecting = element => {
    const s = getSelection();
    return s && !s.isCollapsed && s.containsNode(element, true);
  };
  const apply = change => {
    const element = document.getElementById(change.id);
    if (!element) return waiting.size ? undefined : anew();
    if (element.dataset.mark === change.mark) return;
    if (selecting(element)) { waiting.add(change.id); return; }
    const open = [...element.querySelectorAll("details[open][id]")].map(d => d.id);
    const focus = element.contains(document.activeElement) ? document.activeElement : null;
    const target = focus?.getAttribute("href"), region = focus?.classList.contains("scroll") ? focus.getAttribute("aria-label") : null;
    const lefts = new Map([...element.querySelectorAll(".scroll")].map(s => [s.getAttribute("aria-label"), s.scrollLeft]));
    element.innerHTML = change.html;
    element.dataset.mark = change.mark;
    // What contains it is not as its mark says any more.
    for (let outer = element.parentElement; outer; outer = outer.parentElement) delete outer.dataset.mark;
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    for (const s of element.querySelectorAll(".scroll")) {
      s.scrollLeft = lefts.get(s.getAttribute("aria-label")) ?? 0;
      if (s.getAttribute("aria-label") === region) s.focus({ preventScroll: true });
    }
    if (target) element.querySelector(`[href="${CSS.escape(target)}"]`)?.focus({ preventScroll: true });
    count(element);
  };
  document.addEventListener("selectionchange", () => {
    if (!waiting.size || [...waiting].some(id => { const e = document.getElementById(id); return e && selecting(e); })) return;
    waiting.clear();
    drop();
    connect();
  });

  // Loads the page anew, where swapping elements is not enough: at most once a minute, because behind
  // one address there may be servers of two versions. Whatever comes too early waits, and is left to
  // the next stream where there is none then, as the browser would show an error in the page's place, or
  // where text is selected that would be lost. What somebody is typing would be lost, too.
  let later;
  const typing = () => {
    const e = document.activeElement;
    return e?.matches("input") && e.value !== e.defaultValue;
  };
  const rest = () => Number(sessionStorage.getItem("anew") || 0) + 60000 - Date.now();
  const anew = () => {
    clearTimeout(later);
    if (rest() > 0 || typing()) {
      later = setTimeout(() => { if (stream?.readyState === EventSource.OPEN && !waiting.size) anew(); }, Math.max(rest(), 5000));
      return;
    }
    sessionStorage.setItem("anew", String(Date.now()));
    location.reload();
  };

  // The stream. Hidden pages have none: a browser keeps only six connections to one host.
  const link = document.getElementById("link"), lost = document.getElementById("lost");
  let stream, watchdog, again, since;
  const say = (text, state) => { if (link) { link.textContent = text; link.dataset.state = state; } };
  const tell = () => document.querySelector("#notice .banner") ? say("no answer", "lost")
    : waiting.size ? say("paused: text is selected", "paused") : say("live", "live");
  const alive = now => {
    skew = now - Date.now();
    since = undefined;
    lost.hidden = true;
    tell();
    clearTimeout(watchdog);
    watchdog = setTimeout(() => { drop(); miss(); connect(); }, 35000);
  };
  const miss = () => {
    since ??= new Date();
    say("not connected", "lost");
    // A server that is restarted is back in a moment: do not cry before.
    setTimeout(() => {
      if (since === undefined) return;
      lost.textContent = `No connection to the control plane since ${since.toLocaleTimeString()}. What you see is from then; it goes on by itself.`;
      lost.hidden = false;
    }, 3000);
  };
  // A stream that is refused is no lost connection, if there is an answer for the page. Whoever may
  // not read it any more does not try again: it would not help, and each time is a refusal.
  const refused = async () => {
    if (rest() > 0 && !lost.hidden) return;
    const page = await fetch(location.href, { cache: "no-store" }).catch(() => undefined);
    if (stream?.readyState === EventSource.OPEN) return;
    const denied = page?.status === 401 || page?.status === 403;
    if (!page?.ok && !denied) return miss();
    since = undefined;
    say("not live", "lost");
    lost.hidden = false;
    if (denied) {
      clearTimeout(again);
      lost.textContent = "You are not let in any more: your token may have expired or been revoked. What you see is old; load the page anew to give another token.";
      return;
    }
    lost.textContent = "No live updates: too many live pages are open. This one is loaded anew once a minute.";
    anew();
  };
  const drop = () => {
    clearTimeout(watchdog);
    clearTimeout(again);
    stream?.close();
    stream = undefined;
  };
  const on = (name, act) => stream.addEventListener(name, e => {
    const message = JSON.parse(e.data);
    alive(message.now);
    act(message);
  });
  const connect = () => {
    if (stream || document.hidden || !body.dataset.live) return;
    stream = new EventSource(body.dataset.live);
    on("hello", m => { if (m.build !== body.dataset.build) anew(); });
    on("beat", () => {});
    on("swap", m => {
      document.title = m.title + " · Ironherd";
      m.swaps.forEach(apply);
      tell();
    });
    stream.onerror = () => {
      if (stream.readyState !== EventSource.CLOSED) return miss(); // it connects again by itself
      drop();
      again = setTimeout(connect, 5000);
      refused();
    };
  };
  const look = () => { if (document.hidden) { drop(); say("paused", "paused"); } else connect(); };
  document.addEventListener("visibilitychange", look);
  addEventListener("pagehide", drop);
  addEventListener("pageshow", look);
  look();

  // Copying.
  document.addEventListener("click", async e => {
    const button = e.target.closest("[data-copy]");
    if (!button) return;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(button.previousElementSibling);
      button.textContent = "Press Ctrl+C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });

  // "/" leads to the search field.
  document.addEventListener("keydown", e => {
    if (e.key !== "/" || e.ctrlKey || e.metaKey || e.altKey || e.target.closest("input, textarea, [contenteditable]")) return;
    e.preventDefault();
    document.querySelector("input[type=search]")?.focus();
  });
})();
