// The head of a job: its state in a sentence, its figures, and the root cause of its first failure.

const setup = JSON.parse($("setup").textContent);
const kept = JSON.parse($("data").textContent);
const page = { absent: null, outage: null };

function tile(name, wide) {
  const value = el("dd"),
    more = el("dd", { class: "small" });
  $("tiles").append(el("div", { class: wide ? "wide" : null }, el("dt", {}, name), value, more));
  return { value, more };
}
const tiles =
  setup.job || kept
    ? {
        goodput: tile("Goodput"),
        step: tile("Step"),
        rate: tile("Throughput"),
        loss: tile("Loss"),
        nodes: tile("Nodes"),
        world: tile("World size"),
        generation: tile("Generation"),
        time: tile("Uptime"),
        restarts: tile("Counted restarts", "wide"),
      }
    : null;

function drawHead() {
  const head = page.head,
    totals = head.totals;
  document.title = `${head.job_id} · ${head.state}${head.generation ? ` · generation ${head.generation}` : ""}`;
  say($("title"), head.job_id);
  const [is, sign] = JOB_STATES[head.state] || ["none", "○"];
  mark($("state"), "data-tone", is);
  $("state").classList.toggle("full", Boolean(head.verdict));
  if ($("state").textContent !== `${sign} ${head.state}`)
    $("state").replaceChildren(el("span", {}, `${sign} ${head.state}`));
  say($("sentence"), head.sentence);
  mark($("sentence"), "data-tone", head.verdict ? is : null);
  const last = head.generation ? `Generation ${head.generation} (${head.why}): ${head.reason}` : "";
  say($("reason"), head.verdict ? "" : last);

  say(tiles.goodput.value, head.goodput === null ? "–" : `${(100 * head.goodput).toFixed(1)} %`);
  say(tiles.goodput.more, totals.wall_s ? `${length(totals.paused_s)} downtime` : "");
  say(tiles.step.value, count(head.step));
  const made = page.pauses.reduce((sum, pause) => sum + pause.made, 0);
  say(tiles.step.more, totals.again ? lostWords(totals.again, made) : "");
  const [rate, unit] = head.verdict ? ["–", ""] : rateOf(head.rate);
  say(tiles.rate.value, rate);
  say(tiles.rate.more, unit);
  say(tiles.loss.value, figure(head.loss));
  say(tiles.loss.more, "rank 0");
  say(tiles.nodes.value, head.verdict ? "–" : String(head.members));
  say(tiles.nodes.more, head.np ? `np ${head.np}` : "");
  say(tiles.world.value, head.world ? String(head.world) : "–");
  say(tiles.world.more, "workers");
  say(tiles.generation.value, head.generation === null ? "–" : String(head.generation));
  say(tiles.generation.more, head.why ? head.why : "");
  say(
    tiles.restarts.value,
    head.restarts_max === null ? String(head.restarts) : `${head.restarts} of ${head.restarts_max}`,
  );
  const free = Object.entries(totals.restarts)
    .map(([why, many]) => `${many} × ${why}`)
    .join(", ");
  say(tiles.restarts.more, free ? `changes: ${free}` : "no changes");
  tick();

  const hints = [];
  if (head.lacking)
    hints.push(
      `${several(head.lacking, "node")} missing: ${head.missing.slice(0, 5).join("; ") || "not started yet, or cannot connect to etcd"}`,
    );
  else if (head.missing.length) hints.push(`Missing: ${head.missing.slice(0, 5).join("; ")}`);
  if (head.saved)
    hints.push(
      `Saved: step ${count(head.saved.step)} at ${hour(head.saved.at)}, in ${head.saved.folder} on ${head.saved.host}`,
    );
  if (head.since) hints.push(`etcd has only the newest events: all figures start at ${hour(head.since)}`);
  for (const key of head.damaged) hints.push(`Cannot parse etcd key: ${key}`);
  keyed(
    $("hints"),
    hints,
    (text) => text,
    (text) => el("li", {}, text),
    () => {},
  );
}

// What changes with the clock alone.
function tick() {
  const head = page.head;
  if (!head) return;
  const until = head.until || now();
  say(tiles.time.value, head.began ? whole(until - head.began) : "–");
  say(tiles.time.more, head.began ? `since ${hour(head.began)}` : "");
}

function drawFailure() {
  const failure = page.failure;
  $("failure").hidden = !failure;
  if (!failure) return;
  const known = failure.role === "worker" ? `Rank ${failure.rank}` : `${failure.role} ${failure.rank}`;
  const who = failure.rank < 0 ? "A worker" : known;
  say(
    $("failure-words"),
    `${who} on host ${failure.host} (node ${failure.node}, generation ${failure.g}): ${failure.words}`,
  );
  say($("failure-log"), failure.log ? `Log: ${failure.log} on host ${failure.host}` : "");
  say($("failure-tail"), failure.tail.length ? failure.tail.join("\n") : "No output.");
}

$("copy").addEventListener("click", async () => {
  const text = ["failure-words", "failure-log", "failure-tail"].map((id) => $(id).textContent).join("\n");
  say($("copy"), (await copied(text)) ? "Copied" : "Press Ctrl-C to copy");
  setTimeout(() => say($("copy"), "Copy"), 2500);
});

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Browsers do not allow it on a page from a file.
    const range = document.createRange();
    range.selectNodeContents($("failure-tail"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    return false;
  }
}

// The theme follows the system until it is chosen here.
const THEMES = ["system", "light", "dark"];
function paint(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  say($("theme"), `Theme: ${theme}`);
}
$("theme").addEventListener("click", () => {
  const is = document.documentElement.dataset.theme || "system";
  const next = THEMES[(THEMES.indexOf(is) + 1) % THEMES.length];
  paint(next);
  try {
    localStorage.setItem("theme", next);
  } catch {
    /* A browser may refuse to store it; then it lasts as long as the page. */
  }
});
try {
  const theme = localStorage.getItem("theme");
  if (THEMES.includes(theme)) paint(theme);
} catch {
  /* The browser stores nothing for this page. */
}
