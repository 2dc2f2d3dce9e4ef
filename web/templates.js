// Templates: what sandboxes can be made from, and what each of them brings and needs; those that the tenant has built, with the
// log of their builds.
import { del, get, post } from './api.js';
import { asCode, ask, attempt, say } from './dialog.js';
import { el, fill } from './el.js';
import { bytes } from './format.js';
import { askForNew } from './list.js';
import { repeat, tableOf } from './tabs.js';

const LOG_SHOWN = 2000; // lines

/** What it says of itself, in few words. */
function brings(t) {
  if (t.kind === 'built') return `${t.state}${t.message ? `: ${t.message}` : ''}; from ${t.base ?? 'nothing'}, ${t.builds} build${t.builds === 1 ? '' : 's'}${t.tags.length ? `, tags ${t.tags.map((tag) => tag.tag).join(', ')}` : ''}`;
  if (t.kind === 'alias') return `another name of ${t.of}`;
  const ports = (t.ports ?? []).map((p) => `port ${p.port}${p.title ? ` (${p.title})` : ''}`).join(', ');
  return [t.image && `image ${t.image}`, t.start && `starts ${t.start}`, ports].filter(Boolean).join('; ') || `profile ${t.profile}`;
}

const more = (t) => t.title ?? (t.kind === 'built' ? bytes(t.size_bytes) : '');

function needs(t) {
  return [...t.programs ?? [], ...(t.secrets ?? []).map((s) => `secret ${s.secret} for ${s.host}`), ...(t.allow ?? []).map((rule) => `a way out to ${rule}`)].join(', ');
}

export function templatesPage(main, _, me) {
  const [table, body] = tableOf('Templates', ['Name', 'Is', 'Needs', 'Installs where it is missing', 'Actions']);
  const log = el('div', {});
  const canBuild = me.features.includes('snapshots'); // what a build makes is one
  let drawn = '';
  let following = null;
  fill(main, el('div.row', {}, el('h1', {}, 'Templates'), el('span.grow', {}),
    canBuild && el('button.main.writes', { type: 'button', onclick: () => attempt(build) }, 'Build one')),
    table, log, asCode([{ method: 'GET', path: '/v1/templates' }]));

  async function use(t) {
    const made = await askForNew({ template: t.name });
    if (made) location.hash = t.ports?.length ? `#/sandbox/${made.id}/ports` : `#/sandbox/${made.id}`;
  }

  async function build() {
    const content = [el('label.field', {}, 'Name', el('input', { name: 'name', required: true, maxlength: 63, autocomplete: 'off', pattern: '[A-Za-z0-9][A-Za-z0-9._\\-]*' })),
      el('label.field', {}, 'From the template', el('input', { name: 'from', value: 'base', required: true, maxlength: 63, autocomplete: 'off' })),
      el('label', {}, 'Commands, one in a line', el('textarea.cell', { name: 'lines', rows: '6', required: true, spellcheck: 'false' })),
      el('p', {}, 'Each is run in a sandbox of its own; what they leave are the files of the template.')];
    const wanted = (data) => ({ name: data.get('name'), template: data.get('from'), steps: data.get('lines').split(/\r?\n/).filter((line) => line.trim()).map((line) => ({ type: 'RUN', args: [line] })) });
    content.push(asCode(() => [{ method: 'POST', path: '/v1/templates', body: wanted(new FormData(content[0].closest('form'))) }]));
    const made = await ask({ title: 'Build a template', button: 'Build', content, act: (data) => post('/v1/templates', wanted(data)) });
    if (!made) return;
    await read();
    show({ name: made.name ?? made.template, build: made.build ?? made.id });
  }

  /** The log of a build, which goes on while it does. */
  function show({ name, build: id }) {
    following?.();
    const lines = el('pre.whole', { tabindex: '0', role: 'log', 'aria-label': `Log of ${name}` });
    const state = el('span', {});
    let offset = 0;
    const end = () => { following?.(); following = null; };
    const cancel = el('button.writes', { type: 'button', onclick: () => attempt(() => del(`/v1/templates/${encodeURIComponent(name)}/builds/${id}`)) }, 'Cancel the build');
    fill(log, el('div.row', {}, el('h2', {}, `Build of ${name}`), state, el('span.grow', {}), cancel,
      el('button', { type: 'button', onclick: () => { end(); fill(log); } }, 'Close')), lines);
    following = repeat(async () => {
      for (;;) {
        const told = await get(`/v1/templates/${encodeURIComponent(name)}/builds/${id}?offset=${offset}`);
        fill(state, `${told.build.state}${told.build.message ? `: ${told.build.message}` : ''}`);
        const more = told.next_offset !== offset;
        offset = told.next_offset;
        for (const line of told.log) lines.append(el('div', {}, `${line.step} ${line.text}`));
        while (lines.children.length > LOG_SHOWN) lines.firstChild.remove();
        if (more && told.log.length) continue;
        cancel.hidden = told.build.finished_at !== null;
        if (cancel.hidden) { end(); await read(); }
        return;
      }
    });
  }

  const remove = (t) => ask({
    title: `Delete template ${t.name}?`, button: 'Delete', danger: true,
    content: [el('p', {}, 'Sandboxes that were made from it stay.'), asCode([{ method: 'DELETE', path: `/v1/templates/${t.id}` }])],
    act: async () => {
      await del(`/v1/templates/${t.id}`);
      say(`Deleted ${t.name}`);
      await read();
      return true;
    },
  });

  const button = (what, label, f) => el(what === 'Log' ? 'button.quiet' : 'button.quiet.writes', { type: 'button', 'aria-label': label, onclick: f }, what);
  async function read() {
    const { templates } = await get('/v1/templates');
    const now = JSON.stringify(templates);
    if (now === drawn) return;
    drawn = now;
    fill(body, templates.map((t) => el('tr', {}, el('td', {}, t.name, more(t) && el('div.hint', {}, more(t))), el('td.wide', {}, brings(t)), el('td.wide', {}, needs(t)),
      el('td.wide', {}, (t.packages ?? []).join(', ')),
      el('td', {}, (t.kind !== 'built' || t.tags.length > 0) && button('New sandbox', `New sandbox from ${t.name}`, () => attempt(() => use(t))),
        t.kind === 'built' && [button('Log', `Log of ${t.name}`, () => show(t)), button('Delete', `Delete ${t.name}`, () => attempt(() => remove(t)))]))));
  }

  const end = repeat(read);
  return { end: () => { end(); following?.(); }, keys: canBuild ? { c: ['build a template', () => attempt(build), 'writes'] } : {} };
}
