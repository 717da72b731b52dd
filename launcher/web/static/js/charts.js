// Loss, rate and the other metrics that the script reports, over time or steps; repeated steps are dashed.

const AXES = [
  ["Time", "time"],
  ["Step", "step"],
];
let axis = "time";

chooser(
  $("axis"),
  AXES.map(([name]) => name),
  (name) => AXES.find(([one]) => one === name)[1] === axis,
  (name) => {
    axis = AXES.find(([one]) => one === name)[1];
    drawCharts();
  },
);

// Points as etcd has them: [step, at, g, loss, rate, metrics], and whether each repeats a step.
function pointsOf() {
  let most = -1,
    before = -1,
    g = null;
  return page.course.points.map(([step, at, of, loss, rate, metrics]) => {
    if (of !== g) {
      before = Math.max(most, before);
      g = of;
    }
    most = Math.max(most, step);
    return { step, at, g: of, loss, rate, metrics: metrics || [], again: step <= before };
  });
}

function drawCharts() {
  const points = pointsOf();
  $("charts-part").hidden = !page.head.began;
  const wanted = [
    ["loss", "Loss", (point) => point.loss],
    ["rate", "Throughput, steps/s", (point) => point.rate],
    ...page.course.names.map((name, index) => [`metric ${name}`, name, (point) => point.metrics[index]]),
  ];
  const some = wanted
    .map(([id, title, of]) => ({
      id,
      title,
      values: points.map((point) => ({ ...point, value: of(point) })).filter((point) => Number.isFinite(point.value)),
    }))
    .filter((one) => one.values.length > 1);
  keyed($("charts"), some, (one) => one.id, makeChart, drawChart);
  const again = points.some((point) => point.again) ? "Dashed, with open dots: steps repeated after a recovery. " : "";
  say(
    $("charts-note"),
    some.length
      ? `${again}Shaded: downtime. Source: rank 0.`
      : "No metrics yet: call elastic.report(loss=…) or state.commit(loss=…) in the script.",
  );
}

function makeChart(one) {
  const made = el(
    "figure",
    { class: "chart" },
    el(
      "figcaption",
      {},
      el("b", {}, one.title),
      el("span", { class: "dim scaled" }),
      el("span", { class: "read", role: "status" }),
    ),
    el("div", {}),
  );
  made.at = null;
  return made;
}

const MARKS_MAX = 32;
const tickFigure = (value) => figure(value).replace(/\.?0+e/, "e");

// Round numbers from at or below `low` to at or above `high`. Values that differ by rounding alone are one value.
function nice(low, high, many) {
  const size = Math.max(Math.abs(low), Math.abs(high)),
    span = Math.min(high - low, Number.MAX_VALUE);
  const rough = Math.max(span < size * 1e-9 ? size : span || 1, 1e-300) / many,
    power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const first = Math.floor(low / step),
    last = Math.max(Math.floor(high / step + 0.999), first + 1);
  const found = [],
    most = Number.MAX_VALUE;
  for (let index = 0; index <= last - first && index < MARKS_MAX; index++)
    found.push(Math.max(-most, Math.min(most, Number(((first + index) * step).toPrecision(12)))));
  return found;
}

// Values of the axis from at or below `low` to at or above `high`, both positive: powers of ten, over less than three
// decades also 2 and 5 times as much.
function decades(low, high, many) {
  const first = Math.floor(Math.log10(low)),
    last = Math.ceil(Math.log10(high));
  const factors = last - first < 3 ? [1, 2, 5] : [1],
    stride = Math.ceil((last - first) / many);
  const marks = [];
  for (let power = last; power > first - stride; power -= stride)
    for (const factor of [...factors].reverse())
      if (power < last || factor === 1)
        marks.unshift(Math.min(Math.max(Number(`${factor}e${power}`), Number.MIN_VALUE), Number.MAX_VALUE));
  const from = marks.findLastIndex((at) => at <= low),
    to = marks.findIndex((at) => at >= high);
  return marks.slice(Math.max(from, 0), to < 0 ? undefined : to + 1);
}
const isLog = (one, low, high) => one.id === "loss" && low > 0 && high > 10 * low;

