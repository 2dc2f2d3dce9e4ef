// The console: the frame of every page, which page is shown, keys, and light or dark.
//
// The address says which page: `#/` the list, `#/sandbox/ID/...` one sandbox. A page is a function that
// fills `main` and gives back what ends it: timers, sockets, listeners, and the keys that it knows.
import { get, isLoggedIn, logout, onLogin } from './api.js';
import { attempt, places, ask } from './dialog.js';
import { el, fill } from './el.js';
import { listPage } from './list.js';
import { loginPage, takeCode } from './login.js';
import { providersPage } from './providers.js';
import { sandboxPage } from './sandbox.js';

const THEME = 'paddock.theme';

/** In the order of the navigation: the address begins with `at`. */
const pages = [
  { at: '#/', title: 'Sandboxes', show: listPage, exact: true },
  { at: '#/sandbox/', title: 'Sandbox', show: sandboxPage, hidden: true },
  { at: '#/providers', title: 'Providers', show: providersPage },
];

const main = el('main', { id: 'main', tabindex: '-1' });
const nav = el('nav', { 'aria-label': 'Pages' });
const who = el('span.who', {});
const frame = el('div.frame', {},
  el('a.skip', { href: '#main', onclick: (event) => { event.preventDefault(); main.focus(); } }, 'Skip to the page'),
  el('header', {}, el('a.brand', { href: '#/' }, 'Paddock'), who, el('span.grow', {}),
    el('button.quiet', { type: 'button', onclick: showKeys }, '? Keys'),
    el('button.quiet', { type: 'button', onclick: changeTheme }, 'Light or dark'),
    el('button.quiet', { type: 'button', onclick: () => attempt(logout) }, 'Log out')),
  nav, main);

let current = null; // what the page that is shown gave back

function leave() {
  current?.end?.();
  current = null;
}

async function show() {
  leave();
  const code = takeCode();
  if (code || !isLoggedIn()) {
    frame.classList.add('out');
    document.title = 'Log in - Paddock';
    loginPage(main, code);
    return;
  }

  frame.classList.remove('out');
  const address = location.hash || '#/';
  const page = pages.find((p) => (p.exact ? address === p.at : address.startsWith(p.at))) ?? pages[0];
  document.title = `${page.title} - Paddock`;
  fill(nav, pages.filter((p) => !p.hidden).map((p) => el('a', {
    href: p.at, 'aria-current': p === page ? 'page' : null,
  }, p.title)));
  fill(main);
  current = page.show(main, address.slice(page.at.length)) ?? {};
  attempt(async () => {
    const me = await get('/v1/console/me');
    fill(who, `tenant ${me.tenant}, key ${me.key_id.slice(0, 8)}${me.admin ? ' (admin)' : ''}, ${me.version}`);
  });
}

// ---- keys ----

const common = { '?': ['all keys', showKeys], g: ['to the list', () => { location.hash = '#/'; }] };

function showKeys() {
  const known = { ...current?.keys, ...common };
  ask({
    title: 'Keys', button: 'Close',
    content: [el('table.plain', {}, el('tbody', {}, Object.entries(known).map(([key, [what]]) =>
      el('tr', {}, el('th', { scope: 'row' }, el('kbd', {}, key)), el('td', {}, what)))))],
  });
}

addEventListener('keydown', (event) => {
  const at = event.target;
  const types = at.closest('input, textarea, select, [contenteditable], .terminal, dialog');
  if (types || event.ctrlKey || event.altKey || event.metaKey || !isLoggedIn()) return;
  const known = current?.keys?.[event.key] ?? common[event.key];
  // Enter on a button or a link is the button's.
  if (!known || (event.key === 'Enter' && at.closest('button, a, summary'))) return;
  event.preventDefault();
  known[1]();
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
document.body.append(frame, ...places);
onLogin(show);
addEventListener('hashchange', show);
show();
