// What the run says of itself: the table of an evaluation, settings, versions.

function aboutView(about) {
  const page = h('div', { class: 'page' });
  for (const [file, content] of Object.entries(about)) {
    const results = file.endsWith('evaluation.json') && content.results;
    page.append(h('h2', {}, file), ...(results ? [resultsTable(results)] : []), pairsTable(flat(results ? { ...content, results: undefined } : content)));
  }
  if (!page.childNodes.length) page.append(h('p', { class: 'empty' }, 'The run says nothing of itself.'));
  return page;
}

function resultsTable(results) {
  const share = (value, interval) => (value === null || value === undefined ? '–' : `${(100 * value).toFixed(1)} %${interval && interval[0] !== null ? ` [${interval.map((end) => (100 * end).toFixed(1)).join(', ')}]` : ''}`);
  const number = (value, interval) => (value === null || value === undefined ? '–' : `${plain(value)}${interval ? ` [${interval.map(plain).join(', ')}]` : ''}`);
  const most = Math.max(0, ...Object.values(results).flatMap((found) => Object.keys(found.pass_at).map(Number)));
  const heads = ['Environment', 'Episodes', 'Success', ...(most > 1 ? [`Pass@${most}`] : []), 'Return', 'Turns', 'Tokens out', 'Cost $', 'Seconds', 'Faults'];
  const rows = Object.entries(results).map(([name, found]) => {
    const pass = found.pass_at[String(most)];
    return [name, plain(found.episodes), share(found.success, found.success_ci95), ...(most > 1 ? [pass ? share(pass[0], pass.slice(1)) : '–'] : []),
      number(found.mean_return, found.mean_return_ci95), number(found.mean_turns, found.mean_turns_ci95), number(found.mean_completion_tokens, found.mean_completion_tokens_ci95),
      number(found.mean_cost_usd, found.mean_cost_usd_ci95), number(found.time.mean_seconds, found.time.mean_seconds_ci95),
      `${found.faults}${Object.entries(found.faults_by_kind).map(([kind, [part]]) => ` · ${kind} ${(100 * part).toFixed(1)} %`).join('')}`];
  });
  return h('div', { class: 'table' }, h('table', {}, h('thead', {}, h('tr', {}, heads.map((head) => h('th', {}, head)))), h('tbody', {}, rows.map((cells) => h('tr', {}, cells.map((cell) => h('td', {}, cell)))))));
}

function flat(value, prefix = '') {
  if (value === null || typeof value !== 'object') return [[prefix, value === null ? '–' : String(value)]];
  return Object.entries(value).filter(([, inner]) => inner !== undefined).flatMap(([key, inner]) => flat(inner, prefix ? `${prefix}.${key}` : key));
}

function pairsTable(pairs) {
  return h('div', { class: 'table' }, h('table', {}, h('tbody', {}, pairs.map(([key, value]) => h('tr', {}, h('th', { scope: 'row' }, key), h('td', { class: 'mono' }, value))))));
}
