// A box for each node, in the order of their M_ids, with a square for each worker.

const DENSE = 24; // With more nodes than this the boxes are small.

function drawMap() {
  const inside = page.nodes.filter((node) => node.m_id !== null),
    outside = page.nodes.filter((node) => node.m_id === null);
  const workers = inside.reduce((sum, node) => sum + node.ranks.length, 0);
  say(
    $("map-sum"),
    inside.length
      ? `${several(inside.length, "node")}${workers ? `, ${several(workers, "worker")}` : ""}`
      : "no active nodes",
  );
  for (const [id, nodes] of [
    ["map", inside],
    ["outside", outside],
  ]) {
    $(id).classList.toggle("dense", page.nodes.length > DENSE);
    keyed($(id), nodes, (node) => node.node, makeNode, drawNode);
  }
  $("outside-part").hidden = !outside.length;
  const seen = new Map(
    page.nodes.flatMap(workersOf).map((worker) => [formOf(worker)[2] || worker.state, formOf(worker)]),
  );
  const order = [...seen].sort(([one], [other]) => one.localeCompare(other));
  keyed(
    $("map-legend"),
    order,
    ([name]) => name,
    ([name, [is, form]]) => el("li", {}, el("span", { class: "swatch", "data-tone": is, "data-form": form }), name),
    () => {},
  );
}

function makeNode(node) {
  const name = el("button", { class: "name", type: "button", onclick: () => openPanel({ node: node.node }) });
  const made = el(
    "li",
    { class: "node" },
    el("header", {}, el("span", { class: "place" }), name),
    el("p", { class: "line-2" }, el("span", { class: "is" }), el("span", { class: "facts" })),
    el("p", { class: "note", hidden: true }),
    el("div", { class: "workers" }),
  );
  made.parts = Object.fromEntries(
    ["place", "name", "is", "facts", "note", "workers"].map((part) => [part, made.querySelector(`.${part}`)]),
  );
  return made;
}

function drawNode(made, node) {
  const [is, sign] = NODE_STATES[node.state] || ["none", "○"],
    parts = made.parts;
  mark(made, "data-tone", is);
  parts.place.hidden = node.m_id === null;
  say(parts.place, node.m_id === null ? "" : String(node.m_id));
  mark(parts.place, "title", "node rank (M_id)");
  say(parts.name, node.node);
  mark(parts.name, "aria-label", `${node.m_id === null ? "" : `M_id ${node.m_id}, `}node ${node.node}, ${node.state}`);
  mark(parts.name, "title", `on host ${node.host}`);
  say(parts.is, `${sign} ${node.state}`);
  made.node = node;
  tickNode(made);
  const note = node.note || node.waits || (node.unreachable ? "cannot query its agent" : "");
  parts.note.hidden = !note;
  say(parts.note, note);
  keyed(parts.workers, workersOf(node), processName, makeWorker, drawWorker);
}
function tickNode(made) {
  const node = made.node,
    facts = [];
  if (node.since) facts.push(`for ${whole(now() - node.since)}`);
  if (node.lease_remaining_s) facts.push(`lease: ${node.lease_remaining_s.toFixed(1)} s left`);
  say(made.parts.facts, facts.join(" · "));
}

// The workers that its agent reports; without an answer, the ranks that etcd has.
function workersOf(node) {
  if (node.workers && node.workers.length) return node.workers.map((worker) => ({ ...worker, node: node.node }));
  const failed = page.head.state === "failed" && page.failure && page.failure.node === node.node && page.failure.rank;
  const state = node.state === "done" ? "exited" : "unknown";
  return node.ranks.map((rank) => ({
    role: "worker",
    index: rank,
    state: rank === failed ? "failed" : state,
    node: node.node,
  }));
}
function makeWorker(worker) {
  return el("button", {
    class: "worker",
    type: "button",
    onclick: () => openPanel({ node: worker.node, worker: processName(worker) }),
  });
}
function drawWorker(made, worker) {
  const [is, form] = formOf(worker);
  mark(made, "data-tone", is);
  mark(made, "data-form", form);
  say(made, worker.role === "worker" ? String(worker.index) : `${worker.role[0]}${worker.index}`);
  const words = `${processName(worker)}, ${worker.state}${worker.step === undefined ? "" : `, step ${worker.step}`}`;
  mark(made, "aria-label", words);
  mark(made, "title", words);
}

function drawGone() {
  $("gone-part").hidden = !page.gone.length;
  keyed(
    $("gone"),
    page.gone,
    (one) => one.node,
    () => el("li"),
    (made, one) => {
      if (made.drawn === one.reason) return;
      made.drawn = one.reason;
      made.replaceChildren(
        el("b", {}, one.node),
        el("span", { class: "dim" }, `after generation ${one.g}`),
        el("span", {}, one.reason.startsWith(`${one.node} `) ? one.reason.slice(one.node.length + 1) : one.reason),
        one.at ? moment(one.at) : "",
      );
    },
  );
}
