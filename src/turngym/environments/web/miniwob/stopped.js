// A clock for the page that stands still until somebody moves it on, so that what moves by itself is
// where it was when the agent last looked. Timers, frames and dates follow it; styles do not glide.
(() => {
  if (globalThis !== top || location.pathname.startsWith("/flight/")) return;
  const FRAME_MS = 40, MOMENT_MS = 40, SOON_MS = 500;  // of the page's time
  const LONGEST_MS = 3000, BREATH_MS = 200;  // of real time
  const RealDate = Date, first = Date.UTC(2026, 0, 15, 9, 0, 0);
  const native = { setTimeout: setTimeout.bind(globalThis), now: performance.now.bind(performance), frame: requestAnimationFrame.bind(globalThis) };
  const nap = (ms) => new Promise((resolve) => native.setTimeout(resolve, ms));
  const timers = new Map();  // in the order of their making
  let now = 0, next = 1, changes = 0, changed = 0;  // when the document changed last

  class StoppedDate extends RealDate {
    constructor(...parts) { parts.length ? super(...parts) : super(first + now); }
    static now() { return first + now; }
  }
  globalThis.Date = StoppedDate;
  performance.now = () => now;

  const add = (callback, delay, kind, parts) => {
    const run = typeof callback === "function" ? () => callback(...parts) : () => (0, eval)(String(callback));
    timers.set(next, { due: now + delay, every: kind === "interval" ? delay : 0, isOnce: kind === "timeout", isFrame: kind === "frame", run });
    return next++;
  };
  const wait = (delay) => Math.max(1, Number(delay) || 0);
  globalThis.setTimeout = (callback, delay, ...parts) => add(callback, wait(delay), "timeout", parts);
  globalThis.setInterval = (callback, delay, ...parts) => add(callback, wait(delay), "interval", parts);
  globalThis.requestAnimationFrame = (callback) => add(() => callback(now), FRAME_MS - now % FRAME_MS, "frame", []);
  globalThis.clearTimeout = globalThis.clearInterval = globalThis.cancelAnimationFrame = (id) => { timers.delete(id); };

  const earliest = (end) => {
    let found = 0, due = end;
    for (const [id, timer] of timers) if (timer.due < due || timer.due === due && !found) [found, due] = [id, timer.due];
    return found;
  };
  // Frames are made at once, other timers run one by one.
  const together = (id) => !timers.get(id).isFrame ? [id] :
    [...timers].filter(([, timer]) => timer.isFrame && timer.due === now).map(([one]) => one);
  const run = (id) => {
    const timer = timers.get(id);
    timers.delete(id);
    if (!timer) return;  // the one before it took it back
    if (timer.every) timers.set(id, { ...timer, due: now + timer.every });
    try { timer.run(); } catch (error) { native.setTimeout(() => { throw error; }); }
  };
  // What a callback promised is done before the next one runs, as in a browser.
  // On a slow machine it also leaves others their turn, or nothing would hear that the page still works.
  let breath = 0;
  const tick = () => {
    if (native.now() - breath < BREATH_MS) return scheduler.postTask(() => {}, { priority: "user-blocking" });
    return nap(0).then(() => { breath = native.now(); });
  };
  const shown = () => new Promise((resolve) => native.frame(() => native.frame(resolve)));

  const isComing = () => [...timers.values()].some((timer) => timer.isOnce && timer.due <= now + SOON_MS);

  // Goes on by so many milliseconds. Where pictures count, each change is shown before what follows, since
  // the mouse enters and leaves what moves below it only then.
  const pass = async (ms, isShown = false) => {
    const end = now + ms;
    for (let id = earliest(end); id; id = earliest(end)) {
      const before = changes;
      now = timers.get(id).due;
      for (const one of together(id)) run(one);
      await tick();
      const after = timers.get(earliest(end));
      if (isShown && changes > before && !(after && after.due === now)) await shown();
    }
    now = end;
  };
  new MutationObserver(() => { changes += 1; changed = now; })
    .observe(document, { subtree: true, childList: true, attributes: true, characterData: true });

  // Goes on until nothing has changed for a moment, and nothing is to happen soon.
  const settle = async (cap) => {
    await tick();
    changed = now;
    for (const end = now + cap; now < end && (now - changed < MOMENT_MS || isComing());) await pass(FRAME_MS);
  };
  let running = null;
  // Both answer after a while; true means that it goes on, and `rest` waits for more of it.
  const rest = () => Promise.race([running.then(() => false), nap(LONGEST_MS).then(() => true)]);

  Object.defineProperty(globalThis, "turngymClock", { value: {
    get pending() { return timers.size; },
    tick: () => nap(3),
    pass(ms, isShown) { running = pass(ms, isShown); return rest(); },
    settle(cap) { running = settle(cap); return rest(); },
    rest,
  } });
  addEventListener("DOMContentLoaded", () => {
    const style = document.createElement("style");
    style.textContent = "*, ::before, ::after { transition: none !important; animation: none !important }";
    document.head.append(style);
  });
})();
