// The console: the frame of every page, which page is shown, keys, and light or dark.
//
// The address says which page: `#/` the list, `#/sandbox/ID/...` one sandbox. A page is a function that
// fills `main` and gives back what ends it: timers, sockets, listeners, and the keys that it knows.
import { get, isLoggedIn, logout, onLogin, recent } from './api.js';
import { asCode, attempt, complain, places, ask } from './dialog.js';
import { el, fill } from './el.js';
import { auditPage } from './audit.js';
import { keysPage } from './keys.js';
import { listPage } from './list.js';
import { loginPage, takeCode } from './login.js';
import { overviewPage } from './overview.js';
import { providersPage } from './providers.js';
import { sandboxPage } from './sandbox.js';
import { snapshotsPage } from './snapshots.js';
import { templatesPage } from './templates.js';

const THEME = 'paddock.theme';

/** In the order of the navigation: the address begins with `at`. A page that only some roles may see, or whose API a server may
 * be without, says so. */
const pages = [
  { at: '#/', title: 'Sandboxes', show: listPage, exact: true },
  { at: '#/sandbox/', title: 'Sandbox', show: sandboxPage, hidden: true },
  { at: '#/overview', title: 'Overview', show: overviewPage },
  { at: '#/templates', title: 'Templates', show: templatesPage },
  { at: '#/snapshots', title: 'Snapshots', show: snapshotsPage, feature: 'snapshots' },
  { at: '#/providers', title: 'Providers', show: providersPage },
  { at: '#/audit', title: 'Audit', show: auditPage, feature: 'audit' },
  { at: '#/keys', title: 'Keys', show: keysPage, role: 'admin' },
];

const main = el('main', { id: 'main', tabindex: '-1' });
const nav = el('nav', { 'aria-label': 'Pages' });
const who = el('span.who', {});
const frame = el('div.frame', {},
  el('a.skip', { href: '#main', onclick: (event) => { event.preventDefault(); main.focus(); } }, 'Skip to the page'),
  el('header', {}, el('a.brand', { href: '#/' }, 'Paddock'), who, el('span.grow', {}),
    el('button.quiet', { type: 'button', onclick: showCode }, 'As code'),
    el('button.quiet', { type: 'button', onclick: showKeys }, '? Keys'),
    el('button.quiet', { type: 'button', onclick: changeTheme }, 'Light or dark'),
    el('button.quiet', { type: 'button', onclick: () => attempt(logout) }, 'Log out')),
  nav, main);

let current = null; // what the page that is shown gave back
let turns = 0; // how often a page was to be shown: of two that wait, the last
let again = null;

function leave() {
  current?.end?.();
  current = null;
}

async function show() {
  leave();
  clearTimeout(again);
  const code = takeCode();
  if (code || !isLoggedIn()) {
    frame.classList.add('out');
    document.title = 'Log in - Paddock';
    loginPage(main, code);
    return;
  }

  // Which pages there are depends on who asks; what a page shows is still the server's to say.
  const turn = ++turns;
  let me;
  try {
    me = await get('/v1/console/me');
  } catch (error) {
    if (turn === turns && isLoggedIn()) {
      complain(error);
      again = setTimeout(show, 2000);
    }
    return;
  }
  if (turn !== turns || !isLoggedIn()) return;

  frame.classList.remove('out');
  frame.classList.toggle('reader', me.role === 'reader');
  fill(who, `tenant ${me.tenant}, key ${me.key_id.slice(0, 8)} (${me.role}), ${me.version}`);
  const mine = pages.filter((p) => (!p.role || p.role === me.role) && (!p.feature || me.features.includes(p.feature)));
  const address = location.hash || '#/';
  const page = mine.find((p) => (p.exact ? address === p.at : address.startsWith(p.at))) ?? pages[0];
  document.title = `${page.title} - Paddock`;
  fill(nav, mine.filter((p) => !p.hidden).map((p) => el('a', {
    href: p.at, 'aria-current': p === page ? 'page' : null,
  }, p.title)));
  fill(main);
  current = page.show(main, address.slice(page.at.length), me) ?? {};
}

// ---- keys ----

const common = { '?': ['all keys', showKeys], g: ['to the list', () => { location.hash = '#/'; }], y: ['what was done, as code', showCode] };

/** The keys of the page; those that change something only for who may. */
function known() {
  const own = Object.entries(current?.keys ?? {}).filter(([, [, , kind]]) => kind !== 'writes' || !frame.classList.contains('reader'));
  return { ...Object.fromEntries(own), ...common };
}

/** Every action of the page can be had as a line for a shell or as Python. */
function showCode() {
  ask({
    title: 'What was done last', button: 'Close',
    content: recent.length ? recent.map((call) => el('div.done', {}, el('p.mono', {}, `${call.method} ${call.path}`), asCode([call])))
      : [el('p', {}, 'Nothing yet. Whatever a button or a key does is shown here as a line for a shell and as Python.')],
  });
}

function showKeys() {
  ask({
    title: 'Keys', button: 'Close',
    content: [el('table.plain', {}, el('tbody', {}, Object.entries(known()).map(([key, [what]]) =>
      el('tr', {}, el('th', { scope: 'row' }, el('kbd', {}, key)), el('td', {}, what)))))],
  });
}

addEventListener('keydown', (event) => {
  const at = event.target;
  const types = at.closest('input, textarea, select, [contenteditable], .terminal, dialog');
  if (types || event.ctrlKey || event.altKey || event.metaKey || !isLoggedIn()) return;
  const found = known()[event.key];
  // Enter on a button or a link is the button's.
  if (!found || (event.key === 'Enter' && at.closest('button, a, summary'))) return;
  event.preventDefault();
  found[1]();
});

// ---- light and dark ----

function applyTheme() {
  const chosen = localStorage.getItem(THEME);
  if (chosen) document.documentElement.dataset.theme = chosen;
}

function changeTheme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === 'dark'
    : matchMedia('(prefers-color-scheme: dark)').matches;
  localStorage.setItem(THEME, dark ? 'light' : 'dark');
  applyTheme();
}

applyTheme();
document.documentElement.dataset.started = ''; // start.js looks for it
document.getElementById('start')?.remove();
document.body.append(frame, ...places);
onLogin(show);
addEventListener('hashchange', show);
show();
