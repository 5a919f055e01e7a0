// The list of findings, what it is filtered by, and the address that links to a view of it.

const FIELDS = ["framework", "version", "check", "mode", "verdict", "diagnosis", "cause"];
const SEARCHED = ["framework", "version", "causes", "diagnosis", "place", "message"];
const WRONG_ONLY = "";
const PER_PAGE = 50;

const form = document.getElementById("filter");
const selects = form.querySelectorAll("select");
const list = document.getElementById("list");
const findings = Array.from({ length: data.count }, (_, finding) => finding);
const ids = findings.map(idOf);

let matching = [];
let page = 0;
let open = null; // the finding whose detail is shown

// The address: fields by their names, and the open finding.

/** Filter and open finding as the address has them. */
function read() {
  const state = new URLSearchParams(location.hash.slice(1));
  for (const select of selects) setChoice(select, state.get(select.name) ?? "");
  form.elements.text.value = state.get("text") ?? "";
  const named = state.get("finding");
  filter();
  open = matching.find((finding) => addressOf(finding) === named) ?? null;
  page = open === null ? 0 : Math.floor(matching.indexOf(open) / PER_PAGE);
  show();
}

/** To what a link names. */
function follow() {
  read();
  const target = open === null ? document.getElementById("findings") : rowOfFinding(open);
  target.focus({ preventScroll: true });
  target.scrollIntoView();
}

function write() {
  const state = new URLSearchParams();
  for (const { name, value } of form.elements) if (name && value) state.set(name, value);
  if (open !== null) state.set("finding", addressOf(open));
  history.replaceState(null, "", `#${state}`);
}

/** An id is that of one finding in one report only. */
function addressOf(finding) {
  return `${at("run", finding)}/${ids[finding]}`;
}

/** A value may be none of those offered now, but a link says it. */
function setChoice(select, value) {
  if (![...select.options].some((option) => option.value === value))
    select.append(element("option", { value }, value));
  select.value = value;
}

// Filtering.

/** Several, or none, where a finding has several causes or no diagnosis. */
function valuesOf(field, finding) {
  if (field === "cause") return at("causes", finding);
  if (field === "diagnosis") return [diagnosisOf(finding)?.name ?? ""];
  return [at(field, finding)];
}

function accepts(field, wanted, finding) {
  const values = valuesOf(field, finding);
  if (field !== "verdict") return !wanted || values.includes(wanted);
  return wanted === WRONG_ONLY ? WRONG.has(values[0]) : wanted === "any" || values[0] === wanted;
}

/** Which findings have every word of a text in their id or in what is said of them. */
function containing(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const tests = words.map((word) => {
    const columns = SEARCHED.map((column) => {
      const { values, numbers } = data.columns[column];
      const has = values.map((value) => String(value ?? "").toLowerCase().includes(word));
      return (finding) => has[numbers[finding]];
    });
    return (finding) =>
      ids[finding].toLowerCase().includes(word) || columns.some((has) => has(finding));
  });
  return (finding) => tests.every((test) => test(finding));
}

function filter() {
  const wanted = FIELDS.map((field) => [field, form.elements[field].value]);
  const found = findings.filter(containing(form.elements.text.value));
  const failed = found.map((finding) =>
    wanted.filter(([field, value]) => !accepts(field, value, finding)).map(([field]) => field),
  );
  matching = found.filter((_, index) => !failed[index].length);
  for (const field of FIELDS) {
    const left = found.filter((_, index) => failed[index].every((other) => other === field));
    offer(form.elements[field], field, left);
  }
}

/** The choices of one field, with how many findings each would leave. */
function offer(select, field, found) {
  const { value } = select;
  const counts = new Map();
  for (const one of found.flatMap((finding) => valuesOf(field, finding)))
    counts.set(one, (counts.get(one) ?? 0) + 1);
  const choices = field === "verdict" ? verdictChoices(found) : [["", "any"]];
  for (const [one, count] of counts) if (one) choices.push([one, `${one} (${count})`]);
  select.replaceChildren(...choices.map(([one, text]) => element("option", { value: one }, text)));
  setChoice(select, value);
}

function verdictChoices(found) {
  const wrong = found.filter((finding) => WRONG.has(at("verdict", finding))).length;
  return [[WRONG_ONLY, `wrong (${wrong})`], ["any", `any (${found.length})`]];
}

// Showing.

