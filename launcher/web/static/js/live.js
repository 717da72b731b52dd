// Keeps the page up to date: the server sends the sections that changed, and each part redraws when one of its own did.

const SILENT_S = 25; // The server sends a heartbeat every 10 s.
const AGAIN_MS = 2000;
const PARTS = [
  [["head"], drawHead],
  [["failure"], drawFailure],
  [["nodes"], drawMap],
  [["nodes"], fillPanel],
  [["gone"], drawGone],
  [["generations", "pauses", "names", "nodes"], drawTimeline],
  [["generations"], drawRecoveries],
  [["course", "pauses"], drawCharts],
  [["events"], drawEvents],
  [["head"], offerActions],
];
let heardAt = Date.now();

function contact(is, words) {
  document.body.dataset.contact = is;
  say($("contact"), words);
}
// One message above everything, by its kind; "" removes it.
const notices = new Map();
function tell(kind, words) {
  if (words) notices.set(kind, words);
  else notices.delete(kind);
  keyed(
    $("notices"),
    [...notices],
    ([name]) => name,
    () => el("p", { class: "notice" }),
    (made, [, text]) => say(made, text),
  );
}

function take(sections) {
  Object.assign(page, sections);
  if (sections.head) clock.skew = sections.head.at - Date.now() / 1000;
  const there = Boolean(page.head && !page.absent);
  $("job").hidden = !there;
  tell("full", sections.full || "");
  tell("absent", page.absent || "");
  tell(
    "outage",
    page.outage
      ? `etcd has not answered since ${hour(page.outage.since)} (${page.outage.words}). Showing the last known state.`
      : "",
  );
  if (there) {
    for (const [needs, draw] of PARTS) if (needs.some((name) => name in sections)) draw();
  }
  if (sections.full) contact("stale", "waiting");
  else if (page.outage) contact("stale", "etcd does not answer");
  else if (page.head && page.head.verdict) contact("ended", "ended");
  else contact("live", "live");
}

// A browser has six connections to one server for all its tabs, so a hidden tab holds none.
let source = null,
  once = false; // The server has answered and closes; the page asks again.
function follow() {
  if (source || document.hidden) return;
  const mine = (source = new EventSource(`/api/job/${encodeURIComponent(setup.job)}/live`));
  heardAt = Date.now();
  mine.onmessage = (event) => {
    heardAt = Date.now();
    tell("contact", "");
    const sections = JSON.parse(event.data);
    once = Boolean(sections.full || sections.absent || sections.outage);
    take(sections);
  };
  mine.onerror = () => {
    if (!once) lost();
    once = false;
    if (mine.readyState !== EventSource.CLOSED) return; // The browser reconnects.
    leave();
    setTimeout(follow, AGAIN_MS);
  };
}
function leave() {
  if (source) source.close();
  source = null;
}
let lostAt = null;
function lost() {
  if (document.body.dataset.contact !== "stale") lostAt = Date.now() / 1000;
  contact("stale", "disconnected");
  tell(
    "contact",
    `elastic-ctl ui has not answered since ${hour(lostAt || now())}. Showing the last known state; the page reconnects automatically.`,
  );
}

function start() {
  if (kept) {
    clock.still = kept.head.at;
    contact("kept", `as of ${hour(kept.head.at, true)}`);
    $("home").removeAttribute("href");
    take(kept);
    contact("kept", `as of ${hour(kept.head.at, true)}`);
    say(
      $("foot"),
      `Report of job ${kept.head.job_id}, written by elastic-ctl report at ${utc(kept.head.at)}: the state of etcd and the nodes at that time. The file makes no network requests.`,
    );
    return;
  }
  if (!setup.list) $("home").removeAttribute("href");
  say(
    $("foot"),
    setup.actions && !token
      ? "This page is read-only. To scale, drain or stop, open the full address that elastic-ctl ui printed."
      : "",
  );
  if (!setup.job) return void followJobs();
  contact("stale", "connecting");
  follow();
  document.addEventListener("visibilitychange", () => (document.hidden ? leave() : follow()));
  setInterval(() => {
    if (source && Date.now() - heardAt > SILENT_S * 1000) lost();
    if (document.body.dataset.contact !== "live") return;
    tick();
    for (const made of $("map").children) tickNode(made);
  }, 1000);
}

// Drawings have the width of their boxes: another window or a scroll bar that appears changes it.
let width = null;
function fitDrawings() {
  if (!page.head || $("job").hidden || $("main").clientWidth === width) return;
  width = $("main").clientWidth;
  drawTimeline();
  drawRecoveries();
  drawCharts();
}
new ResizeObserver(() => requestAnimationFrame(fitDrawings)).observe($("main"));
start();
