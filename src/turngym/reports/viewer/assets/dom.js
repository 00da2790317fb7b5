// Elements, numbers and small helpers. Text goes in as text nodes only, never as HTML.

const SVG = 'http://www.w3.org/2000/svg';

/** Return an element. `props`: class, data-*, aria-* and other attributes, `on` for listeners. */
function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** Return an SVG element. */
function s(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith('aria-')) { element.setAttribute(name, String(value)); continue; }
    if (value === undefined || value === null || value === false) continue;
    if (name === 'on') for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (name === 'css') for (const [key, set] of Object.entries(value)) element.style.setProperty(key, set);
    else if (name === 'value') element.value = value;
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

const byId = (id) => document.getElementById(id);

/** Return a number with its sign and at most three digits that matter. */
function signed(value) {
  return (value > 0 ? '+' : value < 0 ? '−' : '') + plain(Math.abs(value));
}

function plain(value) {
  if (!Number.isFinite(value)) return '–';
  if (value < 0) return '−' + plain(-value);
  if (Number.isInteger(value)) return value.toLocaleString('en-US');
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(2);
  return value.toLocaleString('en-US', { maximumFractionDigits: size >= 100 ? 1 : size >= 1 ? 2 : 3 });
}

/** Return `act`, called at most once a frame. */
function eachFrame(act) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; act(); });
  };
}

/** Return `act`, called when nobody has asked for it for a while. */
function afterPause(act, milliseconds) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => act(...given), milliseconds);
  };
}

const tip = {
  node: null,
  show(event, text) {
    if (!this.node) document.body.append(this.node = h('div', { class: 'tip', role: 'tooltip' }));
    this.node.textContent = text;
    this.node.hidden = false;
    const box = this.node.getBoundingClientRect();
    const x = Math.min(event.clientX + 12, innerWidth - box.width - 6);
    const y = event.clientY + 16 + box.height > innerHeight ? event.clientY - box.height - 8 : event.clientY + 16;
    this.node.style.left = `${Math.max(4, x)}px`;
    this.node.style.top = `${y}px`;
  },
  hide() { if (this.node) this.node.hidden = true; },
};