function show() {
  const pages = Math.max(1, Math.ceil(matching.length / PER_PAGE));
  page = Math.min(page, pages - 1);
  const start = page * PER_PAGE;
  const shown = matching.slice(start, start + PER_PAGE);
  list.start = start + 1;
  list.replaceChildren(...shown.map(itemOf));
  const first = list.querySelector("[aria-expanded=true]") ?? list.querySelector(".row");
  if (first) first.tabIndex = 0;
  const what = form.elements.verdict.value === WRONG_ONLY ? "wrong findings" : "findings";
  const count = document.getElementById("count");
  count.textContent = `${matching.length} ${what} of ${data.total} in all`;
  document.getElementById("page").textContent = `page ${page + 1} of ${pages}`;
  document.getElementById("pages").hidden = pages === 1;
  document.getElementById("previous").disabled = page === 0;
  document.getElementById("next").disabled = page === pages - 1;
}

function itemOf(finding) {
  const isOpen = finding === open;
  const verdict = at("verdict", finding);
  const whose = `${at("framework", finding)} ${at("version", finding)}`;
  const sign = element("span", { class: "sign", "aria-hidden": true }, SIGNS[verdict]);
  const row = element(
    "button",
    {
      type: "button",
      class: "row",
      tabindex: -1,
      "aria-expanded": isOpen,
      "data-finding": finding,
    },
    element("span", { class: `verdict ${verdict}` }, sign, ` ${verdict.replace("_", " ")}`),
    element("span", { class: "id" }, ...breakable(ids[finding])),
    element("span", { class: "whose" }, whose),
    element("span", { class: "words" }, wordsOf(finding)),
  );
  return element("li", {}, element("h3", {}, row), ...(isOpen ? [detailOf(finding)] : []));
}

/** An id that may go on in the next line after a stroke. */
function breakable(id) {
  return id.split(/(?<=\/)/).flatMap((part) => [part, element("wbr")]);
}

function toggle(finding) {
  open = finding === open ? null : finding;
  show();
  write();
  rowOfFinding(finding)?.focus();
}

function rowOfFinding(finding) {
  return list.querySelector(`[data-finding="${finding}"]`);
}

/** To a finding that may be on another page. */
function moveTo(index) {
  const finding = matching[Math.max(0, Math.min(index, matching.length - 1))];
  if (finding === undefined) return;
  const its = Math.floor(matching.indexOf(finding) / PER_PAGE);
  if (its !== page) {
    page = its;
    show();
  }
  for (const row of list.querySelectorAll(".row")) row.tabIndex = -1;
  const row = rowOfFinding(finding);
  row.tabIndex = 0;
  row.focus();
}

function turn(by) {
  moveTo((page + by) * PER_PAGE);
  list.scrollIntoView();
}

function refilter() {
  filter();
  page = 0;
  if (!matching.includes(open)) open = null;
  show();
  write();
}

// What people do.

const MOVES = {
  ArrowDown: (index) => index + 1,
  ArrowUp: (index) => index - 1,
  PageDown: (index) => index + PER_PAGE,
  PageUp: (index) => index - PER_PAGE,
  Home: () => 0,
  End: () => matching.length - 1,
};

list.addEventListener("click", (event) => {
  const row = event.target.closest(".row");
  if (row) toggle(Number(row.dataset.finding));
});

list.addEventListener("keydown", (event) => {
  const row = event.target.closest(".row");
  if (!row || !(event.key in MOVES) || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  moveTo(MOVES[event.key](matching.indexOf(Number(row.dataset.finding))));
});

document.addEventListener("keydown", (event) => {
  const writing = event.target.matches("input, select, textarea");
  if (event.key === "/" && !writing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    form.elements.text.focus();
  } else if (event.key === "Escape" && open !== null) {
    toggle(open);
  }
});

form.elements.text.addEventListener("input", refilter);
for (const select of selects) select.addEventListener("change", refilter);
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", (event) => {
  event.preventDefault();
  for (const { name } of [...form.elements]) if (name) form.elements[name].value = "";
  refilter();
});
document.getElementById("previous").addEventListener("click", () => turn(-1));
document.getElementById("next").addEventListener("click", () => turn(1));

addEventListener("hashchange", () => {
  if (location.hash !== "#findings") follow();
});

addEventListener("beforeprint", () => {
  for (const box of document.querySelectorAll(".timeline, .cause, .more")) box.open = true;
});

if (location.hash) follow();
else read();

// The picture beside the headline.

const lead = document.getElementById("lead");
const ofLead = findings.find((finding) => addressOf(finding) === lead?.dataset.finding);
if (ofLead !== undefined) {
  const href = `#verdict=any&finding=${encodeURIComponent(addressOf(ofLead))}`;
  lead.prepend(element("a", { href }, smallPictureOf(ofLead)));
  lead.hidden = false;
}
