// The views, the address and the keys.

const KEYS = [
  ['j  k', 'next, previous episode'], ['n  p', 'next, previous turn'], ['f', 'failed episodes only, and all again'],
  ['t', 'colour tokens: text, log-prob, advantage, mask'], ['c', 'compare with another attempt, and back'], ['[  ]', 'other attempts at the task'],
  ['/', 'search'], ['1 2 3 4', 'episodes, curves, timeline, about'], ['d', 'light or dark'], ['?', 'these keys'],
];
const VIEWS = { episodes: 'Episodes', curves: 'Curves', timeline: 'Timeline', about: 'About' };

const state = { view: 'episodes', open: null, other: null, mode: 'text', turn: 0, about: null };
const tools = h('div', { class: 'tools' });
const scroll = h('div', { class: 'scroll', tabindex: '-1', 'aria-label': 'Episode', on: { pointermove: tokenTip, pointerleave: () => tip.hide() } });
const detail = h('section', { class: 'detail' }, tools, scroll);
const list = new EpisodeList((id) => go(`e/${id}`));
const pages = { episodes: h('div', { class: 'split' }, list.node, detail) };

function go(address) { location.hash = `#/${address}`; }

function route() {
  const [view, first, second] = location.hash.replace(/^#\//, '').split('/');
  tip.hide();
  if (view in VIEWS && view !== 'episodes') return show(view);
  show('episodes');
  if (view === 'e') return open(Number(first), null);
  if (view === 'c') return open(Number(first), Number(second));
  return null;
}

function show(view) {
  state.view = view;
  for (const tab of byId('tabs').children) tab.setAttribute('aria-selected', tab.dataset.view === view);
  if (!pages[view] && state.about) pages[view] = makePage(view);
  if (pages[view] && byId('view').firstChild !== pages[view]) byId('view').replaceChildren(pages[view]);
}

function makePage(view) {
  if (view === 'curves') return curvesView(state.about.curves);
  if (view === 'timeline' && state.about.timeline) return timelineView(state.about.timeline);
  if (view === 'timeline') return h('div', { class: 'page' }, h('p', { class: 'empty' }, 'This run has no timeline.json.'));
  return aboutView(state.about.about);
}

async function open(id, other) {
  const row = list.rows[id];
  if (!row) return;
  const isNew = state.open === null || state.open.id !== id;
  list.select(id);
  try {
    const [episode, second] = await Promise.all([source.episode(id), list.rows[other] ? source.episode(other) : null]);
    if (list.selected !== id) return; // somebody was faster
    episode.number = id;
    state.open = { id, row, episode };
    state.other = second ? { id: other, row: list.rows[other], episode: second } : null;
    if (isNew) state.turn = 0;
    paint(isNew);
  } catch (error) {
    scroll.replaceChildren(h('p', { class: 'empty' }, `This episode cannot be shown: ${error.message}`));
  }
}

function paint(fromTop) {
  const { row, episode } = state.open;
  const before = scroll.scrollTop;
  paintTools(row, episode);
  if (state.other) {
    scroll.replaceChildren(pairNode(episode, state.other.episode, state.mode, jump));
  } else {
    scroll.replaceChildren(h('div', { class: 'column' }, episodeHead(episode, jump), turnNodes(episode, state.mode), endNode(episode)));
  }
  scroll.scrollTop = fromTop ? 0 : before;
  note();
}

function paintTools(row, episode) {
  const members = list.members(row);
  const modes = h('select', { id: 'mode', 'aria-label': 'Colour tokens by', on: { change: () => { state.mode = modes.value; paint(false); } } },
    Object.entries(MODES).map(([value, label]) => h('option', { value }, label)));
  modes.value = state.mode;
  modes.disabled = !episode.turns.some((turn) => (turn.spans || []).length);
  const pills = members.length < 2 ? [] : members.slice(0, 32).map((one) => h('button', { class: 'member', title: `attempt ${one.member}, return ${plain(one.return)}`, 'aria-current': one.id === row.id || Boolean(state.other && one.id === state.other.id), on: {
    click: (event) => (event.shiftKey && one.id !== row.id ? go(`c/${row.id}/${one.id}`) : go(`e/${one.id}`)),
  } }, mark(one.outcome), `${one.member}`));
  tools.replaceChildren(h('span', { class: 'title' }, row.task), h('span', { class: 'muted' }, row.env),
    h('span', { class: 'members', 'aria-label': 'Attempts at this task' }, pills), h('span', { class: 'space' }),
    h('div', { class: 'right' }, legend(state.mode, episode), modes,
    h('button', { id: 'compare', class: 'step', disabled: members.length < 2, on: { click: compare } }, state.other ? 'One episode' : 'Compare'),
    h('button', { class: 'step', 'aria-label': 'Previous turn', on: { click: () => jump(state.turn - 1) } }, '↑'),
    h('button', { class: 'step', 'aria-label': 'Next turn', on: { click: () => jump(state.turn + 1) } }, '↓')));
}

/** Compare with the next attempt that came out differently, else with any other. */
function compare() {
  if (!state.open) return;
  const { row } = state.open;
  if (state.other) return go(`e/${row.id}`);
  const others = list.members(row).filter((member) => member.id !== row.id);
  const best = others.find((member) => member.outcome !== row.outcome) || others.find((member) => member.return !== row.return) || others[0];
  if (best) go(`c/${row.id}/${best.id}`);
}

function jump(turn) {
  const last = Math.max(state.open.episode.turns.length, state.other ? state.other.episode.turns.length : 0) - 1;
  state.turn = Math.max(0, Math.min(last, turn));
  const node = scroll.querySelector(`.turn[data-turn="${state.turn}"]`);
  if (node) node.scrollIntoView({ block: 'start' });
  note();
}

function note() {
  for (const node of scroll.querySelectorAll('.current')) node.classList.remove('current');
  for (const node of scroll.querySelectorAll(`.turn[data-turn="${state.turn}"]`)) node.classList.add('current');
  for (const tick of scroll.querySelectorAll('.tick')) tick.setAttribute('aria-current', Number(tick.dataset.turn) === state.turn);
}

function step(by) {
  const id = list.neighbour(by);
  if (id === null) return;
  list.select(id); // now, because the address changes later and the next key may come before
  go(`e/${id}`);
}

function sibling(by) {
  if (!state.open) return;
  const members = list.members(state.open.row);
  const place = members.findIndex((member) => member.id === state.open.id);
  go(`e/${members[(place + by + members.length) % members.length].id}`);
}

function theme() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  document.documentElement.dataset.theme = dark ? 'light' : 'dark';
  try { localStorage.setItem('turngym-theme', document.documentElement.dataset.theme); } catch { /* a page from a file may keep nothing */ }
  document.dispatchEvent(new Event('themechange'));
}

