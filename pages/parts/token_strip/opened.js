// The way in for an offline file: shows the trial that its address names, or the first, and the branches to choose from.

const FILE = embeddedJson("file");
const opened = new Strip(document.querySelector(".held-strip"));

/** The rows of the tree, with those marked that this trial goes through and the one that it ends with. */
function markedRows(trial) {
  const end = FILE.ends[trial] ?? null;
  const passed = new Set();
  for (let at = end; at !== null; at = FILE.branches.rows[at].parent) passed.add(at);
  return FILE.branches.rows.map((row, index) => ({ ...row, is_open: index === end, is_passed: passed.has(index) }));
}

function openTrial() {
  const named = location.hash.slice(1);
  const trial = FILE.trials.includes(named) ? named : FILE.trials[0];
  const branches = FILE.branches && { ...FILE.branches, rows: markedRows(trial) };
  const data = { trial, k: 10, mode: "surprise", unit: "p", inspector: true, branches };
  const setTriggerValue = (name, { key }) => name === "acted" && (location.hash = FILE.opens[key]);
  opened.update({ data, setTriggerValue });
  for (const about of document.querySelectorAll(".about")) about.hidden = about.dataset.trial !== trial;
}

addEventListener("hashchange", openTrial);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => markTheme(opened.root));
openTrial();
