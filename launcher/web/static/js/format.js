// Elements, numbers and times. What comes from a job is only ever put in as text.

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function furnish(made, attributes, parts) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...parts.filter((part) => part !== null && part !== undefined && part !== ""));
  return made;
}
const el = (tag, attributes, ...parts) => furnish(document.createElement(tag), attributes, parts);
const svg = (tag, attributes, ...parts) => furnish(document.createElementNS(SVG, tag), attributes, parts);

// Set the text if it differs: a selection in an unchanged text stays.
function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
function mark(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

// Children for items, by key. Existing ones keep their place, so that nothing jumps and no focus is lost. All are in
// place before the first is updated: a drawing takes its width from its box, which depends on how many share the row.
function keyed(parent, items, key, make, update) {
  const known = parent.known || (parent.known = new Map());
  const wanted = new Set(items.map(key));
  for (const [name, node] of known) {
    if (!wanted.has(name)) {
      node.remove();
      known.delete(name);
    }
  }
  let at = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    let node = known.get(name);
    if (!node) known.set(name, (node = make(item)));
    if (node === at) at = at.nextElementSibling;
    else parent.insertBefore(node, at);
  }
  for (const item of items) update(known.get(key(item)), item);
}

// Seconds since the epoch on the server's clock; in a report the moment when it was written.
const clock = { skew: 0, still: null };
const now = () => (clock.still === null ? Date.now() / 1000 + clock.skew : clock.still);

const pad = (number) => String(number).padStart(2, "0");
function hour(at, withDay) {
  const date = new Date(at * 1000),
    today = new Date(now() * 1000);
  const time = `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
  if (!withDay && date.toDateString() === today.toDateString()) return time;
  return `${date.toLocaleDateString(undefined, { month: "short", day: "numeric" })} ${time}`;
}
const utc = (at) => new Date(at * 1000).toISOString().replace("T", " ").replace("Z", " UTC");
const moment = (at) => el("time", { datetime: new Date(at * 1000).toISOString(), title: utc(at) }, hour(at));

function length(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const s = Math.max(seconds, 0);
  if (s < 0.0995) return `${(s * 1000).toFixed(s < 0.00995 ? 1 : 0)} ms`;
  if (s < 10) return `${s.toFixed(2)} s`;
  if (s < 60) return `${s.toFixed(1)} s`;
  return whole(s);
}
function whole(seconds) {
  const s = Math.max(Math.floor(seconds), 0);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}
function figure(value) {
  if (value === undefined) return "–";
  if (value === null) return "not finite"; // JSON has no NaN and no Infinity.
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}
const count = (value) =>
  value === null || value === undefined ? "–" : value.toLocaleString("en").replaceAll(",", " ");
// A number of steps per second and its unit; for slower steps their length.
function rateOf(rate) {
  if (rate === null || rate === undefined) return ["–", ""];
  return rate >= 1 || rate === 0
    ? [figure(Number(rate.toPrecision(3))), "steps/s"]
    : [figure(Number((1 / rate).toPrecision(3))), "s/step"];
}
const speed = (rate) => rateOf(rate).join(" ").trim();
const several = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

// How each state looks: a colour and a character or a form, so that states differ without colour, too.
const NODE_STATES = {
  running: ["run", "●"],
  done: ["done", "✓"],
  ready: ["begin", "◔"],
  "at the barrier": ["begin", "◔"],
  stopping: ["end", "■"],
  draining: ["end", "↘"],
  spare: ["none", "○"],
  quarantined: ["bad", "⊘"],
  lost: ["bad", "✕"],
};
const JOB_STATES = {
  training: ["run", "●"],
  running: ["run", "●"],
  completed: ["done", "✓"],
  failed: ["bad", "✕"],
  stopped: ["end", "■"],
  downtime: ["begin", "‖"],
  recovering: ["bad", "↻"],
  starting: ["begin", "◔"],
  waiting: ["begin", "◔"],
  "no nodes": ["none", "○"],
  unreadable: ["bad", "✕"],
};
const WORKER_FORMS = {
  stepping: ["run", "full", "training"],
  serving: ["run", "full"],
  running: ["run", "open", "running (no progress reports)"],
  "in group": ["begin", "full"],
  restored: ["begin", "full", "state restored"],
  starting: ["begin", "open"],
  preparing: ["begin", "open"],
  joining: ["begin", "open"],
  stopping: ["end", "dashed"],
  exited: ["done", "open"],
  failed: ["bad", "cross", "failed"],
  unknown: ["none", "dashed"],
};
const WHYS = { "node lost": "bad", failure: "bad", quarantined: "bad", stopped: "end", first: "none", reformed: "none" };
const tone = (why) => WHYS[why] || "done";

const OUR_ENDS = [143, -15]; // It ended on the agent's SIGTERM.

function formOf(worker) {
  if (worker.state === "exited" && worker.code && !OUR_ENDS.includes(worker.code)) return WORKER_FORMS.failed;
  return WORKER_FORMS[worker.state] || WORKER_FORMS.unknown;
}

const lostWords = (steps, made) =>
  made < steps ? `${several(steps, "step")} lost, ${count(made)} repeated so far` : several(steps, "repeated step");