function cycleMode() {
  const names = Object.keys(MODES);
  state.mode = names[(names.indexOf(state.mode) + 1) % names.length];
  if (state.open) paint(false);
}

const ACTIONS = {
  j: () => step(1), k: () => step(-1), n: () => state.open && jump(state.turn + 1), p: () => state.open && jump(state.turn - 1),
  ArrowDown: () => step(1), ArrowUp: () => step(-1), ArrowRight: () => state.open && jump(state.turn + 1), ArrowLeft: () => state.open && jump(state.turn - 1),
  f: () => { list.kind.value = list.kind.value === 'failed' ? '' : 'failed'; list.filter(); },
  t: cycleMode, c: compare, ']': () => sibling(1), '[': () => sibling(-1),
  '/': () => { go('episodes'); list.text.focus(); list.text.select(); },
  1: () => go(state.open ? `e/${state.open.id}` : 'episodes'), 2: () => go('curves'), 3: () => go('timeline'), 4: () => go('about'),
  d: theme, '?': () => byId('keys').showModal(),
};

const EVERYWHERE = new Set(['1', '2', '3', '4', '/', 'd', '?']);

document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId('keys').open) return;
  const typing = event.target.matches('input, select, textarea');
  if (typing) {
    if (event.key === 'Escape' && event.target === list.text && list.text.value) {
      event.preventDefault();
      list.text.value = '';
      list.search();
    } else if (event.key === 'Escape' || (event.key === 'Enter' && event.target === list.text)) event.target.blur();
    return;
  }
  const act = ACTIONS[event.key];
  if (!act || (state.view !== 'episodes' && !EVERYWHERE.has(event.key))) return;
  event.preventDefault();
  act();
});

function dress(about) {
  state.about = about;
  byId('name').textContent = about.name;
  document.title = `${about.name} · turngym`;
  const hidden = { curves: !Object.keys(about.curves).length, timeline: !about.timeline };
  for (const tab of byId('tabs').children) tab.hidden = Boolean(hidden[tab.dataset.view]);
}

async function start() {
  try { document.documentElement.dataset.theme = localStorage.getItem('turngym-theme') || ''; } catch { /* see above */ }
  for (const [view, label] of Object.entries(VIEWS)) {
    byId('tabs').append(h('button', { role: 'tab', 'data-view': view, on: { click: () => ACTIONS[Object.keys(VIEWS).indexOf(view) + 1]() } }, label));
  }
  byId('theme').addEventListener('click', theme);
  byId('help').addEventListener('click', ACTIONS['?']);
  byId('keys').append(h('h2', { css: { 'margin-bottom': '10px', 'font-size': '14px' } }, 'Keys'), h('dl', {}, KEYS.flatMap(([key, what]) => [h('dt', {}, h('kbd', {}, key)), h('dd', {}, what)])), h('form', { method: 'dialog', css: { 'margin-top': '14px' } }, h('button', { class: 'step' }, 'Close')));
  scroll.append(h('p', { class: 'empty' }, 'Choose an episode: j and k move, / searches, ? shows all keys.'));
  show('episodes');
  addEventListener('hashchange', route);
  const about = source.about();
  about.then((found) => { dress(found); if (state.view !== 'episodes' || location.hash) route(); });
  await source.rows(async (rows, done, broken) => {
    const { columns, sources } = await about;
    const first = list.rows.length;
    list.done = done;
    list.broken = broken;
    list.add(rows.map((values, i) => rowObject(columns, values, first + i)), sources);
    if (first === 0) requestAnimationFrame(() => performance.mark('first-rows'));
    if (first === 0 && list.rows.length) location.hash ? route() : open(0, null);
  });
  list.filter();
  performance.mark('all-rows');
  document.documentElement.dataset.ready = 'yes';
}

start().catch((error) => scroll.replaceChildren(h('p', { class: 'empty' }, `The run cannot be shown: ${error.message}`)));
