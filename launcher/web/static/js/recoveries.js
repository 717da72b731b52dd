// Where the time of each recovery went: the phases of the line that an agent logs, all recoveries on one time axis.

// Each phase in the order of the line, with its colour and what happens in it.
const PHASES = {
  earlier: ["other", "a recovery that had begun, until another failure overtook it"],
  join: ["other", "from the command until the node was registered"],
  rendezvous: ["other", "until enough nodes had joined"],
  detect: ["detect", "until the failure was certain"],
  assign: ["other", "until there was a node on which the tasks could start"],
  decide: ["decide", "until the leader had computed the next generation"],
  publish: ["decide", "until etcd had stored it"],
  stop: ["stop", "until the old workers of this node had exited"],
  barrier: ["stop", "until the old workers of all other nodes had exited"],
  spawn: ["start", "until the new workers of this node ran"],
  script: ["start", "until the script had asked for the process group: its imports and set-up"],
  group: ["start", "until all workers were connected to each other"],
  restore: ["restore", "until the workers had their state"],
  serve: ["step", "until the servers of this node listened"],
  step: ["step", "until the first step was complete"],
};
const FEW = 8;
const SECONDS_MAX = 600; // Above this an axis counts in minutes and hours.
let allRecoveries = false;

const totalOf = (one) => Object.values(one.phases).reduce((sum, took) => sum + took, 0);

function drawRecoveries() {
  const timed = page.generations.filter((one) => Object.keys(one.phases).length).reverse();
  const recoveries = timed.filter((one) => !one.start),
    starts = timed.filter((one) => one.start);
  const shown = allRecoveries ? recoveries : recoveries.slice(0, FEW);
  $("recoveries-part").hidden = !timed.length;
  drawLegend([...shown, ...starts]);
  keyed(
    $("recoveries"),
    [
      ["Recoveries", shown],
      ["Start", starts],
    ].filter(([, some]) => some.length),
    ([title]) => title,
    ([title]) => el("div", { class: "timed" }, el("h3", {}, title), el("ol"), el("div", { class: "scale" })),
    drawTimed,
  );
  $("recoveries-more").hidden = recoveries.length <= FEW || allRecoveries;
  say($("recoveries-more"), `Show all ${recoveries.length}`);
}
$("recoveries-more").addEventListener("click", () => {
  allRecoveries = true;
  drawRecoveries();
});

// One entry for each colour that is used: the names of its phases.
function drawLegend(some) {
  const used = new Set(some.flatMap((one) => Object.keys(one.phases))),
    colours = new Map();
  const known = Object.keys(PHASES).filter((name) => used.has(name));
  for (const name of [...known, ...[...used].filter((name) => !PHASES[name])]) {
    const colour = (PHASES[name] || ["other"])[0];
    colours.set(colour, [...(colours.get(colour) || []), name]);
  }
  keyed(
    $("phases-legend"),
    [...colours],
    ([colour, names]) => `${colour} ${names}`,
    ([colour, names]) => el("li", {}, el("span", { class: `box phase-${colour}` }), names.join(", ")),
    () => {},
  );
}

// Bars that share one axis, which is below them.
function drawTimed(made, [, some]) {
  const [, list, scale] = made.children,
    room = $("recoveries").clientWidth;
  const marks = nice(0, Math.max(...some.map(totalOf)), Math.max(2, Math.min(8, Math.floor(room / 110)))),
    roof = marks[marks.length - 1];
  keyed(
    list,
    some,
    (one) => one.g,
    () => el("li"),
    (item, one) => drawRecovery(item, one, marks, room),
  );
  const what = JSON.stringify(marks);
  if (scale.drawn === what) return;
  scale.drawn = what;
  scale.replaceChildren(
    ...marks.map((at) => {
      const name = el("span", {}, axisLength(at, roof));
      name.style.left = `${(100 * at) / roof}%`;
      return name;
    }),
  );
}
function axisLength(seconds, roof) {
  if (roof > SECONDS_MAX) return whole(seconds);
  if (roof < 1) return `${figure(seconds * 1000)} ms`;
  return `${figure(seconds)} s`;
}

function drawBar(one, marks, room) {
  const phases = Object.entries(one.phases),
    roof = marks[marks.length - 1];
  const bar = el("div", {
    class: "stack",
    role: "img",
    "aria-label": phases.map(([name, took]) => `${name} ${length(took)}`).join(", "),
  });
  for (const at of marks.slice(1, -1)) {
    const line = el("i");
    line.style.left = `${(100 * at) / roof}%`;
    bar.append(line);
  }
  let at = 0;
  for (const [name, took] of phases) {
    const words = `${name} ${length(took)}`,
      wide = (took / roof) * room;
    const text = [words, name].find((one) => 7 * one.length + 10 < wide) || "";
    const piece = el("span", { class: `phase-${(PHASES[name] || ["other"])[0]}`, title: words }, text);
    mark(piece, "data-narrow", wide < 5);
    piece.style.left = `${(100 * at) / roof}%`;
    piece.style.width = `${(100 * took) / roof}%`;
    bar.append(piece);
    at += took;
  }
  return bar;
}

function drawRecovery(made, one, marks, room) {
  const what = JSON.stringify([room, marks, one.phases, one.complete, one.reason, one.again, one.restored_step]);
  if (made.drawn === what) return;
  made.drawn = what;
  const phases = Object.entries(one.phases);
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
  const facts = [
    one.restored_step === null || (one.start && one.restored_step < 1)
      ? ""
      : `resumed from step ${count(Math.max(one.restored_step, 0))}`,
    one.again ? several(one.again, "repeated step") : "",
  ].filter((fact) => fact);
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
          el("span", { class: "why" }, one.reason || one.text),
          el("span", { class: "dim" }, facts.join(", ")),
          one.go_at ? moment(one.go_at) : "",
          el("span", { class: "took" }, ended + length(totalOf(one))),
        ),
        drawBar(one, marks, room),
      ),
      el("table", { class: "phases" }, el("tbody", {}, ...rows)),
      el("p", { class: "dim path" }, one.text),
    ),
  );
}
