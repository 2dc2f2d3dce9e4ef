// The list of sandboxes. All of them are held here, and about sixty are in the page: a table with the
// rows that can be seen, and two empty ones that are as high as the rest. Filter and choice work on
// what is held. Changes come by themselves (changes.js); a row whose sandbox is as it was stays in the
// page as it is, so that nobody's click or focus is lost to somebody else's change.
import { del, get, post, streamed } from './api.js';
import { followSandboxes } from './changes.js';
import { asCode, ask, attempt, complain, saveAs, say } from './dialog.js';
import { arrange, el, fill, printable } from './el.js';
import { bytes, duration, endOf, filterOf, time } from './format.js';

const ROW = 28; // pixels; style.css says the same
const REDRAW_MS = 200; // at most so often, however much changes
const AT_ONCE = 8; // requests of a bulk action
const SIGNS = { running: '●', paused: '‖', gone: '×', creating: '…' };

export function ownerOf(s) {
  return s.user_id ? `${s.user_id}/${s.thread_id}` : '-';
}

/** State by word and by sign, so that nobody needs to see the colour. */
export function stateOf(s) {
  return el(`span.state.${s.state}`, {}, el('span', { 'aria-hidden': 'true' }, SIGNS[s.state] ?? '?'), ' ', s.state);
}

export function endText(s, now) {
  if (s.state === 'gone') return s.end_reason ?? 'ended';
  const end = endOf(s);
  return end ? duration((end - now) / 1000) : '-';
}

/** Makes a sandbox, and tells how far the pull of its image is when there is one. */
function make(body, told) {
  return body.image ? streamed('/v1/sandboxes', body, { last: 'created', news: 'image.pull', told }) : post('/v1/sandboxes', body);
}

/** Asks for what a new sandbox should be, and makes it. `from`: what of it is known, such as {snapshot} or {template}. Resolves to the sandbox. */
export async function askForNew(from = {}) {
  // Those that are always there are enough to ask with.
  const { templates } = await get('/v1/templates').catch(() => ({ templates: ['default', 'base', 'restricted'].map((name) => ({ name })) }));
  const body = (data) => {
    const made = { ...from, ...(data.get('template') ? { template: data.get('template') } : {}) };
    if (data.get('user')) Object.assign(made, { user_id: data.get('user'), thread_id: data.get('thread') || 'console' });
    if (data.get('idle')) made.idle_timeout_s = 60 * Number(data.get('idle'));
    if (data.get('memory')) made.limits = { memory_bytes: Number(data.get('memory')) << 20 };
    if (data.get('image')) made.image = data.get('image');
    return made;
  };
  const field = (name, label, more = {}) => el('label.field', {}, label, el('input', { name, autocomplete: 'off', ...more }));
  const content = [
    el('label.field', {}, 'Template', el('select', { name: 'template' }, from.snapshot && el('option', { value: '' }, "the snapshot's"),
      templates.map((t) => el('option', { value: t.name, selected: t.name === from.template }, t.title ? `${t.name}: ${t.title}` : t.name)))),
    field('user', 'User (or nobody)', { maxlength: 128 }),
    field('thread', 'Thread', { maxlength: 128, placeholder: 'console' }),
    field('idle', 'Ends when idle for, minutes', { type: 'number', min: 1, placeholder: "the server's" }),
    field('memory', 'Memory, MiB', { type: 'number', min: 16, placeholder: "the server's" }),
    field('image', 'Image (where a provider has images)', { placeholder: 'none', value: from.image ?? '' }),
  ];
  const pull = el('p', { role: 'status' });
  const far = (p) => fill(pull, `Pulling ${p.image}: ${p.layers_done} of ${p.layers} layers, ${bytes(p.bytes_done)} of ${bytes(p.bytes)}`);
  content.push(pull);
  content.push(asCode(() => [{
    method: 'POST', path: '/v1/sandboxes', body: body(new FormData(content[0].closest('form'))),
  }]));
  return ask({
    title: from.snapshot ? `New sandbox from snapshot ${from.snapshot}` : 'New sandbox', button: 'Create', content,
    act: (data) => make(body(data), far).finally(() => fill(pull)),
  });
}

