// Numbers and words as they are shown. Log-probabilities arrive in nats.

const THIN = "\u202f";
const SUPERSCRIPT = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** Whole number with commas between thousands, as on every page. */
function whole(value) {
  return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, ",");
}

function significant(value, digits) {
  if (value === 0) return "0";
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  const [integer, fraction] = value.toFixed(Math.min(places, 12)).split(".");
  return whole(integer) + (fraction ? "." + fraction : "");
}

function scientific(value) {
  const [mantissa, exponent] = value.toExponential(0).split("e-");
  return `${mantissa}·10⁻${[...exponent].map((digit) => SUPERSCRIPT[digit]).join("")}`;
}

/** A probability in per cent, for sentences: two significant digits, no trailing zeros. */
function percent(p) {
  const value = p * 100;
  if (value >= 99.95) return p < 1 ? `> 99.9${THIN}%` : `100${THIN}%`;
  if (value >= 99) return `${value.toFixed(1)}${THIN}%`;
  if (value >= 10) return `${value.toFixed(0)}${THIN}%`;
  if (value < 0.01) return value > 0 ? `${scientific(value)}${THIN}%` : `0${THIN}%`;
  return `${Number(value.toPrecision(2))}${THIN}%`;
}

/** A log-probability in the chosen unit: p to three decimals, or the surprise in bits or nats to two. */
function likelihood(logprob, unit) {
  if (unit === "p") {
    const p = Math.exp(logprob);
    return p >= 0.0005 ? p.toFixed(3) : p > 0 ? scientific(p) : "0";
  }
  if (logprob === -Infinity) return "∞";
  return Math.max(0, -logprob / (unit === "bits" ? Math.LN2 : 1)).toFixed(2);
}

/** Entropy, where it was recorded; where the unit is p it is given in bits, as a probability cannot show it. */
function entropyText(nats, unit) {
  if (nats === null) return "not recorded";
  return unit === "nats" ? `${nats.toFixed(2)} nats` : `${(nats / Math.LN2).toFixed(2)} bits`;
}

/** What was added to a token's logit. */
function biasText(nats) {
  return `${nats < 0 ? "−" : "+"}${Number(Math.abs(nats).toPrecision(3))}${THIN}nats`;
}

function milliseconds(ms) {
  if (ms >= 10000) return `${significant(ms / 1000, 3)}${THIN}s`;
  return `${ms >= 100 ? whole(ms) : ms >= 1 ? ms.toFixed(1) : significant(ms, 2)}${THIN}ms`;
}

function ordinal(n) {
  const tens = n % 100;
  const suffix = tens > 10 && tens < 14 ? "th" : { 1: "st", 2: "nd", 3: "rd" }[n % 10] || "th";
  return `${whole(n)}${suffix}`;
}

function plural(count, noun) {
  return `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** Why this token stands there, as one sentence or two. `quoted` is the token as shown. */
function sentences(step, quoted, isPrompt) {
  if (step.logprob === null) return ["No probabilities were recorded for ", quoted, "."];
  const share = percent(Math.exp(step.logprob));
  const parts = step.rank
    ? ["The model ranked ", quoted, ` ${ordinal(step.rank)}, at ${share}.`]
    : ["The model gave ", quoted, ` ${share}, below all candidates that the server returned.`];
  if (isPrompt) return [...parts, " It is part of the prompt, so it was not drawn."];
  if (step.isForced) return [...parts, " It was forced, not drawn."];
  if (step.isResampled) parts.push(" The grammar rejected the first draw.");
  if (step.kept === 1) parts.push(" Sampling kept only this one, so there was nothing to draw.");
  else if (step.kept > 1) {
    parts.push(` Sampling kept ${plural(step.kept, "candidate")}; its chance became ${percent(step.p)}.`);
  }
  return parts;
}
