// A dialog with everything about one node or one worker; a worker's log and stack traces on request.

const panel = $("panel");
let shown = null; // The subject of the open panel, which is kept up to date.

function openPanel(about) {
  shown = about;
  const title = el("h2", { id: "panel-title" }),
    facts = el("dl"),
    row = el("div", { class: "row" });
  const answer = el("pre", { tabindex: "0", hidden: true }),
    note = el("p", { class: "dim", role: "status" });
  const close = el("button", { class: "quiet", type: "button", onclick: () => panel.close() }, "Close");
  panel.replaceChildren(
    el("div", { class: "inner" }, el("div", { class: "title" }, title, close), facts, row, note, answer),
  );
  Object.assign(shown, { title, facts, row, answer, note });
  fillPanel();
  if (about.worker && !kept) {
    row.append(el("button", { class: "quiet", type: "button", onclick: () => ask("log") }, "Show last log lines"));
    row.append(el("button", { class: "quiet", type: "button", onclick: () => ask("stacks") }, "Show stack traces"));
  }
  if (about.node && !about.worker) offerDrain(row, about.node);
  panel.showModal();
}
panel.addEventListener("close", () => (shown = null));
for (const one of [$("panel"), $("ask")]) {
  one.addEventListener("click", (event) => {
    if (event.target === one) one.close();
  });
}

function fillPanel() {
  if (!shown) return;
  const node = (page.nodes || []).find((one) => one.node === shown.node);
  const worker = node && shown.worker && (node.workers || []).find((one) => processName(one) === shown.worker);
  if (shown.worker) {
    say(shown.title, shown.worker);
    facts(
      worker
        ? [
            ["State", worker.state + (worker.detail ? `: ${worker.detail}` : "")],
            ["Since", sinceWords(worker.since)],
            ["Node", shown.node],
            ["Local rank", worker.local_rank],
            ["Process", worker.pid],
            ["Generation", worker.g],
            ["Step", count(worker.step)],
            ["Throughput", speed(worker.rate)],
            ...Object.entries(worker.metrics || {}).map(([name, value]) => [name, figure(value)]),
            ["Exit code", worker.code],
            ["Log", worker.log],
          ]
        : [
            ["Node", shown.node],
            [
              "State",
              node && !node.unreachable && !node.workers ? "unknown: its agent was not queried" : "no longer known",
            ],
            ["Why", node && node.unreachable],
          ],
    );
    return;
  }
  say(shown.title, shown.node);
  facts(
    node
      ? [
          ["Host", node.host],
          ["M_id", node.m_id === null ? "none" : node.m_id],
          ["State", node.state + (node.note ? `: ${node.note}` : "")],
          ["Agent", node.phase],
          ["Since", node.since && sinceWords(node.since)],
          ["Waiting for", node.waits],
          ["Lease", leaseWords(node)],
          ["Tasks", node.tasks],
          ["Up", node.up && sinceWords(node.up)],
          ["Process", node.pid],
          ["Version", node.version],
          ["Unreachable", node.unreachable],
        ]
      : [["State", "no longer registered"]],
  );
}
function facts(rows) {
  const known = rows
    .filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => [name, String(value)]);
  const parts = known.flatMap(([name, value]) => [
    ["dt", name, name],
    ["dd", name, value],
  ]);
  keyed(
    shown.facts,
    parts,
    ([tag, name]) => `${tag} ${name}`,
    ([tag]) => el(tag),
    (made, [, , text]) => say(made, text),
  );
}
function leaseWords(node) {
  const known = (seconds) => seconds !== null && seconds !== undefined;
  const parts = [];
  if (node.lease_remaining_s) parts.push(`${length(node.lease_remaining_s)} left`);
  if (known(node.lease_age_s)) parts.push(`last renewed ${length(node.lease_age_s)} before the query`);
  return parts.join(", ");
}
const sinceWords = (at) => `${hour(at)} (${whole(now() - at)})`;
const processName = (worker) => (worker.role === "worker" ? `rank ${worker.index}` : `${worker.role} ${worker.index}`);

async function ask(what) {
  const about = shown,
    named = about.worker.replace("rank ", "").replace(" ", ".");
  say(about.note, "Querying the node …");
  const { value, error } = await fetched(
    `/api/job/${encodeURIComponent(setup.job)}/${what}/${encodeURIComponent(named)}`,
  );
  if (shown !== about) return;
  say(about.note, error || (what === "log" ? `End of ${value.path}` : value.how));
  about.answer.hidden = Boolean(error);
  say(about.answer, error ? "" : value.text || "No output yet.");
  about.answer.scrollTop = about.answer.scrollHeight;
}

// The answer of the server, or a message that says why there is none.
async function fetched(path, options) {
  try {
    const answer = await fetch(path, { cache: "no-store", ...options });
    const value = await answer.json();
    return value.error ? { error: value.error } : { value };
  } catch {
    return { error: "elastic-ctl ui does not answer; is it still running?" };
  }
}
