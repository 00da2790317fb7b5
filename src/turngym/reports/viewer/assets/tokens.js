// Tokens as the engine saw them, coloured by log-prob, advantage or mask.

const MODES = { text: 'Text', logprob: 'Log-prob', advantage: 'Advantage', mask: 'Mask' };

/** Return the sampled tokens' advantages of each turn: one number a token, or the turn's on all. */
function tokenAdvantages(episode, turn) {
  const metadata = episode.metadata || {};
  const own = metadata.token_advantages && metadata.token_advantages[turn];
  if (own) return own;
  return metadata.advantages ? metadata.advantages[turn] : null;
}

/** Return the largest size of any advantage, for the scale of colours. */
function advantageScale(episode) {
  const metadata = episode.metadata || {};
  const values = [metadata.advantages || [], ...(metadata.token_advantages || [])].flat();
  return values.reduce((most, value) => Math.max(most, Math.abs(value || 0)), 1e-9);
}

/** Return the tokens of a turn as two texts: what was read, and what was sampled. */
function tokenTexts(episode, number, mode, scale) {
  const turn = episode.turns[number];
  const advantages = tokenAdvantages(episode, number);
  const read = h('pre', { class: 'text' });
  const sampled = h('pre', { class: 'text' });
  let place = 0;
  for (const span of turn.spans) {
    span.token_ids.forEach((id, i) => {
      const facts = { id, sampled: span.sampled, logprob: span.logprobs ? span.logprobs[i] : undefined, version: span.policy_version };
      if (span.sampled) facts.advantage = Array.isArray(advantages) ? advantages[place++] : advantages;
      (span.sampled ? sampled : read).append(tokenNode(facts, (episode.tokens || {})[id], mode, scale));
    });
  }
  return { read, sampled };
}

function tokenNode(facts, text, mode, scale) {
  const shown = text === undefined ? `⟨${facts.id}⟩` : text === '' ? '∅' : text;
  const node = h('span', { class: `tok ${facts.sampled ? '' : 'plain'}` }, shown);
  if (facts.sampled && mode === 'mask') node.classList.add('sampled');
  if (facts.sampled && mode === 'logprob') node.style.background = logprobColour(facts.logprob);
  if (facts.sampled && mode === 'advantage') node.style.background = advantageColour(facts.advantage, scale);
  node.facts = facts;
  return node;
}

const logprobColour = (value) => `rgb(var(--less) / ${Math.min(.6, Math.max(0, -value) * .18).toFixed(3)})`;

function advantageColour(value, scale) {
  if (value === null || value === undefined) return 'none';
  const size = (Math.min(1, Math.abs(value) / scale) * .55).toFixed(3);
  return `rgb(var(${value >= 0 ? '--more' : '--less'}) / ${size})`;
}

/** Tell about the token under the pointer. */
function tokenTip(event) {
  const facts = event.target.facts;
  if (!facts) return tip.hide();
  const lines = [`token ${facts.id}`];
  if (facts.sampled) {
    lines.push(`log-prob ${facts.logprob.toFixed(3)}   p ${(100 * Math.exp(facts.logprob)).toFixed(1)} %`);
    if (facts.advantage !== null && facts.advantage !== undefined) lines.push(`advantage ${signed(facts.advantage) || '0'}`);
    lines.push(`sampled by version ${facts.version}, trained on`);
  } else {
    lines.push('read, not trained on');
  }
  tip.show(event, lines.join('\n'));
}

function legend(mode, episode) {
  const box = (colour) => h('i', { css: { background: colour } });
  if (mode === 'logprob') return h('span', { class: 'legend' }, box(logprobColour(0)), 'certain', box(logprobColour(-1)), 'p 37 %', box(logprobColour(-4)), 'p 2 %');
  if (mode === 'mask') return h('span', { class: 'legend' }, box('rgb(var(--more) / .22)'), 'trained on', h('span', { class: 'tok plain' }, 'grey'), 'read only');
  if (mode === 'advantage') {
    if (!advantagesOf(episode)) return h('span', { class: 'legend' }, 'this episode has no advantages');
    const scale = advantageScale(episode);
    return h('span', { class: 'legend' }, box(advantageColour(-scale, scale)), signed(-scale), box('none'), '0', box(advantageColour(scale, scale)), signed(scale));
  }
  return h('span');
}
