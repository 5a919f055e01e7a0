// All that is known of one finding.

function detailOf(finding) {
  const parts = [
    factor(finding),
    measured(finding),
    diagnosed(finding),
    part("Weights", pictureOf(finding)),
    logged(finding),
    said(finding),
    place(finding),
    traced(finding),
    reproduced(finding),
    part("What the case is for", textOr(data.cases[at("case", finding)])),
    code(finding),
  ];
  return element("div", { class: "detail" }, ...parts.filter(Boolean));
}

/** A heading and its content; null if there is no content. */
function part(heading, ...content) {
  const there = content.filter(Boolean);
  return there.length ? element("section", {}, element("h4", {}, heading), ...there) : null;
}

function textOr(text) {
  return text ? element("p", {}, text) : null;
}

function factor(finding) {
  const words = at("off_by", finding);
  if (!words) return null;
  const sentence = `${words[0].toUpperCase()}${words.slice(1)}. `;
  return element("p", {}, sentence, element("span", { class: "hint" }, `(${data.legend})`));
}

function measured(finding) {
  const error = at("error", finding);
  if (error === null) return null;
  const tolerance = at("tolerance", finding);
  const bound = tolerance === null ? "" : `; the bound is ${figure(tolerance, 3)}`;
  const words = `Largest relative error ${figure(error, 3)}${bound}. Depth: `;
  return element("p", {}, words, at("depth", finding), ".");
}

function diagnosed(finding) {
  const diagnosis = diagnosisOf(finding);
  if (!diagnosis) return null;
  const { name, explanation, also } = diagnosis;
  const named = ([key, value]) => [key.replaceAll("_", " "), figure(value)];
  const numbers = diagnosis.numbers.map(named);
  return part(
    "Diagnosis",
    element("p", {}, `${explanation} `, element("code", {}, name)),
    numbers.length && pairs(numbers),
    also.length && element("p", { class: "hint" }, `Explained as well by: ${also.join(", ")}`),
  );
}

/** Names with what they stand for. */
function pairs(entries) {
  const cells = entries.map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value)),
  );
  return element("dl", {}, ...cells);
}

function logged(finding) {
  const number = at("logged", finding);
  if (!number) return null;
  const [expected, reported] = number;
  const ratio = reported / expected;
  const shown = [["expected", figure(expected)], ["reported", figure(reported ?? "not finite")]];
  if (reported !== null && Number.isFinite(ratio)) shown.push(["ratio", `×${figure(ratio, 4)}`]);
  return part("What was logged", pairs(shown));
}

function said(finding) {
  const message = at("message", finding);
  return part("In the framework's words", message && element("pre", { tabindex: 0 }, message));
}

function place(finding) {
  const name = at("place", finding);
  return part("Look at", name && element("p", {}, element("code", {}, name)));
}

/** The lines to look at, and the way from a token's loss to its weight. */
function traced(finding) {
  const trace = at("trace", finding);
  if (!trace) return null;
  const [suspects, chain] = trace;
  const why = ([name, words]) => element("li", {}, element("code", {}, name), ` ${words}`);
  const suspected = new Set(suspects.map(([name]) => name));
  const factors = chain.map(([value, name]) => {
    const isSuspect = { class: suspected.has(name) ? "suspect" : "" };
    return element("li", isSuspect, `× ${figure(value)} `, element("code", {}, name ?? ""));
  });
  const ends = (words) => element("li", { class: "hint" }, words);
  const way = [ends("a token's loss"), ...factors, ends("its weight")];
  return part(
    "Lines to look at",
    element("ol", {}, ...suspects.map(why)),
    chain.length && element("ol", { class: "chain" }, ...way),
  );
}

function reproduced(finding) {
  const command = element("code", {}, commandOf(finding));
  const box = element("div", { class: "command" }, element("pre", { tabindex: 0 }, command));
  box.append(copyButton());
  const hints = Object.entries(data.placeholders)
    .filter(([name]) => command.textContent.includes(`=${name}`))
    .map(([name, meaning]) => element("p", { class: "hint" }, `${name} is ${meaning}.`));
  return part("Run it again", box, ...hints);
}

function copyButton() {
  return element("button", { type: "button", class: "copy" }, "Copy");
}

for (const box of document.querySelectorAll(".causes .command")) box.append(copyButton());

document.addEventListener("click", ({ target }) => {
  if (target.matches(".copy")) copied(target.previousElementSibling, target);
});

/** To the clipboard, or, where a browser does not let us, selected to be copied by hand. */
async function copied(source, button) {
  try {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(source);
    button.textContent = "Selected: press Ctrl+C";
  }
}

function code(finding) {
  const { source, environment } = data.reports[at("run", finding)];
  const toggle = element("summary", {}, "Environment and conventions");
  const more = element("details", {}, toggle, pairs(environment));
  return part("Code that was run", pairs(source), more);
}
