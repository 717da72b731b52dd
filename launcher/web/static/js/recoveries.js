// Where the time of each start and recovery went.

const PHASES = {
  // Which colour, and what it is the time of.
  earlier: ["wait", "another recovery that had begun and came to nothing"],
  join: ["start", "the command, until the node was registered"],
  meet: ["wait", "until the nodes that were needed were there"],
  detect: ["detect", "from the first sign to the one that decided"],
  seat: ["wait", "until the seats could start again"],
  decide: ["agree", "until the proposal was sent"],
  publish: ["agree", "until the store had it"],
  stop: ["stop", "until nothing was left of this node's old workers"],
  barrier: ["wait", "until the other nodes had stopped theirs, too, and this node heard the start signal"],
  spawn: ["start", "until its workers ran"],
  script: ["start", "until all of them had asked for the process group: the imports and set-up of the script"],
  group: ["meet", "until all were in the process group"],
  restore: ["restore", "until they had their state"],
  serve: ["step", "until its servers listened"],
  step: ["step", "until the first step was done"],
};
const GROUPS = [
  ["detect", "detect"],
  ["agree", "agree"],
  ["stop", "stop"],
  ["wait", "wait"],
  ["start", "start"],
  ["meet", "process group"],
  ["restore", "restore"],
  ["step", "first step"],
];
const FEW = 8;
let allRecoveries = false;

function drawRecoveries() {
  const told = page.generations.filter((one) => Object.keys(one.phases).length).reverse();
  $("recoveries-part").hidden = !told.length;
  keyed(
    $("phases-legend"),
    GROUPS,
    ([name]) => name,
    ([name, words]) => el("li", {}, el("span", { class: `box phase-${name}` }), words),
    () => {},
  );
  keyed(
    $("recoveries"),
    allRecoveries ? told : told.slice(0, FEW),
    (one) => one.g,
    () => el("li"),
    drawRecovery,
  );
  $("recoveries-more").hidden = told.length <= FEW || allRecoveries;
  say($("recoveries-more"), `Show all ${told.length}`);
}
$("recoveries-more").addEventListener("click", () => {
  allRecoveries = true;
  drawRecoveries();
});

function drawRecovery(made, one) {
  const room = $("recoveries").clientWidth,
    what = JSON.stringify([room, one.phases, one.complete, one.reason, one.again, one.restored_step]);
  if (made.drawn === what) return;
  made.drawn = what;
  const phases = Object.entries(one.phases),
    total = phases.reduce((sum, [, took]) => sum + took, 0);
  const stack = el("div", {
    class: "stack",
    role: "img",
    "aria-label": phases.map(([name, took]) => `${name} ${length(took)}`).join(", "),
  });
  for (const [name, took] of phases) {
    const share = total ? took / total : 0,
      words = `${name} ${length(took)}`,
      roomy = share * room > 8 * words.length + 12;
    const piece = el(
      "span",
      { class: `phase-${(PHASES[name] || ["wait"])[0]}${roomy ? " roomy" : ""}`, title: words },
      roomy ? words : "",
    );
    piece.style.flex = `${Math.max(share, 0.0001)} 1 0`;
    stack.append(piece);
  }
  const why = one.why || (one.start ? "first" : "?");
  const rows = phases.map(([name, took]) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, name),
      el("td", { class: "n" }, length(took)),
      el("td", { class: "dim" }, (PHASES[name] || ["", ""])[1]),
    ),
  );
  const ended = one.complete === false ? "not back after " : "";
  const again = one.again ? `; ${several(one.again, "step")} lost` : "";
  const restored = one.restored_step === null ? "" : `; went on from step ${count(Math.max(one.restored_step, 0))}`;
  const was = made.querySelector("details");
  made.replaceChildren(
    el(
      "details",
      { open: was && was.open },
      el(
        "summary",
        {},
        el(
          "div",
          { class: "top" },
          el("span", { class: "chip", "data-tone": tone(why) }, `generation ${one.g} · ${why}`),
          el("span", { class: "why" }, one.text ? one.reason || one.text : one.reason),
          one.go_at ? moment(one.go_at) : "",
          el("span", { class: "took" }, ended + length(total)),
        ),
        stack,
      ),
      el("table", { class: "phases" }, el("caption", { class: "dim" }), el("tbody", {}, ...rows)),
      el("p", { class: "dim" }, `${one.text || ""}${restored}${again}`),
    ),
  );
}
