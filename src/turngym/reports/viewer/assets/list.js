// The list of episodes: filters, and only as many elements as are seen.

const ROW = 46;

class EpisodeList {
  constructor(open) {
    this.open = open;
    this.rows = [];
    this.shown = [];
    this.selected = -1;
    this.said = null; // ids in which the searched text was said; null while nothing is searched
    this.searching = 0;
    this.done = false;
    this.draw = eachFrame(() => this.paint());
    this.build();
  }

  build() {
    const change = () => this.filter();
    const choose = (label, all) => h('select', { 'aria-label': label, on: { change } }, h('option', { value: '' }, all));
    this.text = h('input', { class: 'wide', type: 'search', placeholder: 'Search text and tasks   /', 'aria-label': 'Search', on: { input: afterPause(() => this.search(), 160) } });
    this.env = choose('Environment', 'All environments');
    this.kind = choose('Outcome', 'All outcomes');
    for (const [key, { word }] of Object.entries(OUTCOMES)) this.kind.append(h('option', { value: key }, word));
    this.stop = choose('Stop reason', 'All stop reasons');
    this.source = choose('File', 'All files');
    this.order = h('select', { 'aria-label': 'Order', on: { change } },
      [['', 'In order'], ['return', 'Return ↓'], ['-return', 'Return ↑'], ['turns', 'Turns ↓'], ['tokens', 'Tokens ↓'], ['invalid', 'Invalid ↓']]
        .map(([value, label]) => h('option', { value }, label)));
    const bound = (label) => h('input', { type: 'number', step: 'any', placeholder: label, 'aria-label': `${label} return`, on: { input: change } });
    this.low = bound('min');
    this.high = bound('max');
    this.count = h('span', { 'aria-live': 'polite' });
    this.clear = h('button', { hidden: true, on: { click: () => this.reset() } }, 'Clear filters');
    this.pane = h('div', { class: 'rows', role: 'listbox', tabindex: '0', 'aria-label': 'Episodes', on: {
      scroll: this.draw,
      click: (event) => {
        const row = event.target.closest('.row');
        if (row) this.open(Number(row.dataset.id));
      },
    } });
    this.spacer = h('div');
    this.pane.append(this.spacer);
    this.node = h('aside', { class: 'side' },
      h('div', { class: 'filters' }, this.text, this.env, this.kind, this.stop, this.source,
        h('div', { class: 'wide range' }, 'Return', this.low, this.high, this.order)),
      h('div', { class: 'count' }, this.count, h('span', { class: 'space' }), this.clear), this.pane);
    new ResizeObserver(this.draw).observe(this.pane);
  }

  add(rows, labels) {
    this.labels = labels;
    for (const row of rows) this.rows.push(row);
    offer(this.env, rows.map((row) => [row.env, row.env]));
    offer(this.stop, rows.map((row) => [row.stop, STOPS[row.stop] || row.stop]));
    offer(this.source, rows.map((row) => [String(row.source), labels[row.source]]));
    this.env.hidden = this.env.options.length < 3;
    this.source.hidden = this.source.options.length < 3;
    this.filter();
  }

  reset() {
    for (const input of [this.text, this.env, this.kind, this.stop, this.source, this.low, this.high]) input.value = '';
    this.said = null;
    this.filter();
  }

  async search() {
    const text = this.text.value.trim().toLowerCase();
    const turn = ++this.searching;
    this.said = text ? new Set() : null;
    this.filter();
    if (!text) return;
    try {
      const found = await source.search(text, () => turn === this.searching);
      if (turn === this.searching) this.said = new Set(found);
    } finally {
      if (turn === this.searching) this.filter();
    }
  }

