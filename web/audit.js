// The audit log: what was done, by whom, and what came of it; filtered by the server, and saved as it is.
import { get } from './api.js';
import { asCode, attempt, saveAs, say } from './dialog.js';
import { el, fill } from './el.js';
import { time } from './format.js';
import { eventCells, tableOf } from './tabs.js';

const PAGE = 200;
const EXPORT_MAX = 100000; // events that pass through the page's memory

export function auditPage(main, _, me) {
  const [table, body] = tableOf('Audit', ['Time', 'Action', 'What', 'Result', 'Took', 'Key', 'Sandbox', 'Tenant']);
  const more = el('button', { type: 'button', hidden: true, onclick: () => attempt(() => read(false)) }, 'Older');
  const field = (name, label, hint) => el('label.inline', {}, label, el('input', { name, autocomplete: 'off', spellcheck: 'false', placeholder: hint }));
  const form = el('form.row', {
    role: 'search', onsubmit: (event) => {
      event.preventDefault();
      attempt(() => read(true));
    },
  }, field('action', 'Action', 'file. or sandbox.create'), field('key', 'Key'), field('result', 'Result', 'ok, denied ...'), field('sandbox', 'Sandbox'),
  me.role === 'admin' && field('tenant', 'Tenant', '* for all'), el('button.main', { type: 'submit' }, 'Show'),
  el('button', { type: 'button', onclick: () => attempt(save) }, 'Export'));
  let cursor = null;

  const target = (from, limit) => {
    const asked = new URLSearchParams([...new FormData(form)].filter(([, value]) => value.trim()).map(([name, value]) => [name, value.trim()]));
    asked.set('limit', limit);
    if (from) asked.set('cursor', from);
    return `/v1/audit?${asked}`;
  };
  fill(main, el('h1', {}, 'Audit'), form, table, el('div.row', {}, more), asCode(() => [{ method: 'GET', path: target(null, PAGE) }]));

  const row = (e) => el('tr', {}, eventCells(e), el('td', {}, e.sandbox ? el('a', { href: `#/sandbox/${e.sandbox}` }, e.sandbox) : ''), el('td', {}, e.tenant ?? ''));

  async function read(anew) {
    const page = await get(target(anew ? null : cursor, PAGE));
    cursor = page.next_cursor;
    more.hidden = !cursor;
    if (anew) fill(body);
    body.append(...page.events.map(row));
    if (!body.children.length) fill(body, el('tr', {}, el('td.empty', { colspan: '8' }, cursor ? 'Nothing in the newest part: Older looks further.' : 'Nothing fits.')));
  }

  /** Every event that fits, as lines of JSON, oldest first as in the log itself. */
  async function save() {
    const lines = [];
    let from = null;
    do {
      const page = await get(target(from, 1000));
      lines.push(...page.events.map((e) => JSON.stringify(e)));
      from = page.next_cursor;
    } while (from && lines.length < EXPORT_MAX);
    saveAs(`audit-${time(new Date().toISOString()).slice(0, 10)}.jsonl`, `${lines.reverse().join('\n')}\n`);
    say(`${lines.length} events${from ? ', the newest; GET /v1/audit has the rest' : ''}`);
  }

  attempt(() => read(true));
  return {};
}
