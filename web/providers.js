// Providers and routing: what sandboxes are made of here, and which one a sandbox would get, and why.
import { get } from './api.js';
import { asCode, attempt } from './dialog.js';
import { el, fill } from './el.js';

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

  attempt(async () => {
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
    el('h2', {}, 'Rules'), router.rules ? el('pre', { tabindex: '0', 'aria-label': 'Rules' }, JSON.stringify(router.rules, null, 2))
      : el('p', {}, 'Rules name tenants and users: an admin key sees them.'), asCode([{ method: 'GET', path: '/v1/router' }]));
  });
  return {};
}