  filter() {
    const text = this.text.value.trim().toLowerCase();
    const low = this.low.value === '' ? -Infinity : Number(this.low.value);
    const high = this.high.value === '' ? Infinity : Number(this.high.value);
    const is = (select, value) => !select.value || select.value === value;
    this.shown = this.rows.filter((row) => is(this.env, row.env) && is(this.kind, row.outcome)
      && is(this.stop, row.stop) && is(this.source, String(row.source)) && row.return >= low && row.return <= high
      && (!text || this.said?.has(row.id) || row.task.toLowerCase().includes(text)));
    if (this.order.value) {
      const key = this.order.value.replace('-', '');
      const sign = this.order.value.startsWith('-') ? 1 : -1;
      this.shown.sort((a, b) => sign * (a[key] - b[key]) || a.id - b.id);
    }
    this.clear.hidden = this.shown.length === this.rows.length && !text;
    this.refresh();
    this.spacer.style.height = `${this.shown.length * ROW}px`;
    this.draw();
  }

  refresh() {
    const all = this.rows.length.toLocaleString('en-US');
    const some = this.shown.length.toLocaleString('en-US');
    const solved = this.shown.filter((row) => row.outcome === 'solved').length;
    const judged = this.shown.filter((row) => row.score !== null).length;
    const share = judged ? ` · ${(100 * solved / judged).toFixed(1)} % solved` : '';
    const broken = this.broken ? ` · ${this.broken} lines unreadable` : '';
    this.count.textContent = `${some === all ? all : `${some} of ${all}`} episodes${this.done ? '' : ' …'}${share}${broken}`;
  }

  paint() {
    const top = this.pane.scrollTop;
    const first = Math.max(0, Math.floor(top / ROW) - 6);
    const last = Math.min(this.shown.length, Math.ceil((top + this.pane.clientHeight) / ROW) + 6);
    const nodes = [this.spacer];
    for (let i = first; i < last; i++) nodes.push(this.rowNode(this.shown[i], i));
    this.pane.replaceChildren(...nodes);
    const place = this.shown.findIndex((row) => row.id === this.selected);
    if (place >= first && place < last) this.pane.setAttribute('aria-activedescendant', `row-${this.selected}`);
    else this.pane.removeAttribute('aria-activedescendant');
    if (!this.shown.length && this.done) this.pane.append(h('p', { class: 'empty' }, this.rows.length ? 'No episode is like that.' : 'This run keeps no episodes.'));
  }

  rowNode(row, place) {
    const file = this.labels.length > 3 ? this.labels[row.source].split('/').pop() : '';
    const under = [row.member ? `attempt ${row.member}` : '', row.stop === 'terminated' ? '' : STOPS[row.stop] || row.stop, file, row.env].filter(Boolean).join(' · ');
    return h('div', { class: 'row', id: `row-${row.id}`, role: 'option', 'data-id': row.id, 'aria-selected': row.id === this.selected, 'aria-posinset': place + 1, 'aria-setsize': this.shown.length, css: { top: `${place * ROW}px` } },
      mark(row.outcome),
      h('div', {}, h('div', { class: 'task' }, row.task), h('div', { class: 'under' }, under)),
      h('div', { class: 'right' }, h('div', {}, signed(row.return) || '0'), h('div', { class: 'muted' }, `${row.turns} t`)));
  }

  /** Select an episode and bring its row into view. */
  select(id) {
    this.selected = id;
    const place = this.shown.findIndex((row) => row.id === id);
    if (place >= 0) {
      const top = place * ROW;
      if (top < this.pane.scrollTop) this.pane.scrollTop = top;
      else if (top + ROW > this.pane.scrollTop + this.pane.clientHeight) this.pane.scrollTop = top + ROW - this.pane.clientHeight;
    }
    this.draw();
  }

  /** Return the episode some places further in the list as it is shown, or null. */
  neighbour(step) {
    const place = this.shown.findIndex((row) => row.id === this.selected);
    const next = place < 0 ? (step > 0 ? 0 : this.shown.length - 1) : place + step;
    return this.shown[next] ? this.shown[next].id : null;
  }

  members(row) {
    return this.rows.filter((other) => other.group === row.group);
  }
}

/** Give a select the choices that it does not have yet, in the order of their labels. */
function offer(select, pairs) {
  const known = new Set([...select.options].map((option) => option.value));
  const fresh = new Map(pairs.filter(([value]) => !known.has(value)));
  for (const [value, label] of fresh) select.append(h('option', { value }, label));
}
