// The tenant and, to an admin, the server at a glance. What happens a second follows from two looks.
import { get } from './api.js';
import { asCode } from './dialog.js';
import { el, fill } from './el.js';
import { bytes, time } from './format.js';
import { repeat } from './tabs.js';

const number = new Intl.NumberFormat('en');

function figures(title, rows) {
  return el('section.figures', {}, el('h2', {}, title), el('table.plain', {}, el('tbody', {}, rows.map(([name, value, more]) =>
    el('tr', {}, el('th', { scope: 'row' }, name), el('td', {}, typeof value === 'number' ? number.format(value) : value, more ? ` ${more}` : null))))));
}

const states = ({ sandboxes: s, max_sandboxes: max }) => [
  ['Running', s.running], ['Paused', s.paused], ['Being made', s.creating], ['Ending', s.stopping], ['Gone, still told of', s.gone],
  ['Most that there may be', max || 'any number']];

/** How often a second, between two looks; null at the first. */
function rate(now, before, name) {
  if (!before?.server) return null;
  const seconds = (Date.parse(now.time) - Date.parse(before.time)) / 1000;
  const n = (now.server.since_start[name] - before.server.since_start[name]) / seconds;
  return seconds > 0 && n >= 0 ? `(${Math.round(n * 10) / 10} a second)` : null;
}

export function overviewPage(main) {
  const place = el('div.overview', {});
  fill(main, el('h1', {}, 'Overview'), place, asCode([{ method: 'GET', path: '/v1/overview' }]));
  let before = null;

  const end = repeat(async () => {
    const [now, { providers }] = await Promise.all([get('/v1/overview'), get('/v1/providers')]);
    const s = now.server;
    const health = ['Providers', providers.map((p) => `${p.name}: ${p.healthy ? 'healthy' : `not healthy: ${p.error}`}`)];
    fill(place, figures(`Tenant ${now.tenant.name}`, states(now.tenant)),
      s ? [figures('All tenants', states(s)),
        figures('Now', [['Waiting for room', s.queued, `of ${number.format(s.queue_max)}`], ['Commands that run', s.commands_running],
          ['Pool', `${s.pool.ready} ready, ${s.pool.filling} being made`], ['Output kept', bytes(s.output_kept_bytes)],
          ...health[1].map((text) => [health[0], text])]),
        figures('Slowest to make, of the last hour', s.slowest_creations.length
          ? s.slowest_creations.map((c) => [c.sandbox, `${number.format(Math.round(c.ms))} ms`, `of ${c.tenant}: ${c.provider}, ${c.template}, at ${time(c.time)}`])
          : [['None was made', '']]),
        figures('Since the server started', [['Made', s.since_start.created, rate(now, before, 'created')],
          ['From the pool', s.pool.hits, `of ${number.format(s.pool.hits + s.pool.misses)}`],
          ['Could not be made', s.since_start.create_failed], ['Refused: the queue was full', s.since_start.queue_refused],
          ['Commands', s.since_start.commands, rate(now, before, 'commands')],
          ...Object.entries(s.since_start.ended).map(([cause, n]) => [`Ended: ${cause}`, n]),
          ...Object.entries(s.since_start.stopped).map(([cause, n]) => [`Commands stopped: ${cause}`, n]),
          ...Object.entries(s.since_start.refused).map(([code, n]) => [`Requests refused: ${code}`, n])])]
        : figures('Now', health[1].map((text) => [health[0], text])));
    before = now;
  });
  return { end };
}
