// Keeps what a page draws into a canvas as outlines, which are shown like those of a drawing: each
// outline's points in the canvas's own pixels, as an attribute of the canvas.
(() => {
  const ATTRIBUTE = "data-outlines", context = CanvasRenderingContext2D.prototype, kept = new WeakMap();
  const of = (one) => {
    if (!kept.has(one)) kept.set(one, { path: [], done: [] });
    return kept.get(one);
  };
  const after = (name, work) => {
    const real = context[name];
    context[name] = function (...parts) { work(this, ...parts); return real.apply(this, parts); };
  };
  const at = (one, x, y) => {
    const point = new DOMPoint(x, y).matrixTransform(one.getTransform());
    return [Math.round(point.x), Math.round(point.y)];
  };
  after("beginPath", (one) => { of(one).path = []; });
  after("moveTo", (one, x, y) => { of(one).path.push([at(one, x, y)]); });
  after("lineTo", (one, x, y) => { (of(one).path.at(-1) || of(one).path[of(one).path.push([]) - 1]).push(at(one, x, y)); });
  const draw = (style) => (one) => {
    const state = of(one);
    for (const points of state.path) if (points.length > 1) state.done.push({ points, colour: String(one[style]) });
    if (state.done.length) one.canvas.setAttribute(ATTRIBUTE, JSON.stringify(state.done.slice(-50)));
  };
  after("stroke", draw("strokeStyle"));
  after("fill", draw("fillStyle"));
  after("clearRect", (one) => { of(one).done = []; one.canvas.removeAttribute(ATTRIBUTE); });
})();
