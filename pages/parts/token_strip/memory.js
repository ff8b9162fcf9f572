// What a browser tab remembers: settings of the strips, and the pinned token of each trial.

function remembered(key, fallback) {
  try {
    return { ...fallback, ...JSON.parse(sessionStorage.getItem(key) ?? "{}") };
  } catch {
    return fallback;
  }
}

function remember(key, value) {
  try {
    sessionStorage.setItem(key, JSON.stringify(value));
  } catch {
    // A browser without storage forgets the setting on reload, nothing else.
  }
}