function drawChart(made, one) {
  const box = made.lastElementChild,
    width = box.clientWidth,
    height = 190,
    left = 48,
    bottom = height - 22;
  if (!width) return;
  const by = axis === "time" ? (point) => point.at : (point) => point.step;
  const xs = one.values.map(by),
    ys = one.values.map((point) => point.value);
  const low = axis === "time" ? Math.min(page.head.began, ...xs) : Math.min(...xs),
    high = Math.max(axis === "time" ? page.head.until || now() : 0, ...xs);
  const least = Math.min(...ys),
    most = Math.max(...ys),
    log = isLog(one, least, most);
  const ticks = log ? decades(least, most, 6) : nice(one.id === "rate" ? 0 : least, most, 4),
    floor = ticks[0],
    roof = ticks[ticks.length - 1];
  const x = (at) => left + ((at - low) / Math.max(high - low, 1e-9)) * (width - left - 10),
    share = log
      ? (value) => (Math.log10(value) - Math.log10(floor)) / (Math.log10(roof) - Math.log10(floor))
      : (value) => (value / 2 - floor / 2) / (roof / 2 - floor / 2), // The whole may be infinite.
    y = (value) => bottom - share(value) * (bottom - 10);
  say(made.querySelector(".scaled"), log ? "log scale" : "");
  const parts = [];
  if (axis === "time") {
    for (const pause of page.pauses) {
      const from = x(Math.max(pause.began, low)),
        to = x(Math.min(pause.ended, high));
      if (to >= left && from <= width)
        parts.push(
          svg("rect", {
            class: "band",
            "data-tone": bandOf(pause),
            x: from,
            y: 6,
            width: Math.max(to - from, 2),
            height: bottom - 6,
          }),
        );
    }
  }
  for (const at of ticks) {
    parts.push(
      svg("line", { class: "grid", x1: left, x2: width - 10, y1: y(at), y2: y(at) }),
      svg("text", { x: left - 6, y: y(at) + 4, "text-anchor": "end" }, tickFigure(at)),
    );
  }
  const marks =
    axis === "time"
      ? ticksOfTime(low, high, width / 100)
      : nice(low, high, Math.max(2, Math.floor(width / 110))).filter((at) => at >= low && at <= high);
  for (const at of marks)
    parts.push(label(x(at), height - 4, width, axis === "time" ? shortHour(at, high - low) : count(at)));
  for (const piece of pieces(one.values)) {
    const path = piece.points
      .map((point, index) => `${index ? "L" : "M"}${x(by(point)).toFixed(1)} ${y(point.value).toFixed(1)}`)
      .join("");
    parts.push(svg("path", { class: piece.again ? "line again" : "line", d: path }));
  }
  for (const point of one.values)
    if (point.again) parts.push(svg("circle", { class: "dot", cx: x(by(point)), cy: y(point.value), r: 2.6 }));
  const pointer = svg("g", {}),
    last = one.values[one.values.length - 1];
  parts.push(pointer);
  const read = made.querySelector(".read");
  const describe = (point) =>
    say(
      read,
      `${figure(point.value)} at step ${count(point.step)}, ${hour(point.at)}, generation ${point.g}${point.again ? ", repeated" : ""}`,
    );
  const show = (index) => {
    made.at = index;
    const point = index === null ? last : one.values[index];
    pointer.replaceChildren(
      ...(index === null
        ? []
        : [
            svg("line", { class: "here", x1: x(by(point)), x2: x(by(point)), y1: 6, y2: bottom }),
            svg("circle", { class: "at", cx: x(by(point)), cy: y(point.value), r: 4 }),
          ]),
    );
    describe(point);
  };
  const near = (event) => {
    const at = event.clientX - box.getBoundingClientRect().left;
    let best = 0;
    one.values.forEach((point, index) => {
      if (Math.abs(x(by(point)) - at) < Math.abs(x(by(one.values[best])) - at)) best = index;
    });
    show(best);
  };
  const move = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    show(Math.min(Math.max((made.at === null ? one.values.length - 1 : made.at) + by, 0), one.values.length - 1));
  };
  const focused = box.contains(document.activeElement);
  box.replaceChildren(
    svg(
      "svg",
      {
        height,
        viewBox: `0 0 ${width} ${height}`,
        tabindex: "0",
        role: "img",
        "aria-label": `${one.title}: ${several(one.values.length, "point")}, newest ${figure(last.value)}. Arrow keys move from point to point.`,
        onpointermove: near,
        onpointerdown: near,
        onpointerleave: () => show(null),
        onkeydown: move,
      },
      ...parts,
    ),
  );
  if (focused) box.firstElementChild.focus({ preventScroll: true });
  show(made.at !== null && made.at < one.values.length ? made.at : null);
}

// The line in pieces: a new one with each generation, and where repeated steps begin or end.
function pieces(points) {
  const found = [];
  for (const point of points) {
    const last = found[found.length - 1];
    if (!last || last.g !== point.g) found.push({ g: point.g, again: point.again, points: [point] });
    else if (last.again !== point.again)
      found.push({ g: point.g, again: point.again, points: [last.points[last.points.length - 1], point] });
    else last.points.push(point);
  }
  return found;
}
