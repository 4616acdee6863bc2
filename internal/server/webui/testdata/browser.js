// As much of a browser as the page's script asks for. The clock stands until pass moves it.
"use strict";
const clock = { now: 1000000, timers: [] };
Date.now = () => clock.now;
const setTimeout = (act, ms) => { const t = { at: clock.now + ms, act }; clock.timers.push(t); return t; };
const setInterval = () => {};
const clearTimeout = t => { clock.timers = clock.timers.filter(other => other !== t); };
const pass = ms => {
  const until = clock.now + ms;
  for (;;) {
    const next = clock.timers.filter(t => t.at <= until).sort((a, b) => a.at - b.at)[0];
    if (!next) break;
    clearTimeout(next);
    clock.now = next.at;
    next.act();
  }
  clock.now = until;
};

// Whatever listens: to the document, to the window, or to a stream.
const listening = () => {
  const all = {};
  return {
    addEventListener: (name, act) => { (all[name] ??= []).push(act); },
    fire: (name, event) => (all[name] ?? []).forEach(act => act(event)),
  };
};

const streams = [];
class EventSource {
  constructor(url) { Object.assign(this, listening(), { url, readyState: EventSource.CONNECTING }); streams.push(this); }
  close() { this.readyState = EventSource.CLOSED; }
  // What the server and the network do.
  open() { this.readyState = EventSource.OPEN; }
  send(name, message) { this.fire(name, { data: JSON.stringify({ now: clock.now, ...message }) }); }
  breaks() { this.readyState = EventSource.CONNECTING; this.onerror(); }
  refuse() { this.readyState = EventSource.CLOSED; this.onerror(); }
}
EventSource.CONNECTING = 0;
EventSource.OPEN = 1;
EventSource.CLOSED = 2;
const stream = () => streams[streams.length - 1];
// beating passes so many seconds, with a stream that beats.
const beating = seconds => {
  for (let i = 0; i < seconds; i++) {
    pass(1000);
    stream().send("beat");
  }
};
const connected = () => streams.filter(s => s.readyState !== EventSource.CLOSED).length;

const element = id => ({
  id, dataset: {}, textContent: "", innerHTML: "", hidden: true, value: "", defaultValue: "",
  querySelectorAll: () => [], querySelector: () => null, contains: () => false, getAttribute: () => null,
  matches(selector) { return selector === this.selector; },
});
const elements = { link: element("link"), lost: element("lost"), fleet: element("fleet") };
const search = { ...element("search"), selector: "input" };
const { link, lost, fleet } = elements;
const selection = { isCollapsed: true, of: null, containsNode: e => e === selection.of };
const getSelection = () => selection;
const select = e => { selection.of = e; selection.isCollapsed = !e; document.fire("selectionchange"); };
const document = {
  ...listening(),
  hidden: false, title: "", activeElement: null,
  body: { dataset: { live: "/live?view=overview", build: "b1", now: String(clock.now) } },
  documentElement: { classList: { add: () => {} } },
  getElementById: id => elements[id] ?? null,
  querySelectorAll: () => [],
  querySelector: selector => selector === "input[type=search]" ? search : null,
};
const show = visible => { document.hidden = !visible; document.fire("visibilitychange"); };
const page = listening();
const addEventListener = page.addEventListener;
let reloads = 0;
const location = { href: "http://127.0.0.1/", reload: () => { reloads++; } };
const kept = {};
const sessionStorage = { getItem: key => kept[key] ?? null, setItem: (key, value) => { kept[key] = value; } };
const navigator = {}, CSS = { escape: text => text };
// What the page's own address answers: a status, or 0 for nobody.
let answer = 200, asked = 0;
const fetch = async () => {
  asked++;
  if (answer === 0) throw new Error("nobody answers");
  return { status: answer, ok: answer === 200 };
};
