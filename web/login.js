// The page of those who are not logged in.
import { login, takeWhy } from './api.js';
import { el, fill } from './el.js';

/** Takes a one-use code off the address, so that neither history nor a reload has it. */
export function takeCode() {
  const found = /^#code=([0-9a-f]+)$/.exec(location.hash);
  if (found) history.replaceState(null, '', location.pathname);
  return found?.[1] ?? null;
}

export function loginPage(main, code) {
  const wrong = el('p.wrong', { role: 'alert' });
  const key = el('input', {
    id: 'key', name: 'key', type: 'password', autocomplete: 'current-password', required: true,
    spellcheck: 'false', placeholder: 'e2b_...', 'aria-describedby': 'hint',
  });
  const button = el('button.main', { type: 'submit' }, 'Log in');

  async function enter(how) {
    button.disabled = true;
    fill(wrong);
    try {
      await login(how);
    } catch (error) {
      fill(wrong, error.message);
      button.disabled = false;
      key.focus();
    }
  }

  fill(main, el('form.login', {
    onsubmit: (event) => {
      event.preventDefault();
      enter({ key: key.value.trim() });
    },
  }, el('h1', {}, 'Paddock'),
  el('label', { for: 'key' }, 'API key'), key, button, wrong,
  el('p.hint', { id: 'hint' }, 'Or run ', el('code', {}, 'paddock console'),
    ' where the key is: it prints a link that logs in.')));
  const why = takeWhy();
  if (why) fill(wrong, `You are logged out: ${why}. What runs in sandboxes goes on.`);
  if (code) enter({ code });
  else key.focus();
}
