// One sandbox: its head with what is left of its time, and a tab for each thing that it has.
import { del, get, post } from './api.js';
import { codeTab } from './code.js';
import { asCode, ask, attempt, say } from './dialog.js';
import { el, fill } from './el.js';
import { filesTab } from './files.js';
import { endText, extension, ownerOf, stateOf } from './list.js';
import { aboutTab, historyTab, metricsTab, portsTab, processesTab } from './tabs.js';
import { askForSnapshot } from './snapshots.js';
import { terminalView } from './term.js';

const REFRESH_MS = 2000;

/** Terminals: the shells of the sandbox that are terminals, running or ended, one shown at a time. */
function terminalTab(main, { base, me }) {
  const list = el('div.row.tabs', { role: 'toolbar', 'aria-label': 'Terminals' });
  const place = el('div.place', {});
  let view = null;
  let shown = null;
  let known = [];
  const titles = new Map();
  const isReader = me.role === 'reader';
  const watching = el('input', { type: 'checkbox', checked: isReader, onchange: () => { const p = known.find((one) => one.process_id === shown); if (p) open(p); } });
  const sought = el('input', {
    type: 'search', 'aria-label': 'Find in the terminal. Enter looks further up, Shift+Enter down.', placeholder: 'find', autocomplete: 'off', spellcheck: 'false',
    onkeydown: (event) => {
      if (event.key !== 'Enter' || !sought.value || !view) return;
      event.preventDefault();
      if (!view.find(sought.value, !event.shiftKey)) say(`'${sought.value}' is not ${event.shiftKey ? 'below' : 'above'}`);
    },
  });
  const shell = { argv: ['bash', '-l'], pty: true, rows: 24, cols: 80, env: { TERM: 'xterm-256color' } };
  fill(main, el('div.row', {}, list, el('span.grow', {}), el('label.inline.writes', { title: 'Nothing is typed, and looking does not keep the sandbox' }, watching, 'only watch'), sought), place,
    el('div.writes', {}, asCode([{ what: 'New terminal', method: 'POST', path: `${base}/processes`, body: shell }])));

  function drawList() {
    fill(list, known.map((p, i) => el('button', {
      type: 'button', 'aria-pressed': String(p.process_id === shown), onclick: () => open(p),
    }, `${titles.get(p.process_id) || p.command} ${i + 1}${p.running ? '' : ' (ended)'}`)),
    el('button.main.writes', { type: 'button', onclick: () => attempt(create) }, 'New terminal'));
  }

  function open(p) {
    view?.end();
    shown = p.process_id;
    view = terminalView({
      base, process: p, watches: watching.checked,
      tell: ({ title, ended }) => {
        const before = titles.get(p.process_id);
        if (title !== undefined && title !== before && (title || before)) { titles.set(p.process_id, title); drawList(); }
        if (ended !== undefined && p.running) { p.running = false; drawList(); }
      },
    });
    fill(place, view.node);
    view.focus();
    drawList();
  }

  async function create() {
    const made = await post(`${base}/processes`, shell);
    watching.checked = false;
    known.push(made);
    open(made);
  }

  attempt(async () => {
    known = (await get(`${base}/processes?observe=true`)).processes.filter((p) => p.pty && (p.running || !p.forgotten))
      .sort((a, b) => a.started_at.localeCompare(b.started_at)).slice(-12);
    drawList();
    const last = known.filter((p) => p.running).at(-1) ?? null;
    if (last) open(last);
    else if (isReader) fill(place, el('p', {}, 'No terminal is open here.'));
    else await create();
  });
  return { end: () => view?.end(), keys: { n: ['new terminal', () => attempt(create), 'writes'], f: ['find in the terminal', () => sought.focus()] } };
}

const TABS = {
  terminal: ['Terminal', terminalTab], files: ['Files', filesTab], code: ['Run code', codeTab, 'writes'], processes: ['Processes', processesTab],
  ports: ['Ports', portsTab], metrics: ['Metrics', metricsTab], history: ['History', historyTab, 'audit'], about: ['About', aboutTab],
};

