// Samples problems from the seeds until one falls into the split, which its content decides; a task
// with a single problem has it in both. A limit of 0 leaves the task's own. Of what a page keeps to
// itself, `hidden` says among how many values each of its random numbers chooses, the last on and on.
// Problems of a list with an id in `wrong` are left out. Returns the problem's key, its goal, its seed,
// which is empty where nothing of the other problems is left on the page, and its first `count` random
// numbers.
(limit, seeds, parity, hidden, wrong, count) => new Promise((resolve) => {
  const digest = (text) => {
    let h = 2166136261;
    for (let i = 0; i < text.length; i++) h = Math.imul(h ^ text.charCodeAt(i), 16777619);
    return (h ^ (h >>> 15)) >>> 0;
  };
  // Dialogs are put beside the task's own part of the page; those of earlier seeds are gone.
  const problem = () => [document.getElementById("wrap"), ...document.querySelectorAll(".ui-dialog")]
    .map((one) => one.innerHTML).join("");
  // The goal, with a word for each picture in it: a class for an icon, a colour for a coloured box. A page
  // that has words of its own for them keeps these.
  const words = (node) => {
    if (node.nodeType === Node.TEXT_NODE) return node.data;
    const { backgroundColor, backgroundImage } = node.nodeType === Node.ELEMENT_NODE ? getComputedStyle(node) : {};
    if (node.childNodes.length || !backgroundColor) return [...node.childNodes].map(words).join("");
    if (backgroundImage !== "none") return [...node.classList].map((one) => "." + one).join("");
    return /^rgba/.test(backgroundColor) ? "" : backgroundColor;
  };
  const squeeze = (text) => text.replace(/\s+/g, " ").trim();
  const goal = () => {
    const given = core.getUtterance(), query = document.getElementById("query");
    return given === squeeze(query.textContent) ? squeeze(words(query)) : given;
  };
  const clock = window.turngymClock;
  const later = (what) => clock ? clock.tick().then(what) : setTimeout(what, 3);
  const go = () => {
    if (!window.core || !core.cover_div) {
      // Timers of a page that is loaded may be all that it waits for.
      return clock && document.readyState === "complete" ? clock.pass(20).then(() => later(go)) : later(go);
    }
    if (limit) core.EPISODE_MAX_TIME = limit;
    const before = clock ? clock.pending : 0, OWN = 2;  // of the framework: the limit and its display
    let key = 0, chosen = "", isMoving = false, randoms = [];
    if (wrong.length) DATA_TRAIN = DATA_TRAIN.filter((one) => !wrong.includes(one.id));
    for (const seed of seeds) {
      isMoving ||= !!clock && !!chosen && clock.pending > before + OWN;
      chosen = seed;
      Math.seedrandom(seed);
      randoms = Array.from({ length: count }, () => Math.random());
      Math.seedrandom(seed);
      const random = Math.random, values = [];
      const range = () => hidden[Math.min(values.length, hidden.length - 1)] || 1;
      Math.random = () => { const r = random(); values.push(Math.floor(r * range())); return r; };
      core.startEpisodeReal();
      Math.random = random;
      key = digest(core.getUtterance() + problem() + (hidden.length ? values.join() : ""));
      if ((key & 1) === parity) break;
    }
    const end = () => WOB_TASK_READY ? resolve([key, goal(), isMoving ? chosen : "", randoms]) : later(end);
    end();
  };
  go();
})