export const extension = (s) => ({
  method: 'POST', path: `/v1/sandboxes/${s.id}/extend`, body: { idle_timeout_s: s.idle_timeout_s || 1800 },
});

export function listPage(main, _, me) {
  let all = []; // as the server told them, newest first
  let shown = []; // those that fit the filter
  let at = 0; // the row of the keyboard, of `shown`
  let from = -1; // the first row that is in the page
  let rows = new Map(); // those that are in the page, by id
  const chosen = new Set();

  const filter = el('input.filter', {
    type: 'search', 'aria-label': 'Filter', placeholder: 'state:running user:ann project=demo word',
    autocomplete: 'off', spellcheck: 'false', oninput: () => choose(),
  });
  const count = el('span.count', { 'aria-live': 'off' });
  const news = el('span.news', { 'aria-live': 'off' });
  const bulk = el('div.row.bulk.writes', { role: 'toolbar', 'aria-label': 'Of the selected' });
  const body = el('tbody', {});
  const heads = ['Chosen', 'ID', 'State', 'Owner', 'Template', 'Provider', 'Memory', 'Ends', 'Made', 'Made by'];
  const table = el('table.list', { 'aria-label': 'Sandboxes' },
    el('thead', {}, el('tr', {}, heads.map((h, i) => el('th', { scope: 'col', class: `c${i}` },
      i ? h : el('span.unseen', {}, h))))), body);
  const scroll = el('div.scroll', { tabindex: '0', role: 'region', 'aria-label': 'Sandboxes, scrolls', onscroll: () => draw() }, table);

  fill(main, el('h1.unseen', {}, 'Sandboxes'),
    el('div.row', {}, filter, count, el('span.grow', {}), news,
      el('button.main.writes', { type: 'button', onclick: create }, 'New')), bulk, scroll);

  // ---- what is shown ----

  /** `here`: the sandbox that the keyboard is at, which it stays with. */
  function choose(here) {
    const fits = filterOf(filter.value);
    shown = all.filter(fits);
    const found = here ? shown.findIndex((s) => s.id === here) : -1;
    if (found >= 0 && at > 0) at = found;
    at = Math.min(at, Math.max(0, shown.length - 1));
    table.setAttribute('aria-rowcount', shown.length + 1);
    fill(count, shown.length === all.length ? `${all.length} in all` : `${shown.length} of ${all.length}`);
    draw(true);
    drawBulk();
  }

  function rowOf(s, index, now) {
    const open = `#/sandbox/${s.id}`;
    return el('tr', {
      'aria-rowindex': index + 2, class: index === at ? 'at' : '', 'data-id': s.id,
      'aria-selected': chosen.has(s.id) ? 'true' : null,
      onclick: (event) => {
        at = index;
        // A box that is drawn anew in its own click never tells that it was changed.
        if (!event.target.closest('input, button, a')) draw(true);
      },
    },
    el('td', {}, el('input', {
      type: 'checkbox', checked: chosen.has(s.id), 'aria-label': `Choose ${s.id}`, onchange: () => toggle(s.id),
    })),
    el('td', {}, el('a', { href: open }, s.id)), el('td', {}, stateOf(s)), el('td', {}, ownerOf(s)),
    el('td', {}, s.image ?? s.template), el('td', {}, s.provider), el('td', {}, bytes(s.limits?.memory_bytes)),
    el('td', { title: s.state === 'gone' ? `${s.end_reason} (${time(s.ended_at)})` : '' }, el('span.ends', {}, endText(s, now)),
      s.state === 'running' && el('button.quiet.renew.writes', {
        type: 'button', 'aria-label': `Renew ${s.id}`, onclick: () => attempt(() => renew([s])),
      }, 'Renew')),
    el('td', {}, time(s.created_at)), el('td', { title: s.made_by ?? '' }, me.key_labels[s.made_by] ?? s.made_by?.slice(0, 8) ?? '-'));
  }

  /** The row as it was, if nothing that it shows is another. */
  function rowFor(s, index, now) {
    const known = rows.get(s.id);
    const isAt = index === at;
    const isChosen = chosen.has(s.id);
    if (known && known.s === s && known.index === index && known.isAt === isAt && known.isChosen === isChosen) return known;
    return { s, index, isAt, isChosen, node: rowOf(s, index, now) };
  }

  /** Time goes on, whatever else happens. */
  function tick() {
    const now = Date.now();
    for (const { s, node } of rows.values()) {
      const cell = node.querySelector('.ends');
      const text = endText(s, now);
      if (cell.textContent !== text) cell.textContent = printable(text);
      const end = endOf(s);
      cell.classList.toggle('soon', end !== null && end - now < 120000);
    }
  }

  function draw(anew = false) {
    const height = scroll.clientHeight || 600;
    const first = Math.max(0, Math.floor(scroll.scrollTop / ROW) - 6);
    if (!anew && first === from) return;
    from = first;
    const last = Math.min(shown.length, first + Math.ceil(height / ROW) + 14);
    const now = Date.now();
    const held = document.activeElement?.closest?.('tr')?.dataset.id;
    const what = document.activeElement?.tagName;
    const space = (rows) => {
      const cell = el('td', { colspan: heads.length });
      cell.style.height = `${rows * ROW}px`;
      return el('tr.space', { 'aria-hidden': 'true' }, cell);
    };
    const visible = shown.slice(first, last).map((s, i) => rowFor(s, first + i, now));
    rows = new Map(visible.map((row) => [row.s.id, row]));
    arrange(body, [first > 0 && space(first), ...visible.map((row) => row.node),
      last < shown.length && space(shown.length - last),
      !shown.length && el('tr', {}, el('td.empty', { colspan: heads.length },
        all.length ? 'Nothing fits the filter.' : state === 'reading' ? 'Reading...' : 'No sandboxes yet: New, or the key c, makes one.'))].filter(Boolean));
    tick();
    // Whoever was on a row is still there.
    if (held && !document.activeElement?.closest?.('tr')) {
      const row = [...body.children].find((r) => r.dataset.id === held);
      row?.querySelector(what === 'A' ? 'a' : what === 'BUTTON' ? 'button' : 'input')?.focus({ preventScroll: true });
    }
  }

  const picked = () => all.filter((s) => chosen.has(s.id));
  const order = (what) => (s) => ({ what: `${what} ${s.id}`, method: 'POST', path: `/v1/sandboxes/${s.id}/${what.toLowerCase()}`, body: {} });

  /** Drawn anew only when it says something else: whatever changes elsewhere, the focus stays on its buttons. */
  let told = '';
  function drawBulk() {
    const many = chosen.size ? picked().length : 0;
    const isAll = shown.every((s) => chosen.has(s.id));
    const now = `${many} ${isAll} ${shown.length}`;
    if (now === told) return;
    told = now;
    const button = (kind, text, f) => el(kind, { type: 'button', onclick: () => attempt(f) }, text);
    fill(bulk, many ? [el('span', {}, `${many} selected`),
      !isAll && button('button.quiet', `Select all ${shown.length}`, () => { shown.forEach((s) => chosen.add(s.id)); choose(); }),
      button('button.quiet', 'None', () => { chosen.clear(); choose(); }),
      button('button', 'Renew', () => renew(picked())),
      button('button', 'Pause', () => each('Paused', picked(), (s) => post(`/v1/sandboxes/${s.id}/pause`))),
      button('button', 'Resume', () => each('Resumed', picked(), (s) => post(`/v1/sandboxes/${s.id}/resume`))),
      button('button.danger', 'End...', () => end(picked())),
      button('button', 'Export', () => saveAs('sandboxes.jsonl', picked().map((s) => `${JSON.stringify(s)}\n`).join(''))),
      asCode(() => {
        const list = picked();
        return [...list.map((s) => ({ what: `Renew ${s.id}`, ...extension(s) })).slice(0, 2), ...list.map(order('Pause')).slice(0, 2),
          ...list.map(order('Resume')).slice(0, 2), ...list.map((s) => ({ what: `End ${s.id}`, method: 'DELETE', path: `/v1/sandboxes/${s.id}` }))];
      })] : null);
  }

  // ---- what is done ----

  /** Some at a time; says how many worked, and the first failure. */
  async function each(what, list, f) {
    const rest = [...list];
    const failed = [];
    let done = 0;
    await Promise.all(Array.from({ length: AT_ONCE }, async () => {
      for (let s = rest.shift(); s; s = rest.shift()) {
        try {
          await f(s);
          done++;
        } catch (error) {
          failed.push([s, error]);
        }
      }
    }));
    say(`${what}: ${done} of ${list.length}`);
    if (failed.length) complain(new Error(`${failed.length} failed; ${failed[0][0].id}: ${failed[0][1].message}`));
  }

  const renew = (list) => each('Renewed', list.filter((s) => s.state !== 'gone'), (s) => {
    const { path, body: how } = extension(s);
    return post(path, how);
  });

  function end(list) {
    const live = list.filter((s) => s.state !== 'gone');
    if (!live.length) return say('These have ended already');
    return ask({
      title: live.length === 1 ? `End sandbox ${live[0].id}?` : `End ${live.length} sandboxes?`, button: 'End', danger: true,
      content: [el('p', {}, 'Their processes are killed and their files deleted. This cannot be undone.'),
        asCode(live.map((s) => ({ method: 'DELETE', path: `/v1/sandboxes/${s.id}` })))],
      act: async () => {
        live.forEach((s) => chosen.delete(s.id));
        await each('Ended', live, (s) => del(`/v1/sandboxes/${s.id}`));
      },
    });
  }

  async function create() {
    const made = await askForNew();
    if (!made) return;
    say(`Made ${made.id}`);
  }

  function toggle(id) {
    if (!chosen.delete(id)) chosen.add(id);
    draw(true);
    drawBulk();
  }

  function move(by) {
    if (!shown.length) return;
    at = Math.max(0, Math.min(shown.length - 1, at + by));
    const top = at * ROW;
    if (top < scroll.scrollTop) scroll.scrollTop = top;
    if (top + 3 * ROW > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = top + 3 * ROW - scroll.clientHeight;
    draw(true);
    body.querySelector('tr.at a')?.focus({ preventScroll: true });
  }

  // ---- news ----

  let state = 'reading';
  let latest = new Map();
  let timer = null;

  function redraw() {
    timer = null;
    const here = shown[at]?.id;
    all = [...latest.values()].sort((a, b) => (a.created_at < b.created_at ? 1 : a.created_at > b.created_at ? -1 : a.id < b.id ? 1 : -1));
    for (const id of chosen) if (!latest.has(id)) chosen.delete(id);
    choose(here);
    fill(news, { live: '● live', reading: '… reading', lost: '× no connection: trying again' }[state]);
    news.className = `news is-${state}`;
  }

  let failing = false;
  const follower = followSandboxes((sandboxes, now) => {
    const isUrgent = now !== state || !all.length;
    latest = sandboxes;
    state = now;
    failing &&= now !== 'live';
    if (isUrgent) {
      clearTimeout(timer);
      redraw();
    } else {
      timer ??= setTimeout(redraw, REDRAW_MS);
    }
  }, (error) => {
    if (!failing) complain(error);
    failing = true;
  });
  const clock = setInterval(tick, 1000);

  const here = () => shown[at];
  return {
    end: () => {
      follower.end();
      clearTimeout(timer);
      clearInterval(clock);
    },
    keys: {
      j: ['next', () => move(1)], k: ['the one before', () => move(-1)],
      x: ['select or not', () => here() && toggle(here().id)],
      Enter: ['open', () => { if (here()) location.hash = `#/sandbox/${here().id}`; }],
      t: ['terminal', () => { if (here()) location.hash = `#/sandbox/${here().id}/terminal`; }],
      e: ['renew', () => here() && attempt(() => renew([here()])), 'writes'],
      d: ['end', () => here() && end([here()]), 'writes'],
      c: ['new sandbox', create, 'writes'],
      '/': ['filter', () => filter.focus()],
    },
  };
}
