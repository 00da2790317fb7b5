// Numbers of training runs as small charts.

// Okabe and Ito 2008, each dark enough for white paper and light enough for black.
const COLOURS = ['#2b87d3', '#d5692b', '#1a9a6c', '#c26aa5', '#b98a00', '#3aa6c4', '#858b92', '#a0803c'];
const FIRST = ['validation/success', 'rollout/success', 'held_out/sampled/success', 'rollout/return_mean', 'rollout/turns_mean',
  'rollout/advantage_abs_mean', 'train/loss', 'train/entropy', 'train/kl', 'train/grad_norm', 'rollout/tokens', 'rollout/faults'];
const BAND = { 'validation/success': ['validation/success_low', 'validation/success_high'] };
const BOX = { width: 320, height: 150, left: 46, right: 8, top: 8, bottom: 20 };

function curvesView(runs) {
  const names = Object.keys(runs);
  const metrics = [...new Set(names.flatMap((run) => Object.keys(runs[run])))].sort();
  if (!metrics.length) return h('div', { class: 'page' }, h('p', { class: 'empty' }, 'This run has no training metrics.'));
  const first = FIRST.filter((name) => metrics.includes(name));
  const areas = new Map();
  for (const name of metrics) {
    const area = name.includes('/') ? name.split('/')[0] : 'other';
    areas.set(area, [...(areas.get(area) || []), name]);
  }
  const found = h('div', { class: 'charts' });
  const search = h('input', { class: 'search', type: 'search', placeholder: 'Find a metric', 'aria-label': 'Find a metric', css: { 'max-width': '320px' }, on: {
    input: afterPause(() => {
      const text = search.value.trim().toLowerCase();
      found.replaceChildren(...(text ? metrics.filter((name) => name.toLowerCase().includes(text)).slice(0, 60) : first).map((name) => chart(name, runs, names)));
    }, 120),
  } });
  found.append(...first.map((name) => chart(name, runs, names)));
  const rest = [...areas].map(([area, members]) => {
    const grid = h('div', { class: 'charts' });
    const open = () => { if (!grid.childNodes.length) grid.append(...members.map((name) => chart(name, runs, names))); };
    return h('details', { on: { toggle: open } }, h('summary', {}, `${area} (${members.length})`), grid);
  });
  const legends = names.length > 1 ? h('div', { class: 'runs' }, names.map((name, i) => h('span', {}, h('i', { css: { background: COLOURS[i % COLOURS.length] } }), name))) : null;
  return h('div', { class: 'page' }, search, legends || h('div', { class: 'runs' }), found, h('h2', {}, 'All metrics'), rest);
}

function chart(name, runs, names) {
  const lines = names.map((run, i) => ({ run, colour: COLOURS[i % COLOURS.length], points: runs[run][name], band: (BAND[name] || []).map((other) => runs[run][other]) })).filter((line) => line.points);
  const xs = lines.flatMap((line) => line.points[0]);
  const ys = lines.flatMap((line) => [...line.points[1], ...line.band.filter(Boolean).flatMap((points) => points[1])]);
  let [low, high] = [least(ys), most(ys)];
  if (/success|fraction|share/.test(name) && low >= 0 && high <= 1) [low, high] = [0, 1];
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) * .1, high + (Math.abs(high) || 1) * .1];
  const [from, to] = [least(xs), most(xs)];
  const x = (value) => BOX.left + (BOX.width - BOX.left - BOX.right) * (to > from ? (value - from) / (to - from) : .5);
  const y = (value) => BOX.top + (BOX.height - BOX.top - BOX.bottom) * (1 - (value - low) / (high - low));
  const value = h('span', { class: 'muted num' }, latest(lines));
  const cross = s('line', { class: 'cross', y1: BOX.top, y2: BOX.height - BOX.bottom, visibility: 'hidden' });
  const svg = s('svg', { viewBox: `0 0 ${BOX.width} ${BOX.height}`, role: 'img', 'aria-label': name, on: {
    pointermove: (event) => {
      const box = svg.getBoundingClientRect();
      const step = from + (to - from) * ((event.clientX - box.left) / box.width * BOX.width - BOX.left) / (BOX.width - BOX.left - BOX.right);
      const near = lines.map((line) => nearest(line.points, step));
      const at = x(near[0][0]);
      fill(cross, { x1: at, x2: at, visibility: 'visible' }, []);
      value.textContent = `${plain(near[0][0])}: ${near.map((pair) => plain(pair[1])).join(' · ')}`;
    },
    pointerleave: () => { cross.setAttribute('visibility', 'hidden'); value.textContent = latest(lines); },
  } });
  for (const tick of [low, (low + high) / 2, high]) {
    svg.append(s('line', { class: 'grid', x1: BOX.left, x2: BOX.width - BOX.right, y1: y(tick), y2: y(tick) }), s('text', { x: BOX.left - 5, y: y(tick) + 3, 'text-anchor': 'end' }, plain(tick)));
  }
  svg.append(s('text', { x: BOX.left, y: BOX.height - 6 }, plain(from)), s('text', { x: BOX.width - BOX.right, y: BOX.height - 6, 'text-anchor': 'end' }, plain(to)));
  for (const line of lines) {
    if (line.band.length === 2 && line.band.every(Boolean)) svg.append(s('path', { d: bandPath(line.band, x, y), fill: line.colour, opacity: '.15' }));
    svg.append(s('path', { d: linePath(line.points, x, y), fill: 'none', stroke: line.colour, 'stroke-width': '1.6', 'stroke-linejoin': 'round' }));
    if (line.points[0].length < 40) line.points[0].forEach((step, i) => svg.append(s('circle', { cx: x(step), cy: y(line.points[1][i]), r: '1.8', fill: line.colour })));
  }
  svg.append(cross);
  return h('figure', { class: 'chart', css: { margin: '0' } }, h('h3', {}, name, value), svg);
}

const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

const latest = (lines) => lines.map((line) => plain(line.points[1][line.points[1].length - 1])).join(' · ');

function nearest([steps, values], step) {
  let best = 0;
  for (let i = 1; i < steps.length; i++) if (Math.abs(steps[i] - step) <= Math.abs(steps[best] - step)) best = i;
  return [steps[best], values[best]];
}

function linePath([steps, values], x, y) {
  return steps.map((step, i) => `${i ? 'L' : 'M'}${x(step).toFixed(1)} ${y(values[i]).toFixed(1)}`).join('');
}

function bandPath([low, high], x, y) {
  const up = low[0].map((step, i) => `${i ? 'L' : 'M'}${x(step).toFixed(1)} ${y(low[1][i]).toFixed(1)}`);
  const down = high[0].map((step, i) => `L${x(step).toFixed(1)} ${y(high[1][i]).toFixed(1)}`).reverse();
  return `${up.join('')}${down.join('')}Z`;
}
