// Snapshots: copies of a sandbox's files, which outlive it, and what is made from them.
import { del, get, post } from './api.js';
import { asCode, ask, attempt, say } from './dialog.js';
import { el, fill } from './el.js';
import { time } from './format.js';
import { askForNew } from './list.js';
import { tableOf } from './tabs.js';

/** Asks for a name and keeps a copy of the sandbox's files. */
export function askForSnapshot(base) {
  const body = (data) => (data.get('name') ? { name: data.get('name') } : {});
  const content = [el('label.field', {}, 'Name (or none)', el('input', { name: 'name', maxlength: 127, autocomplete: 'off', pattern: '[A-Za-z0-9._\\-]+(:[A-Za-z0-9._\\-]+)?', title: 'NAME or NAME:TAG of letters, digits and ._-' })),
    el('p', {}, 'Its processes stand still while the files are copied. An older snapshot of this name keeps its id.')];
  content.push(asCode(() => [{ method: 'POST', path: `${base}/snapshots`, body: body(new FormData(content[0].closest('form'))) }]));
  return ask({ title: 'Take a snapshot', button: 'Take', content, act: (data) => post(`${base}/snapshots`, body(data)) });
}

export function snapshotsPage(main) {
  const [table, body] = tableOf('Snapshots', ['ID', 'Name', 'Of sandbox', 'Template', 'Provider', 'Made', 'Actions']);
  const more = el('button', { type: 'button', hidden: true, onclick: () => attempt(() => read(false)) }, 'Older');
  let cursor = null;
  fill(main, el('h1', {}, 'Snapshots'), table, el('div.row', {}, more), asCode([{ method: 'GET', path: '/v1/snapshots' }]));

  const remove = (s) => ask({
    title: `Delete snapshot ${s.name ?? s.id}?`, button: 'Delete', danger: true,
    content: [el('p', {}, 'Sandboxes that were made from it stay.'), asCode([{ method: 'DELETE', path: `/v1/snapshots/${s.id}` }])],
    act: async () => {
      await del(`/v1/snapshots/${s.id}`);
      say(`Deleted ${s.id}`);
      await read(true);
      return true;
    },
  });
  async function use(s) {
    const made = await askForNew({ snapshot: s.id });
    if (made) location.hash = `#/sandbox/${made.id}`;
  }

  async function read(anew) {
    const page = await get(`/v1/snapshots?limit=200${!anew && cursor ? `&cursor=${encodeURIComponent(cursor)}` : ''}`);
    cursor = page.next_cursor;
    more.hidden = !cursor;
    if (anew) fill(body);
    body.append(...page.snapshots.map((s) => el('tr', {}, el('td.mono', {}, s.id), el('td', {}, s.name ?? '-'),
      el('td', {}, el('a', { href: `#/sandbox/${s.sandbox_id}/history` }, s.sandbox_id)), el('td', {}, s.template), el('td', {}, s.provider), el('td', {}, time(s.created_at)),
      el('td', {}, el('button.quiet.writes', { type: 'button', 'aria-label': `New sandbox from ${s.id}`, onclick: () => attempt(() => use(s)) }, 'New sandbox'),
        el('button.quiet.writes', { type: 'button', 'aria-label': `Delete ${s.id}`, onclick: () => remove(s) }, 'Delete')))));
    if (!body.children.length) fill(body, el('tr', {}, el('td.empty', { colspan: '7' }, 'None yet: the page of a sandbox takes one.')));
  }

  attempt(() => read(true));
  return {};
}
