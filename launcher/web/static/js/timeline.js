// One row per node over time, with a bar for each generation that the node was in; downtime as bands over all rows.

const ZOOMS = [
  ["All", Infinity],
  ["1 h", 3600],
  ["10 min", 600],
  ["1 min", 60],
];
let zoom = Infinity,
  chosen = null;

function chooser(part, names, isOn, choose) {
  const made = names.map((name) =>
    el(
      "button",
      {
        type: "button",
        "aria-pressed": String(isOn(name)),
        onclick: () => {
          choose(name);
          for (const one of part.children) mark(one, "aria-pressed", String(isOn(one.textContent)));
        },
      },
      name,
    ),
  );
  part.replaceChildren(...made);
}
chooser(
  $("zoom"),
  ZOOMS.map(([name]) => name),
  (name) => ZOOMS.find(([one]) => one === name)[1] === zoom,
  (name) => {
    zoom = ZOOMS.find(([one]) => one === name)[1];
    drawTimeline();
  },
);

// When the workers of a generation could start, and when they were stopped.
const beginOf = (one) => one.first_step_at || one.go_at || one.published_at;
const endOf = (one) => one.ended_at || page.head.until || now();

// The kinds of downtime, by the colour of their bands; "" stands for the bars.
const BANDS = {
  "": "active in a generation",
  none: "start",
  bad: "downtime: failure",
  done: "downtime: planned change",
  end: "downtime: stop",
  begin: "no steps now",
};
const bandOf = (pause) => (pause.open ? "begin" : tone(pause.why));

function rowsOfNodes() {
  const placed = (page.nodes || []).filter((node) => node.m_id !== null).map((node) => node.node);
  const rest = (page.nodes || []).filter((node) => node.m_id === null).map((node) => node.node);
  return [...new Set([...page.names, ...placed, ...rest])];
}

function ticksOfTime(from, to, most) {
  const steps = [
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800,
  ];
  const step = steps.find((one) => (to - from) / one <= most) || 2592000;
  const shift = new Date(from * 1000).getTimezoneOffset() * 60,
    found = [];
  for (let at = Math.ceil((from - shift) / step) * step + shift; at <= to; at += step) found.push(at);
  return found;
}
// A text below an axis, which stays inside at the edges.
function label(x, y, width, text) {
  const half = 3.2 * text.length;
  return svg("text", { x: Math.min(Math.max(x, half), width - half), y, "text-anchor": "middle" }, text);
}
function shortHour(at, span) {
  const text = hour(at, span > 86400);
  return span > 600 ? text.slice(0, -3) : text;
}

