// The findings, and how they are put into words. Everything becomes text nodes, never markup.

const data = JSON.parse(await unpacked(document.getElementById("data").textContent));

/** The text that was compressed with gzip and written in Base64. */
function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

const WRONG = new Set(data.wrong);

const SIGNS = {
  conforms: "✓",
  mismatch: "≠",
  refused: "⊘",
  unsupported: "–",
  declined: "⊘",
  crashed: "✕",
  advice: "i",
  not_driven: "–",
};

/** What a column says of a finding. */
function at(column, finding) {
  const { values, numbers } = data.columns[column];
  return values[numbers[finding]];
}

function idOf(finding) {
  const subject = at("subject", finding);
  const slug = subject ? `${at("check", finding)}.${subject}` : at("check", finding);
  return [slug, ...["mode", "case", "layout"].map((column) => at(column, finding))].join("/");
}

/** A finding's diagnosis with named fields; null if it has no diagnosis. */
function diagnosisOf(finding) {
  const diagnosis = at("diagnosis", finding);
  if (!diagnosis) return null;
  const [name, explanation, numbers, also] = diagnosis;
  return { name, explanation, numbers, also };
}

function lastLine(text) {
  return (text ?? "").trim().split("\n").at(-1).trim();
}

/** The diagnosis' explanation, or else the last line of the message. */
function wordsOf(finding) {
  return diagnosisOf(finding)?.explanation ?? lastLine(at("message", finding));
}

/** The command line that makes a finding again. */
function commandOf(finding) {
  const [before, after] = at("command", finding);
  return after === null ? before : before + idOf(finding) + after;
}

/** A number as people read it; infinities and NaN are already words. */
function figure(value, digits = 6) {
  if (typeof value !== "number") return String(value);
  const rounded = Number(value.toPrecision(digits));
  return rounded && Math.abs(rounded) < 1e-4 ? rounded.toExponential() : String(rounded);
}

function counted(count, thing) {
  return `${count} ${thing}${count === 1 ? "" : "s"}`;
}

/** An element with attributes and children; strings become text. */
function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same for SVG. */
function drawn(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** A table with a heading for each column. */
function tableOf(headings, rows) {
  const head = headings.map((text) => element("th", { scope: "col" }, text));
  const body = rows.map((row) =>
    element("tr", {}, ...row.map((text) => element("td", {}, String(text)))),
  );
  return element(
    "table",
    {},
    element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...body),
  );
}

/** Something too wide for a telephone, which moves in its own box. */
function scrolling(name, content) {
  const box = { class: "scroll", tabindex: 0, role: "region", "aria-label": name };
  return element("div", box, content);
}