export function sandboxPage(main, rest, me) {
  const [said, name = 'terminal'] = rest.split('/');
  const id = said.replace(/[^a-z0-9]/g, '');
  const tabs = Object.entries(TABS).filter(([, [, , kind]]) => !kind || (kind === 'writes' ? me.role !== 'reader' : me.features.includes(kind)));
  const tab = tabs.some(([key]) => key === name) ? name : 'terminal';
  const base = `/v1/sandboxes/${encodeURIComponent(id)}`;
  const head = el('div.row.head', {});
  const inside = el('section.inside', { 'aria-label': TABS[tab][0] });
  let sandbox = null;
  let shown = null;
  let ended = false;

  fill(main, el('div.row.top', {}, el('h1', {}, el('a', { href: '#/' }, 'Sandboxes'), ' / ', el('span.mono', {}, id)), head),
    el('nav.row.tabs', { 'aria-label': 'Of this sandbox' }, tabs.map(([key, [title]]) => el('a', {
      href: `#/sandbox/${id}/${key}`, 'aria-current': key === tab ? 'page' : null,
    }, title))), inside);

  const act = (what, how) => attempt(async () => {
    await post(`${base}/${what}`, how);
    say(`${what}: done`);
    await refresh();
  });

  const snapshot = () => attempt(async () => {
    const made = await askForSnapshot(base);
    if (made) say(`Snapshot ${made.name ?? made.id}`);
  });
  const fork = () => attempt(async () => {
    const made = await ask({
      title: `Fork sandbox ${id}?`, button: 'Fork',
      content: [el('p', {}, 'Another sandbox with a copy of its files and the same settings. Processes are not copied.'), asCode([{ method: 'POST', path: `${base}/fork`, body: {} }])],
      act: () => post(`${base}/fork`),
    });
    if (made) location.hash = `#/sandbox/${made.id}`;
  });

  function end() {
    ask({
      title: `End sandbox ${id}?`, button: 'End', danger: true,
      content: [el('p', {}, 'Its processes are killed and its files deleted. This cannot be undone.'), asCode([{ method: 'DELETE', path: base }])],
      act: async () => {
        await del(base);
        location.hash = '#/';
      },
    });
  }

  const time = el('span', {});
  function drawHead() {
    const live = sandbox.state === 'running' || sandbox.state === 'paused';
    fill(time, endText(sandbox, Date.now()));
    fill(head, stateOf(sandbox), el('span', {}, ownerOf(sandbox)), el('span', {}, sandbox.image ?? sandbox.template), el('span', {}, 'ends: ', time),
      el('span.grow', {}), live && [
        el('button.writes', { type: 'button', onclick: () => act('extend', extension(sandbox).body) }, 'Renew'),
        sandbox.state === 'running' ? el('button.writes', { type: 'button', onclick: () => act('pause') }, 'Pause')
          : el('button.writes', { type: 'button', onclick: () => act('resume') }, 'Resume'),
        me.features.includes('snapshots') && [el('button.writes', { type: 'button', onclick: snapshot }, 'Snapshot...'), el('button.writes', { type: 'button', onclick: fork }, 'Fork...')],
        el('button.danger.writes', { type: 'button', onclick: end }, 'End...'),
        el('div.writes', {}, asCode(() => [{ what: 'Renew', ...extension(sandbox) },
          ...(sandbox.state === 'running' ? ['Pause'] : ['Resume']).map((what) => ({ what, method: 'POST', path: `${base}/${what.toLowerCase()}`, body: {} })),
          ...(me.features.includes('snapshots') ? [['Snapshot', 'snapshots'], ['Fork', 'fork']] : []).map(([what, where]) => ({ what, method: 'POST', path: `${base}/${where}`, body: {} })),
          { what: 'End', method: 'DELETE', path: base }]))]);
  }

  async function refresh() {
    const read = await get(base);
    if (ended) return;
    const changed = !sandbox || read.state !== sandbox.state; // what its use moves on is the time alone
    sandbox = read;
    // Buttons are drawn anew only when they change: nobody's focus is taken.
    if (changed) drawHead();
    else fill(time, endText(sandbox, Date.now()));
  }

  let timer;
  async function turn() {
    if (!document.hidden && shown) await refresh().catch(() => {});
    if (!ended) timer = setTimeout(turn, REFRESH_MS);
  }

  const page = { keys: { r: ['renew', () => act('extend', extension(sandbox).body), 'writes'], d: ['end', end, 'writes'] } };
  attempt(async () => {
    await refresh();
    if (ended) return;
    const needsLife = tab !== 'about' && tab !== 'history';
    if (sandbox.state === 'gone' && needsLife) fill(inside, el('p', {}, `It has ended: ${sandbox.end_reason ?? ''}. History and About are still there.`));
    else shown = TABS[tab][1](inside, { base, id, sandbox, me }) ?? {};
    Object.assign(page.keys, shown?.keys);
    turn();
  });
  page.end = () => {
    ended = true;
    clearTimeout(timer);
    shown?.end?.();
  };
  return page;
}
