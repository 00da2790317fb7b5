// What ran where and when: lanes of bars. Wheel zooms, dragging moves, double click shows all.

const LANE = 22;
const LABEL = 150;
const RULER = 22;

function timelineView(timeline) {
  const canvas = h('canvas', { tabindex: '0', role: 'img', 'aria-label': 'Timeline' });
  const page = h('div', { class: 'page' }, h('p', { class: 'muted', css: { 'margin-bottom': '10px' } },
    `${timeline.lanes.length} lanes, ${plain(timeline.end / 1000)} s. Wheel zooms, dragging moves, double click shows all.`), canvas);
  const view = { from: 0, to: timeline.end || 1 };
  const { kinds, kindOf } = timeline.kinds ? timeline : kindsOf(timeline);
  Object.assign(timeline, { kinds, kindOf });
  page.insertBefore(h('div', { class: 'runs' }, kinds.slice(0, 12).map((kind, i) => h('span', {}, h('i', { css: { background: COLOURS[i % COLOURS.length], height: '10px' } }), kind))), canvas);
  const draw = eachFrame(() => drawTimeline(canvas, timeline, view));
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    const x = event.clientX - box.left;
    return { share: (x - LABEL) / (box.width - LABEL), lane: Math.floor((event.clientY - box.top - RULER) / LANE), width: box.width - LABEL };
  };
  const move = (from, to) => { view.from = from; view.to = Math.max(from + 1e-3, to); draw(); };
  let grabbed = null;
  canvas.addEventListener('wheel', (event) => {
    event.preventDefault();
    const factor = Math.exp(event.deltaY * .0015);
    const middle = view.from + at(event).share * (view.to - view.from);
    move(middle - (middle - view.from) * factor, middle + (view.to - middle) * factor);
  }, { passive: false });
  canvas.addEventListener('pointerdown', (event) => { grabbed = { x: event.clientX, from: view.from, to: view.to }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener('pointerup', () => { grabbed = null; });
  canvas.addEventListener('pointermove', (event) => {
    const place = at(event);
    if (grabbed) {
      const shift = (event.clientX - grabbed.x) / place.width * (grabbed.to - grabbed.from);
      move(grabbed.from - shift, grabbed.to - shift);
      return;
    }
    const time = view.from + place.share * (view.to - view.from);
    const lane = timeline.lanes[place.lane];
    const bar = lane && lane.bars.find(([begin, length]) => begin <= time && time <= begin + Math.max(length, (view.to - view.from) / place.width * 2));
    if (bar) tip.show(event, `${bar[2]}${bar[3] ? `  (${bar[3]})` : ''}\n${plain(bar[1])} ms, from ${plain(bar[0] / 1000)} s\n${lane.name}`);
    else tip.hide();
  });
  canvas.addEventListener('pointerleave', () => tip.hide());
  canvas.addEventListener('dblclick', () => move(0, timeline.end || 1));
  canvas.addEventListener('keydown', (event) => {
    const width = view.to - view.from;
    const steps = { ArrowLeft: [-.1, -.1], ArrowRight: [.1, .1], '+': [.15, -.15], '-': [-.2, .2], '0': null };
    if (!(event.key in steps)) return;
    event.preventDefault();
    event.stopPropagation();
    const step = steps[event.key];
    if (step) move(view.from + step[0] * width, view.to + step[1] * width);
    else move(0, timeline.end || 1);
  });
  new ResizeObserver(draw).observe(canvas);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
  document.addEventListener('themechange', draw);
  draw();
  return page;
}

/** What colours distinguish: names while they are few, else categories. */
function kindsOf(timeline) {
  const bars = timeline.lanes.flatMap((lane) => lane.bars);
  const names = new Set(bars.map((bar) => bar[2]));
  const kindOf = names.size <= COLOURS.length ? (bar) => bar[2] : (bar) => bar[3] || bar[2];
  return { kindOf, kinds: [...new Set(bars.map(kindOf))].sort() };
}

function drawTimeline(canvas, timeline, view) {
  const width = canvas.clientWidth;
  const height = RULER + timeline.lanes.length * LANE + 4;
  const ratio = devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext('2d');
  const style = getComputedStyle(document.body);
  const [ink, muted, line] = ['--ink', '--muted', '--line'].map((name) => colourOf(name, style));
  pen.scale(ratio, ratio);
  pen.clearRect(0, 0, width, height);
  pen.font = '11px system-ui, sans-serif';
  pen.textBaseline = 'middle';
  const x = (time) => LABEL + (width - LABEL) * (time - view.from) / (view.to - view.from);
  for (const time of ticks(view.from, view.to, Math.max(2, Math.floor((width - LABEL) / 110)))) {
    pen.fillStyle = line;
    pen.fillRect(x(time), 0, 1, height);
    pen.fillStyle = muted;
    pen.fillText(`${plain(Number((time / 1000).toPrecision(6)))} s`, x(time) + 4, RULER / 2);
  }
  timeline.lanes.forEach((lane, number) => {
    const top = RULER + number * LANE;
    pen.fillStyle = line;
    pen.fillRect(0, top, width, 1);
    let end = -1;
    for (const bar of lane.bars) {
      const [begin, length, name] = bar;
      const [left, right] = [Math.max(LABEL, x(begin)), Math.min(width, x(begin + length))];
      if (right < LABEL || left > width || right <= end) continue;
      const long = Math.max(1, right - Math.max(left, end));
      pen.fillStyle = COLOURS[timeline.kinds.indexOf(timeline.kindOf(bar)) % COLOURS.length];
      pen.fillRect(Math.max(left, end), top + 4, long, LANE - 7);
      end = Math.max(left, end) + long;
      if (right - left > 46) {
        pen.save();
        pen.beginPath();
        pen.rect(left, top, right - left - 3, LANE);
        pen.clip();
        pen.fillStyle = '#fff';
        pen.fillText(name, left + 5, top + LANE / 2 + .5);
        pen.restore();
      }
    }
    pen.clearRect(0, top + 1, LABEL, LANE - 1);
    pen.fillStyle = ink;
    pen.fillText(clip(lane.name, 24), 8, top + LANE / 2);
  });
}

/** Return a colour as the canvas knows it; custom properties may hold light-dark(). */
function colourOf(name, style) {
  const probe = h('i', { css: { color: `var(${name})` }, hidden: true });
  document.body.append(probe);
  const found = getComputedStyle(probe).color || style.color;
  probe.remove();
  return found;
}

function ticks(from, to, about) {
  const raw = (to - from) / about;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw);
  const found = [];
  for (let time = Math.ceil(from / step) * step; time <= to; time += step) found.push(time);
  return found;
}