function drawTimeline() {
  const head = page.head,
    part = $("timeline"),
    width = part.clientWidth;
  $("timeline-part").hidden = !head.began || !page.generations.length;
  if ($("timeline-part").hidden || !width) return;
  const end = head.until || now(),
    begin = Math.max(head.began, end - zoom),
    span = Math.max(end - begin, 1);
  const rows = rowsOfNodes(),
    high = Math.max(3, Math.min(20, Math.floor(460 / rows.length))),
    named = high >= 12,
    gap = high < 6 ? 1 : 2;
  const left = named ? (width < 520 ? 92 : 160) : 8,
    top = 38,
    bottom = top + rows.length * (high + gap);
  const x = (at) => left + ((Math.min(Math.max(at, begin), end) - begin) / span) * (width - left - 8);
  const parts = [];
  for (const at of ticksOfTime(begin, end, width / 90)) {
    parts.push(svg("line", { class: "grid", x1: x(at), x2: x(at), y1: top - 4, y2: bottom + 4 }));
    parts.push(label(x(at), bottom + 18, width, shortHour(at, span)));
  }
  rows.forEach((name, row) => {
    const y = top + row * (high + gap);
    parts.push(svg("rect", { class: "lane", x: left, y, width: width - left - 8, height: high, rx: 3 }));
    if (named)
      parts.push(
        svg(
          "text",
          { class: "label", x: 0, y: y + high - 5 },
          svg("title", {}, name),
          shortName(name, width < 520 ? 12 : 24),
        ),
      );
  });
  const places = new Map(rows.map((name, row) => [name, row]));
  for (const one of page.generations) {
    const from = beginOf(one),
      to = endOf(one);
    if (!from || to < begin || to <= from || !(one.go_at || one.first_step_at)) continue;
    for (const index of one.nodes) {
      const y = top + places.get(page.names[index]) * (high + gap);
      parts.push(
        svg("rect", {
          class: one.g % 2 ? "world odd" : "world",
          x: x(from),
          y,
          width: Math.max(x(to) - x(from), 1),
          height: high,
          rx: 3,
        }),
      );
    }
  }
  for (const pause of page.pauses) {
    if (pause.ended < begin) continue;
    const from = x(pause.began),
      wide = Math.max(x(pause.open ? end : pause.ended) - from, 2);
    parts.push(
      svg("rect", {
        class: "band",
        "data-tone": bandOf(pause),
        x: from,
        y: top - 4,
        width: wide,
        height: bottom - top + 6,
      }),
    );
    parts.push(
      choice(
        "pause",
        `pause ${pause.g}`,
        {
          x: from,
          y: top - 13,
          width: Math.max(wide, 5),
          height: 9,
          rx: 2,
          "data-tone": bandOf(pause),
        },
        pauseWords(pause),
      ),
    );
  }
  for (const one of page.generations) {
    const from = beginOf(one),
      to = endOf(one);
    if (!from || to < begin || to <= from) continue;
    const wide = Math.max(x(to) - x(from) - 1, 3);
    parts.push(
      choice("of", `generation ${one.g}`, { x: x(from), y: 4, width: wide, height: 17, rx: 4 }, generationWords(one)),
    );
    if (wide > 16)
      parts.push(
        svg(
          "text",
          { class: "of-text", x: x(from) + wide / 2, y: 16, "text-anchor": "middle" },
          wide > 90 ? `generation ${one.g}` : String(one.g),
        ),
      );
  }
  const bands = [...new Set(page.pauses.map(bandOf))];
  keyed(
    $("timeline-legend"),
    ["", ...bands],
    (is) => is,
    (is) =>
      el("li", {}, el("span", { class: is ? "swatch band" : "swatch world", "data-tone": is }), BANDS[is]),
    () => {},
  );
  const focused =
    document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.choice : null;
  part.replaceChildren(
    svg(
      "svg",
      {
        height: bottom + 26,
        viewBox: `0 0 ${width} ${bottom + 26}`,
        role: "group",
        "aria-label": "The nodes of each generation, and the downtime between generations",
      },
      ...parts,
    ),
  );
  if (focused)
    [...part.querySelectorAll("[data-choice]")]
      .find((one) => one.dataset.choice === focused)
      ?.focus({ preventScroll: true });
  if (!chosen)
    say(
      $("timeline-caption"),
      "Downtime goes from the last step before a change to the first step after it. Point at a mark or a generation, or tap it, for details.",
    );
}

// A part of the drawing whose sentence becomes the caption when it is pointed at, tapped or focused.
function choice(kind, name, place, words) {
  const tell = () => {
    chosen = name;
    say($("timeline-caption"), words);
  };
  const parts = svg("rect", {
    class: kind,
    "data-choice": name,
    tabindex: "0",
    role: "img",
    "aria-label": words,
    ...place,
    onmouseenter: tell,
    onclick: tell,
    onfocus: tell,
  });
  return parts;
}
function pauseWords(pause) {
  const one = page.generations.find((other) => other.g === pause.g);
  const again = pause.again ? `; ${lostWords(pause.again, pause.made)} (${length(pause.again_s)})` : "";
  if (pause.open) return `Downtime since ${hour(pause.began)}: no steps`;
  return `Downtime of ${length(pause.ended - pause.began)} at ${hour(pause.began)}, before generation ${pause.g}${one && one.reason ? `: ${one.reason}` : ""}${again}`;
}
function generationWords(one) {
  const from = beginOf(one),
    many = one.nodes.length + one.more;
  const steps = one.steps === null ? "" : `, ${several(one.steps, "step")}`;
  return `Generation ${one.g} (${one.why || "?"}): ${many ? several(many, "node") : "nodes unknown"}${one.world ? `, world size ${one.world}` : ""}, ${length(endOf(one) - from)} from ${hour(from)}${steps}. ${one.reason}`;
}
const shortName = (name, most) =>
  name.length <= most ? name : `${name.slice(0, Math.ceil(most / 2) - 1)}…${name.slice(-Math.floor(most / 2))}`;
