// What each sampler stage left of the candidates, and where the draw fell: one bar a stage, from the model to the token.

/** Stages as the screen names them; the names of the parameters are on the sampling editor. */
const STAGE_LABELS = {
  logit_bias: "Logit bias", grammar: "Grammar", penalties: "Penalties", dry: "DRY", top_n_sigma: "Top-nσ", top_k: "Top-k",
  typical_p: "Typical-p", top_p: "Top-p", min_p: "Min-p", xtc: "XTC", temperature: "Temperature", mirostat: "Mirostat",
};
const CHIPS = 3;

function stageLabel(name) {
  return STAGE_LABELS[name] ?? name;
}

/** Name of the stage that cut the candidate at this index, or null. */
function cutBy(trial, step, index) {
  const stage = step.top_cut?.[index];
  return stage ? stageLabel(trial.stages[stage - 1]) : null;
}

/** Why the candidate at this index could not become the token: [words, explanation]; null where it could. */
function barredBy(trial, step, { id, index, p }) {
  const stage = cutBy(trial, step, index);
  if (trial.bias.get(id) === -Infinity) return ["banned", "its logit was set to −∞ before sampling"];
  const cut = stage ? `cut by ${stage}` : "cut";
  if (!step.top_forbidden?.[index] || stage === STAGE_LABELS.grammar) return p > 0 ? null : [cut, ""];
  const fate = p > 0 ? "drawn, it would have been rejected and another token drawn" : `it was ${cut} before the grammar was asked`;
  return ["forbidden by Grammar", fate];
}

/** One stage: its name, how many candidates it left, their probability, and the first that it cut. */
function stageRow(trial, step, index) {
  const [kept, mass] = [step.stage_kept[index], step.stage_mass[index]];
  const before = index ? step.stage_kept[index - 1] : trial.numVocabulary;
  const row = element("tr");
  const bars = element("td", "bars");
  bars.append(bar("model", mass));
  row.append(element("th", "", stageLabel(trial.stages[index])), bars, element("td", "number", percent(mass)));
  row.append(element("td", "number", whole(kept)), cutCell(trial, step, index, before - kept));
  row.firstChild.scope = "row";
  row.classList.toggle("idle", kept === before);
  return row;
}

function cutCell(trial, step, index, numCut) {
  const cell = element("td", "cut-tokens");
  if (numCut <= 0) return cell;
  cell.append(whole(numCut));
  const ids = (step.top_id ?? []).filter((_, i) => step.top_cut?.[i] === index + 1);
  for (const id of ids.slice(0, CHIPS)) cell.append(" ", tokenChip(trial.word(id)));
  const rest = numCut - ids.length;
  cell.title = `${ids.map((id) => oneLine(trial.word(id).text)).join(" ")}${rest ? ` and ${whole(rest)} less probable` : ""}`;
  return cell;
}

/** The candidates before the draw as [id, p], in the order of the draw; null where that order is not known. */
function drawnFrom(step) {
  const left = (step.top_id ?? []).map((id, i) => [id, step.top_p[i] ?? 0]).filter(([, p]) => p > 0);
  let below = 0;
  for (const [id, p] of left) {
    if (id === step.id) return step.draw >= below - 1e-4 && step.draw <= below + p + 1e-4 ? left : null;
    below += p;
  }
  return null;
}

/** The draw: candidates side by side, as wide as they are probable, and a mark where the random number fell. */
function drawBar(trial, step) {
  const left = step.draw === null || step.kept < 2 ? null : drawnFrom(step);
  if (!left) return null;
  const figure = element("div", "draw");
  const track = element("div", "draw-track");
  left.forEach(([id, p]) => {
    const segment = element("span", id === step.id ? "segment drawn" : "segment");
    segment.style.setProperty("--share", p);
    segment.title = `${trial.word(id).text} ${percent(p)}`;
    if (p > 0.08) segment.append(tokenChip(trial.word(id)));
    track.append(segment);
  });
  const mark = element("span", "draw-mark");
  mark.style.setProperty("--at", step.draw);
  track.append(mark);
  figure.append(track, element("p", "draw-text", `The random number ${step.draw.toFixed(4)} fell on `));
  figure.lastChild.append(tokenChip(trial.word(step.id), "quoted"), `, ${percent(step.p)} wide.`);
  return figure;
}

const PARAMETERS = { temperature: "temperature", top_k: "top-k", top_p: "top-p", min_p: "min-p" };

/** The value of three digits that lies just beyond a limit. */
function beyond({ parameter, is_above, value }) {
  if (parameter === "top_k" || value <= 0) return value;
  const unit = 10 ** (Math.floor(Math.log10(value)) - 2);
  return Number(((is_above ? Math.floor(value / unit) + 1 : Math.ceil(value / unit) - 1) * unit).toPrecision(3));
}

/** A limit, with the token that is drawn beyond it: a button where What if can be opened there. */
function flipItem(flip, whatIf) {
  const { parameter, is_above, value, text } = flip;
  const number = parameter === "top_k" ? whole(value) : significant(value, 3);
  const item = element("li", "");
  const limit = parameter === "top_k" ? `${number} or ${is_above ? "more" : "less"}` : `${is_above ? "above" : "below"} ${number}`;
  const other = element(whatIf.canTry ? "button" : "span", "quoted", text);
  if (whatIf.canTry) {
    other.type = "button";
    other.title = `What if: the whole run at ${PARAMETERS[parameter]} ${significant(beyond(flip), 3)}`;
    other.onclick = () => whatIf.tryOne(parameter, beyond(flip));
  }
  item.append(`${PARAMETERS[parameter]} ${limit}: `, other);
  return item;
}

/** With the same random number: at which parameters another token is drawn. */
function showFlips(section, found, whatIf) {
  section.querySelector(".flips")?.remove();
  if (!found.length) return;
  const flips = element("div", "flips");
  const list = element("ul");
  for (const flip of found) list.append(flipItem(flip, whatIf));
  flips.append(element("p", "", "With the same random number another token is drawn at"), list);
  section.append(flips);
}

/** The section of the inspector; null where no stages were recorded. */
function xray(trial, step) {
  if (!step.stage_kept?.length) return null;
  const section = element("details", "xray");
  const table = element("table", "stages");
  const body = element("tbody");
  step.stage_kept.forEach((_, index) => body.append(stageRow(trial, step, index)));
  table.append(tableHead(["stage", "", "mass left", "candidates", "cut"]), body);
  section.append(element("summary", "", "Sampler X-ray"), table);
  const draw = drawBar(trial, step);
  if (draw) section.append(draw);
  return section;
}
