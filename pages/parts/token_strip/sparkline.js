// Surprise of each generated token as a row of bars: three paths of one picture, which stretches with its place.

const SPARK_BITS = 10; // a bar of full height
const SPARK_COLUMNS = 800;
const SPARK_HEIGHT = 100;
const SPARK_LEAST = 5;
/** Bars are neutral but in the two bands of the greatest surprise. */
const SPARK_BANDS = [0, 5, 6];

function svg(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** Height of a bar, and its band, from a log-probability in nats; null where nothing was recorded. */
function sparkBar(logprob) {
  if (logprob === null) return null;
  const height = Math.min(1, -logprob / Math.LN2 / SPARK_BITS) * SPARK_HEIGHT;
  return { height: Math.max(SPARK_LEAST, Math.round(height)), band: bandOf(-logprob, SURPRISE_NATS) };
}

class Sparkline {
  constructor() {
    this.root = svg("svg", { class: "spark-bars", preserveAspectRatio: "none", "aria-hidden": "true" });
    this.paths = SPARK_BANDS.map((band) => svg("path", { class: `spark-b${band}` }));
    this.root.append(...this.paths);
  }

  /** Draw the tokens that have come into the room for `total`; many share a column, which shows the most surprising. */
  draw(logprobs, total) {
    const share = Math.ceil(total / SPARK_COLUMNS);
    const columns = Math.max(1, Math.ceil(total / share));
    const width = columns > 200 ? 1 : 0.8;
    const drawn = SPARK_BANDS.map(() => []);
    for (let column = 0; column * share < logprobs.length; column++) {
      const known = logprobs.slice(column * share, (column + 1) * share).filter((value) => value !== null);
      const bar = sparkBar(known.length ? Math.min(...known) : null);
      if (!bar) continue;
      const path = Math.max(0, SPARK_BANDS.indexOf(bar.band));
      drawn[path].push(`M${column} ${SPARK_HEIGHT}v-${bar.height}h${width}v${bar.height}z`);
    }
    this.root.setAttribute("viewBox", `0 0 ${columns} ${SPARK_HEIGHT}`);
    this.paths.forEach((path, index) => path.setAttribute("d", drawn[index].join("")));
  }
}
