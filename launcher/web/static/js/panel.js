// What is known of one node or one worker, in a dialog; its log and its stacks when somebody asks for them.

const panel = $("panel");
let shown = null; // What the panel is about: it is kept up to date while it is open.

function openPanel(about) {
  shown = about;
  const title = el("h2", { id: "panel-title" }),
    facts = el("dl"),
    row = el("div", { class: "row" });
  const answer = el("pre", { tabindex: "0", hidden: true }),
    told = el("p", { class: "dim", role: "status" });
  const close = el("button", { class: "quiet", type: "button", onclick: () => panel.close() }, "Close");
  panel.replaceChildren(
    el("div", { class: "inner" }, el("div", { class: "title" }, title, close), facts, row, told, answer),
  );
  Object.assign(shown, { title, facts, row, answer, told });
  fillPanel();
  if (about.worker && !kept) {
    row.append(el("button", { class: "quiet", type: "button", onclick: () => ask("log") }, "Last lines of its log"));
    row.append(el("button", { class: "quiet", type: "button", onclick: () => ask("stacks") }, "Where it is: stacks"));
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
            ["Rate", speed(worker.rate)],
            ...Object.entries(worker.metrics || {}).map(([name, value]) => [name, figure(value)]),
            ["Exit code", worker.code],
            ["Log", worker.log],
          ]
        : [
            ["Node", shown.node],
            [
              "State",
              node && !node.unasked && !node.workers ? "not known: its agent was not asked" : "not known any more",
            ],
            ["Why", node && node.unasked],
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
          ["Waits", node.waits],
          [
            "Lease",
            node.lease_age_s === null || node.lease_age_s === undefined
              ? null
              : `refreshed ${length(node.lease_age_s)} before it was asked`,
          ],
          ["Right to run", node.right_s && `${length(node.right_s)} left, then it must have been refreshed`],
          ["Seats", node.seats],
          ["Up", node.up && sinceWords(node.up)],
          ["Process", node.pid],
          ["Version", node.version],
          ["Not asked", node.unasked],
        ]
      : [["State", "not registered any more"]],
  );
}
function facts(rows) {
  const told = rows
    .filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => [name, String(value)]);
  const parts = told.flatMap(([name, value]) => [
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
const sinceWords = (at) => `${hour(at)} (${whole(now() - at)})`;
const processName = (worker) => (worker.role === "worker" ? `rank ${worker.index}` : `${worker.role} ${worker.index}`);

async function ask(what) {
  const about = shown,
    named = about.worker.replace("rank ", "").replace(" ", ".");
  say(about.told, "Asking the node …");
  const { value, error } = await fetched(
    `/api/job/${encodeURIComponent(setup.job)}/${what}/${encodeURIComponent(named)}`,
  );
  if (shown !== about) return;
  say(about.told, error || (what === "log" ? `The end of ${value.path}` : value.how));
  about.answer.hidden = Boolean(error);
  say(about.answer, error ? "" : value.text || "It has written nothing.");
  about.answer.scrollTop = about.answer.scrollHeight;
}

// An answer of the server, or why there is none, in words.
async function fetched(path, options) {
  try {
    const answer = await fetch(path, { cache: "no-store", ...options });
    const value = await answer.json();
    return value.error ? { error: value.error } : { value };
  } catch {
    return { error: "elastic-ctl ui does not answer; is it still running?" };
  }
}
