// Providers and routing: what sandboxes are made of here, and which one a sandbox would get, and why.
import { call, get } from './api.js';
import { asCode, ask, attempt, say } from './dialog.js';
import { el, fill } from './el.js';

/** What is different, one line each: what whoever confirms it is told. */
export function changesOf(before, after) {
  const shares = (rules) => new Map((rules.flags ?? []).map((f) => [f.name, f]));
  const [old, now] = [shares(before), shares(after)];
  const lines = [];
  for (const [name, f] of now) {
    const was = old.get(name);
    if (!was) lines.push(`flag ${name} is new: ${f.percentage} % of users get ${f.provider}`);
    else if (was.percentage !== f.percentage) lines.push(`flag ${name}: ${was.percentage} % -> ${f.percentage} % of users get ${f.provider}; ${f.percentage > was.percentage ? 'those who are in stay in' : 'some leave, nobody enters'}`);
    else if (JSON.stringify(was) !== JSON.stringify(f)) lines.push(`flag ${name} is another`);
  }
  for (const name of old.keys()) if (!now.has(name)) lines.push(`flag ${name} goes away`);
  for (const part of new Set([...Object.keys(before), ...Object.keys(after)])) {
    if (part !== 'flags' && JSON.stringify(before[part]) !== JSON.stringify(after[part])) lines.push(`${part}: ${JSON.stringify(before[part]) ?? 'nothing'} -> ${JSON.stringify(after[part]) ?? 'nothing'}`);
  }
  return lines;
}

/** Asks for other rules: as text, and the shares of flags by a slider or a number. Says what will be different before it is done. */
function askForRules(now) {
  const text = el('textarea.cell', { name: 'rules', rows: '12', spellcheck: 'false', 'aria-label': 'Rules', value: JSON.stringify(now, null, 2), oninput: () => told() });
  const shares = el('div', {});
  const what = el('div', { role: 'status' });
  const read = () => JSON.parse(text.value);

  function set(name, percentage) {
    const rules = read();
    rules.flags.find((f) => f.name === name).percentage = percentage;
    text.value = JSON.stringify(rules, null, 2);
    told(false);
  }
  function told(anew = true) {
    let rules;
    try {
      rules = read();
    } catch (error) {
      return void fill(what, el('p.wrong', {}, `no JSON: ${error.message}`));
    }
    if (anew) fill(shares, (Array.isArray(rules.flags) ? rules.flags : []).map((f) => {
      const number = el('input', { type: 'number', min: 0, max: 100, step: 'any', value: f.percentage, 'aria-label': `Per cent of flag ${f.name}` });
      const slider = el('input', { type: 'range', min: 0, max: 100, step: 0.5, value: f.percentage, 'aria-label': `Flag ${f.name}` });
      number.addEventListener('input', () => { slider.value = number.value; set(f.name, Number(number.value)); });
      slider.addEventListener('input', () => { number.value = slider.value; set(f.name, Number(slider.value)); });
      return el('div.row', {}, el('span', {}, `${f.name}: ${f.provider} for`), slider, number, '% of users');
    }));
    const lines = changesOf(now, rules);
    fill(what, lines.length ? el('ul', {}, lines.map((line) => el('li', {}, line))) : el('p', {}, 'Nothing is different yet.'));
  }
  told();
  return ask({
    title: 'Change the rules', button: 'Change', danger: true,
    content: [shares, text, what, el('p', {}, 'Sandboxes that live stay where they are.'),
      asCode(() => [{ method: 'PUT', path: '/v1/router', body: read() }])],
    act: () => call('PUT', '/v1/router', read()),
  });
}

export function providersPage(main) {
  const list = el('tbody', {});
  const why = el('div', {});
  const rules = el('div', {});
  const field = (name, label) => el('label.field', {}, label, el('input', { name, autocomplete: 'off' }));
  const target = () => {
    const asked = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
    asked.set('explain', 'true');
    return `/v1/route?${asked}`;
  };
  const form = el('form', {
    onsubmit: (event) => {
      event.preventDefault();
      attempt(async () => {
        const found = await get(target());
        fill(why, el('p', {}, el('strong', {}, found.provider), ` (isolation ${found.isolation}): ${found.reason}`),
          el('ol', {}, (found.steps ?? []).map((step) => el('li', {}, step))));
      });
    },
  }, field('user_id', 'User'), field('template', 'Template'), field('image', 'Image'), field('provider', 'Provider that it names'), field('command', 'Command line'),
  el('div.row', {}, el('button.main', { type: 'submit' }, 'Why?')), asCode(() => [{ method: 'GET', path: target() }]));

  fill(main, el('h1', {}, 'Providers and routing'),
    el('table.list', { 'aria-label': 'Providers' }, el('thead', {}, el('tr', {}, ['Name', 'Health', 'Isolation', 'Breaker', 'Pool', 'Can', 'Image'].map((h) => el('th', { scope: 'col' }, h)))), list),
    el('h2', {}, 'Which one would a sandbox get?'), form, why, rules);

  async function change(now) {
    if (!await askForRules(now)) return;
    say('The rules are changed');
    await show();
  }

  async function show() {
    const [{ providers }, router] = await Promise.all([get('/v1/providers'), get('/v1/router')]);
    const breakers = new Map(router.breakers.map((b) => [b.provider, b]));
    fill(list, providers.map((p) => {
      const b = breakers.get(p.name);
      return el('tr', {}, el('td', {}, p.name, p.default && ' (default)'), el(p.healthy ? 'td.state.running' : 'td.wrong', {}, p.healthy ? 'healthy' : `not healthy: ${p.error}`),
        el('td', {}, p.isolation), el('td', {}, b ? `${b.state}${b.failures_in_row ? `, ${b.failures_in_row} failures` : ''}` : '-'),
        el('td', {}, `${p.pool.ready} ready, ${p.pool.filling} being made`), el('td.wide', {}, p.capabilities.join(', ')), el('td', {}, p.image ?? '-'));
    }));
    fill(rules, router.experiment && [el('h2', {}, `Experiment ${router.experiment.name}`), router.experiment.stopped && el('p.wrong', {}, `stopped: ${router.experiment.stopped}`),
      el('table.plain', {}, el('tbody', {}, router.experiment.arms.map((a) => el('tr', {}, el('th', { scope: 'row' }, a.name), el('td', {}, a.provider), el('td', {}, `${a.made} made, ${a.failed} failed, ${Math.round(a.mean_ms)} ms`)))))],
    el('h2', {}, 'Rules'), router.rules && el('p', {}, el('button.writes', { type: 'button', onclick: () => attempt(() => change(router.rules)) }, 'Change the rules...')), router.rules ? el('pre', { tabindex: '0', 'aria-label': 'Rules' }, JSON.stringify(router.rules, null, 2))
      : el('p', {}, 'Rules name tenants and users: an admin key sees them.'), asCode([{ method: 'GET', path: '/v1/router' }]));
  }
  attempt(show);
  return {};
}
