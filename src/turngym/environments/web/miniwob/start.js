// Samples problems from the seeds until one falls into the split, which its content decides; a task
// with a single problem has it in both. A limit of 0 leaves the task's own.
(limit, seeds, parity) => new Promise((resolve) => {
  const digest = (text) => {
    let h = 2166136261;
    for (let i = 0; i < text.length; i++) h = Math.imul(h ^ text.charCodeAt(i), 16777619);
    return (h ^ (h >>> 15)) >>> 0;
  };
  // Dialogs are put beside the task's own part of the page; those of earlier seeds are gone.
  const problem = () => [document.getElementById("wrap"), ...document.querySelectorAll(".ui-dialog")]
    .map((one) => one.innerHTML).join("");
  const go = () => {
    if (!window.core || !core.cover_div) return setTimeout(go, 3);
    if (limit) core.EPISODE_MAX_TIME = limit;
    let key = 0;
    for (const seed of seeds) {
      Math.seedrandom(seed);
      core.startEpisodeReal();
      key = digest(core.getUtterance() + problem());
      if ((key & 1) === parity) break;
    }
    const end = () => WOB_TASK_READY ? resolve([key, core.getUtterance()]) : setTimeout(end, 3);
    end();
  };
  go();
})
