// The head of a job: its state in a sentence, its figures, and its first failure.

const setup = JSON.parse($("setup").textContent);
const kept = JSON.parse($("data").textContent);
const page = { absent: null, trouble: null };

function tile(name, small) {
  const value = el("dd"),
    more = small ? el("dd", { class: "small" }) : null;
  $("tiles").append(el("div", {}, el("dt", {}, name), value, more));
  return { value, more };
}
const tiles =
  setup.job || kept
    ? {
        goodput: tile("Goodput", true),
        step: tile("Step", true),
        rate: tile("Rate", true),
        loss: tile("Loss", true),
        nodes: tile("Nodes", true),
        world: tile("World", true),
        generation: tile("Generation", true),
        time: tile("Uptime", true),
        restarts: tile("Restarts", true),
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
  say(tiles.goodput.more, totals.wall_s ? `${length(totals.paused_s)} in pauses` : "");
  say(tiles.step.value, count(head.step));
  const made = page.pauses.reduce((sum, pause) => sum + pause.made, 0);
  say(tiles.step.more, totals.again ? `${count(totals.again)} ${lostWords(totals.again, made)}` : "");
  say(tiles.rate.value, head.verdict ? "–" : speed(head.rate));
  say(tiles.rate.more, "steps/s");
  say(tiles.loss.value, figure(head.loss));
  say(tiles.loss.more, "of rank 0");
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
  say(tiles.restarts.more, free ? `charged; ${free}` : "charged");
  tick();

  const hints = [];
  if (head.lacking)
    hints.push(
      `${several(head.lacking, "node")} missing: ${head.missing.slice(0, 5).join("; ") || "not started yet, or without a way to etcd"}`,
    );
  else if (head.missing.length) hints.push(`Missing: ${head.missing.slice(0, 5).join("; ")}`);
  if (head.saved)
    hints.push(
      `Saved: step ${head.saved.step} in ${head.saved.folder} on ${head.saved.host}, at ${hour(head.saved.at)}`,
    );
  if (head.since) hints.push(`Only the newest events are kept: all figures count from ${hour(head.since)}`);
  for (const key of head.damaged) hints.push(`This document cannot be read: ${key}`);
  keyed(
    $("hints"),
    hints,
    (text) => text,
    (text) => el("li", {}, text),
    () => {},
  );
}

// What changes by itself.
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
  say($("failure-log"), failure.log ? `Its log: ${failure.log} on host ${failure.host}` : "");
  say($("failure-tail"), failure.tail.length ? failure.tail.join("\n") : "It wrote nothing to its log.");
}

$("copy").addEventListener("click", async () => {
  const text = ["failure-words", "failure-log", "failure-tail"].map((id) => $(id).textContent).join("\n");
  say($("copy"), (await copied(text)) ? "Copied" : "Select it, and press Ctrl-C");
  setTimeout(() => say($("copy"), "Copy"), 2500);
});

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Not allowed here, as in a file.
    const range = document.createRange();
    range.selectNodeContents($("failure-tail"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    return false;
  }
}

$("theme").addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const is = document.documentElement.dataset.theme || (dark ? "dark" : "light");
  paint(is === "dark" ? "light" : "dark");
  try {
    localStorage.setItem("theme", document.documentElement.dataset.theme);
  } catch {
    /* It is not kept. */
  }
});
function paint(theme) {
  document.documentElement.dataset.theme = theme;
}
try {
  const theme = localStorage.getItem("theme");
  if (theme === "dark" || theme === "light") paint(theme);
} catch {
  /* None is kept. */
}
