// The page's clock starts at the same moment in every episode, since some tasks show today's date,
// and nothing shows the reward, the time that is left and a caret that blinks.
(() => {
  const real = Date, start = real.now(), shift = Date.UTC(2026, 0, 15, 9, 0, 0) - start;
  const now = () => real.now() + shift;
  class Shifted extends real {
    constructor(...parts) { parts.length ? super(...parts) : super(now()); }
    static now() { return now(); }
  }
  globalThis.Date = Shifted;
  addEventListener("DOMContentLoaded", () => {
    const style = document.createElement("style");
    style.textContent = "#reward-display, #click-canvas { visibility: hidden !important }" +
      "#input-flicker { display: none !important }";
    document.head.append(style);
  });
})();
