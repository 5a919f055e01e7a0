// A picture of wrong weights: a row for each sample, in it a bar for each run of equal tokens.

const KINDS = {
  right: "as expected",
  heavy: "too heavy",
  light: "too light",
  missing: "active, but weighs nothing",
  opposite: "of the opposite sign",
  stray: "inactive, but weighs something",
  broken: "not finite",
  inactive: "inactive",
};

const ROUNDED = 2e-6; // weights are given with six digits

const UNIT = 20; // height of an expected weight
const TALLEST = 2.5; // times that: higher bars are torn off
const INACTIVE = 5; // height of what marks an inactive token
const LABEL = 15; // height of a label
const BAND = 16; // height of what says where tokens were
const MARGIN = 92; // left of the bars, for names
const WIDEST = 18; // of a token
const NARROWEST = 9; // of a run
const ROOM = 600; // for the longest sample
const LETTER = 6; // width of one in a label

/** The picture with its legend and its table; null where a finding has none. */
function pictureOf(finding) {
  const kept = at("picture", finding);
  if (!kept) return null;
  const [step, size, steps] = kept;
  const samples = samplesOf(steps);
  const runs = samples.flatMap((sample) => sample.runs);
  const summary = `Of the tokens drawn, ${summaryOf(runs)}.`;
  return element(
    "figure",
    {},
    element("p", {}, summary),
    element("figcaption", {}, caption(step, size, samples)),
    scrolling("Picture", svgOf(samples, `${summary} The table below has the numbers.`)),
    legend(runs),
    table(samples),
  );
}

/** The two samples of a finding's picture that have most different things wrong. */
function smallPictureOf(finding) {
  const [, , steps] = at("picture", finding);
  const kindsOf = ({ runs }) => distinct(runs.map(({ kind }) => kind)).length;
  const moreFirst = (one, other) => kindsOf(other) - kindsOf(one) || other.tokens - one.tokens;
  const samples = samplesOf(steps).sort(moreFirst).slice(0, 2);
  return svgOf(samples, `Of the tokens drawn, ${summaryOf(samples.flatMap(({ runs }) => runs))}.`);
}

function samplesOf(steps) {
  return summed(steps).map(sampleOf).sort((one, other) => one.order - other.order);
}

function sampleOf(number) {
  const [sample, group, tokens, steps] = data.samples.map((column) => column[number]);
  const runs = summed(steps).map(runOf);
  const { dp, mb } = runs[0] ?? { dp: null, mb: null };
  const order = ((dp ?? -1) * 1e6 + (mb ?? -1)) * 1e6 + sample;
  return { sample, group, tokens, runs, order, given: sum(runs.map((run) => run.tokens)) };
}

/** Numbers from the differences between them; the first difference is from 0. */
function summed(steps) {
  let number = 0;
  return steps.map((step) => (number += step));
}

function runOf(number) {
  const [tokens, expected, observed, dp, cp, mb] = data.runs.map((column) => column[number]);
  const run = { tokens, expected, observed, dp, cp, mb, ratio: observed / expected };
  return { ...run, kind: kindOf(run) };
}

