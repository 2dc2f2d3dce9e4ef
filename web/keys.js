// API keys, for who has an admin key: made, shown once, and revoked.
import { del, get, post } from './api.js';
import { asCode, ask, attempt, say } from './dialog.js';
import { el, fill } from './el.js';
import { time } from './format.js';
import { tableOf } from './tabs.js';

const ROLES = [['operator', "works with the tenant's sandboxes"], ['reader', 'looks, and nothing else'], ['admin', 'changes what concerns all tenants, too']];

const minute = (at) => el('td', { title: time(at) }, time(at).slice(0, 16));

function stateOf(k) {
  if (k.revoked_at) return `× revoked ${time(k.revoked_at)}`;
  if (!k.expires_at) return '● valid';
  return Date.parse(k.expires_at) > Date.now() ? `● until ${time(k.expires_at)}` : `× expired ${time(k.expires_at)}`;
}

export function keysPage(main, _, me) {
  const [table, body] = tableOf('Keys', ['ID', 'Tenant', 'Label', 'Role', 'Made', 'Last used', 'Logins', 'State', 'Actions']);
  const shown = el('div', { role: 'status' });
  fill(main, el('div.row', {}, el('h1', {}, 'Keys'), el('span.grow', {}), el('button.main', { type: 'button', onclick: () => attempt(make) }, 'New key')), shown, table,
    asCode([{ method: 'GET', path: '/v1/keys' }]));

  async function make() {
    const asked = (data) => ({ tenant: data.get('tenant'), role: data.get('role'), ...(data.get('label') ? { label: data.get('label') } : {}),
      ...(Number(data.get('days')) > 0 ? { expires_in_s: Math.round(Number(data.get('days')) * 86400) } : {}) });
    const content = [
      el('label.field', {}, 'Tenant', el('input', { name: 'tenant', required: true, maxlength: 63, value: me.tenant, autocomplete: 'off' })),
      el('label.field', {}, 'Label', el('input', { name: 'label', maxlength: 100, autocomplete: 'off' })),
      el('label.field', {}, 'Role', el('select', { name: 'role' }, ROLES.map(([role, what]) => el('option', { value: role }, `${role}: ${what}`)))),
      el('label.field', {}, 'Good for, days', el('input', { name: 'days', type: 'number', min: '0', max: '3660', step: 'any', placeholder: 'until it is revoked' })),
    ];
    content.push(asCode(() => [{ method: 'POST', path: '/v1/keys', body: asked(new FormData(content[0].closest('form'))) }]));
    const made = await ask({ title: 'New key', button: 'Make', content, act: (data) => post('/v1/keys', asked(data)) });
    if (!made) return;
    fill(shown, el('p', {}, `The key of ${made.tenant}${made.label ? `, ${made.label}` : ''}. It is shown this once:`),
      el('pre', { tabindex: '0', 'aria-label': 'The new key' }, made.key),
      el('div.row', {}, el('button', { type: 'button', onclick: () => fill(shown) }, 'I have it')));
    await show();
  }

  const revoke = (k) => ask({
    title: `Revoke ${k.id}?`, button: 'Revoke', danger: true,
    content: [el('p', {}, `${k.tenant}${k.label ? `, ${k.label}` : ''}: requests with it are refused from then on, and ${k.logins === 0 ? 'no login ends' : k.logins === 1 ? 'one login ends' : `${k.logins} logins end`}. What it has started goes on.`,
      k.id === me.key_id && ' It is the key that you are logged in with.'), asCode([{ method: 'DELETE', path: `/v1/keys/${k.id}` }])],
    act: async () => {
      await del(`/v1/keys/${k.id}`);
      say(`Revoked ${k.id}`);
      await show();
      return true;
    },
  });

  async function show() {
    const { keys } = await get('/v1/keys');
    fill(body, keys.map((k) => el('tr', {}, el('td.mono', {}, k.id), el('td', {}, k.tenant), el('td', {}, k.label ?? '-'), el('td', {}, k.role), minute(k.created_at),
      minute(k.last_used_at), el('td', {}, k.logins || '-'), el(stateOf(k).startsWith('●') ? 'td.state.running' : 'td.state.gone', {}, stateOf(k)),
      el('td', {}, !k.revoked_at && el('button.quiet', { type: 'button', 'aria-label': `Revoke ${k.id}`, onclick: () => revoke(k) }, 'Revoke')))));
  }

  attempt(show);
  return { keys: { c: ['new key', () => attempt(make), 'writes'] } };
}