function kindOf({ expected, observed, ratio }) {
  if (!Number.isFinite(observed) || !Number.isFinite(expected)) return "broken";
  if (expected === 0) return observed === 0 ? "inactive" : "stray";
  if (Math.abs(ratio - 1) <= ROUNDED) return "right";
  if (ratio === 0) return "missing";
  if (ratio < 0) return "opposite";
  return ratio > 1 ? "heavy" : "light";
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

function distinct(values) {
  return [...new Set(values)];
}

function caption(step, size, samples) {
  const those = samples.length < size ? `the ${samples.length} most off of ${size}` : `all ${size}`;
  const runs = samples.flatMap((sample) => sample.runs);
  const isUnknown = runs.some((run) => run.dp === null);
  const isWidened = runs.some((run) => run.tokens * widthOfToken(samples) < NARROWEST);
  return [
    `Token weights of step ${step + 1}, ${those} samples.`,
    "Bars are observed, outlines expected; every row has its own scale.",
    isWidened ? "Short stretches are drawn wider than they are." : "",
    isUnknown ? "How the step was cut is not known." : "",
  ].join(" ");
}

function widthOfToken(samples) {
  return Math.min(WIDEST, ROOM / Math.max(1, ...samples.map((sample) => sample.given)));
}

/** The number of tokens of each kind. */
function summaryOf(runs) {
  const said = Object.keys(KINDS).flatMap((kind) => {
    const of = runs.filter((run) => run.kind === kind);
    const ratios = distinct(of.map(labelOf));
    const ratio = ratios.length === 1 && ratios[0].startsWith("×") ? ` (${ratios[0]})` : "";
    return of.length ? [`${sum(of.map((run) => run.tokens))} ${KINDS[kind]}${ratio}`] : [];
  });
  return said.join(", ") || "none";
}

/** What stands above a bar. */
function labelOf({ kind, ratio, observed }) {
  if (kind === "broken") return "not finite";
  if (kind === "stray") return figure(observed, 3);
  if (kind === "right" || kind === "inactive") return "";
  return `×${figure(ratio, Math.abs(ratio - 1) < 0.005 ? 6 : 3)}`;
}

function placeOf({ dp, mb }) {
  return dp === null ? "" : `dp rank ${dp}, micro-batch ${mb ?? "–"}`;
}

function svgOf(samples, words) {
  const scale = {
    token: widthOfToken(samples),
    weight: Math.max(...samples.map(largest)) || 1,
    ranks: distinct(samples.flatMap(({ runs }) => runs.map((run) => run.cp))).length > 1,
  };
  const svg = drawn("svg", { role: "img", "aria-label": words, class: "picture" });
  let [y, width, former] = [0, 0, ""];
  for (const sample of samples) {
    const place = distinct(sample.runs.map(placeOf)).join(" and ");
    if (place !== former) {
      svg.append(drawn("text", { x: 0, y: y + 20, class: "place" }, place));
      y += 26;
      former = place;
    }
    const row = rowOf(sample, scale);
    row.node.setAttribute("transform", `translate(0 ${y})`);
    svg.append(row.node);
    y += row.height;
    width = Math.max(width, row.width);
  }
  return filled(svg, { width, height: y, viewBox: `0 0 ${width} ${y}` }, []);
}

function largest(sample) {
  return Math.max(0, ...sample.runs.map((run) => Math.abs(run.expected) || 0));
}

/** One sample: its names, bars on a line, and below it where its tokens were, if not all in one. */
function rowOf(sample, scale) {
  const boxes = placed(sample.runs, scale.token, largest(sample) || scale.weight);
  const floor = LABEL + Math.max(UNIT, ...boxes.map((box) => box.height));
  const end = boxes.at(-1)?.end ?? MARGIN;
  const places = placesOf(boxes, floor);
  const amount = amountOf(sample);
  const node = drawn(
    "g",
    {},
    drawn("text", { x: 0, y: floor - 12, class: "name" }, `sample ${sample.sample}`),
    drawn("text", { x: 0, y: floor }, groupOf(sample, scale)),
    ...boxes.flatMap((box) => barOf(box, floor)),
    drawn("line", { x1: MARGIN, x2: end, y1: floor, y2: floor, class: "floor" }),
    ...labelsOf(boxes, floor),
    drawn("text", { x: end + 8, y: floor }, amount),
    ...places,
  );
  const width = end + 8 + (amount.length + 1) * LETTER;
  return { node, width, height: floor + (places.length ? BAND + 8 : 8) };
}

function groupOf({ group, runs }, { ranks }) {
  const own = distinct(runs.map((run) => run.cp));
  return ranks && own.length === 1 ? `group ${group}, cp ${own[0] ?? "–"}` : `group ${group}`;
}

function amountOf({ tokens, given }) {
  return (given < tokens ? `… the first ${given} of ` : "") + counted(tokens, "token");
}

/** Runs side by side: where each starts and ends, and how high its weights are drawn. */
function placed(runs, token, weight) {
  const heightOf = (value) => Math.min(TALLEST, Math.abs(value) / weight || 0) * UNIT;
  const drawnHeights = { broken: UNIT, inactive: INACTIVE };
  let end = MARGIN;
  return runs.map((run) => {
    const start = end;
    end += Math.max(NARROWEST, run.tokens * token);
    const outline = run.expected === 0 ? 0 : heightOf(run.expected);
    const bar = drawnHeights[run.kind] ?? heightOf(run.observed);
    const isTorn = Math.abs(run.observed) > TALLEST * weight;
    return { ...run, start, end, outline, bar, isTorn, height: Math.max(outline, bar) };
  });
}

function barOf({ start, end, outline, bar, isTorn, ...run }, floor) {
  const words = drawn("title", {}, `${counted(run.tokens, "token")}: ${weightsOf(run).join(", ")}`);
  const shape = { x: start + 1, y: floor - bar, width: end - start - 2, height: bar };
  const around = { x: start + 0.5, y: floor - outline, width: end - start - 1, height: outline };
  return [
    drawn("rect", { ...shape, class: `bar ${run.kind}` }, words),
    ...(isTorn ? [drawn("path", { d: tear(start, end, floor - bar), class: "tear" })] : []),
    ...(outline ? [drawn("rect", { ...around, class: "outline" })] : []),
  ];
}

function weightsOf({ expected, observed }) {
  return [`expected ${figure(expected)}`, `observed ${figure(observed ?? "not finite")}`];
}

/** Where a bar goes on beyond the picture. */
function tear(start, end, top) {
  return `M${start} ${top + 9}L${end} ${top + 5}M${start} ${top + 13}L${end} ${top + 9}`;
}

/** One label for neighbours that would have the same one, where there is room. */
function labelsOf(boxes, floor) {
  let free = 0;
  return joined(boxes, labelOf).flatMap(({ start, end, label, boxes: under }) => {
    const half = (label.length * LETTER) / 2;
    const middle = (start + end) / 2;
    if (!label || middle - half < free) return [];
    free = middle + half;
    const y = floor - Math.max(...under.map((box) => box.height)) - 4;
    return [drawn("text", { x: middle, y, class: "ratio" }, label)];
  });
}

/** Neighbouring boxes of one label, as one. */
function joined(boxes, labelOfBox) {
  const spans = [];
  for (const box of boxes) {
    const label = labelOfBox(box);
    const last = spans.at(-1);
    if (last?.label === label) {
      last.end = box.end;
      last.boxes.push(box);
    } else spans.push({ start: box.start, end: box.end, label, boxes: [box] });
  }
  return spans;
}

/** Where the parts of a sample were, with a line at every border. */
function placesOf(boxes, floor) {
  const parts = ["dp", "cp", "mb"];
  const differing = parts.filter((part) => distinct(boxes.map((box) => box[part])).length > 1);
  if (!differing.length) return [];
  const labelOfBox = (box) => differing.map((part) => `${part} ${box[part] ?? "–"}`).join(" ");
  return joined(boxes, labelOfBox).flatMap(({ start, end, label }, index) => {
    const short = label.replaceAll(/[a-z]+ /g, "");
    const fitting = [label, short].find((text) => text.length * LETTER + 3 <= end - start) ?? "";
    const band = { x: start, y: floor + 2, width: end - start, height: BAND - 2 };
    const border = { x1: start, x2: start, y1: floor - UNIT * 1.25, y2: floor + BAND };
    return [
      drawn("rect", { ...band, class: index % 2 ? "band odd" : "band" }, drawn("title", {}, label)),
      drawn("line", { ...border, class: "border" }),
      drawn("text", { x: (start + end) / 2, y: floor + BAND - 4, class: "where" }, fitting),
    ];
  });
}

function legend(runs) {
  const kinds = Object.keys(KINDS).filter((kind) => runs.some((run) => run.kind === kind));
  return element("ul", { class: "legend", "aria-label": "Legend" }, ...kinds.map(legendItem));
}

function legendItem(kind) {
  const height = kind === "inactive" ? INACTIVE : 12;
  const shapes = [drawn("rect", { x: 1, y: 13 - height, width: 20, height, class: `bar ${kind}` })];
  if (kind !== "stray" && kind !== "inactive")
    shapes.push(drawn("rect", { x: 0.5, y: 0.5, width: 21, height: 13, class: "outline" }));
  const swatch = drawn("svg", { width: 22, height: 14, "aria-hidden": "true" }, ...shapes);
  return element("li", {}, swatch, KINDS[kind]);
}

/** All numbers of the picture, made when they are asked for. */
function table(samples) {
  const box = element("details", {}, element("summary", {}, "The same as a table"));
  const fill = () => box.append(scrolling("Numbers", tableOfRuns(samples)));
  box.addEventListener("toggle", fill, { once: true });
  return box;
}

function tableOfRuns(samples) {
  const headings = ["sample", "group", "tokens", "expected", "observed", "ratio"];
  const places = ["dp rank", "cp rank", "micro-batch"];
  return tableOf([...headings, ...places, "what"], samples.flatMap(linesOf));
}

function linesOf({ sample, group, runs }) {
  let end = 0;
  return runs.map(({ tokens, expected, observed, ratio, dp, cp, mb, kind }) => {
    const start = end + 1;
    end += tokens;
    const weights = [figure(expected), figure(observed ?? "not finite")];
    const times = Number.isFinite(ratio) ? `×${figure(ratio)}` : "–";
    const where = [dp, cp, mb].map((place) => place ?? "–");
    return [sample, group, `${start}–${end}`, ...weights, times, ...where, KINDS[kind]];
  });
}
