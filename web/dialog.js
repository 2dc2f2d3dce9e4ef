// Dialogs, messages, and what they share: a question names what will be done, and shows the same as
// lines for a shell and for Python.
import { asCurl, asPython } from './format.js';
import { el, fill } from './el.js';

const CALLS_SHOWN = 10;

const live = el('div.live', { role: 'status', 'aria-live': 'polite' });
const alerts = el('div.alerts', { role: 'alert' });

/** The places of messages, for the page. */
export const places = [live, alerts];

/** Says something to whoever listens or looks, and takes it away after a while. */
export function say(text) {
  fill(live, text);
  clearTimeout(say.timer);
  say.timer = setTimeout(() => fill(live), 8000);
}

export function complain(error) {
  const line = el('div.alert', {}, error.message ?? String(error),
    el('button.quiet', { type: 'button', onclick: () => line.remove() }, 'Close'));
  alerts.append(line);
  while (alerts.children.length > 4) alerts.firstChild.remove();
}

/** Runs f and shows what it throws. */
export async function attempt(f) {
  try {
    return await f();
  } catch (error) {
    if (error.name !== 'AbortError') complain(error);
    return undefined;
  }
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    fill(button, 'Copied');
  } catch {
    fill(button, 'Select the text and copy it');
  }
}

function snippet(label, text) {
  const button = el('button.quiet', { type: 'button' }, 'Copy');
  button.addEventListener('click', () => copy(text, button));
  return el('div.snippet', {}, el('div.row', {}, el('strong', {}, label), button),
    el('pre', { tabindex: '0', 'aria-label': label }, text));
}

/** Saves a text as a file of the user's. */
export function saveAs(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: 'application/octet-stream' }));
  el('a', { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

/** What does the same without this page. `calls` is a list, or a function that gives it; where there are several kinds, each says `what` it does. */
export function asCode(calls) {
  const inside = el('div', {});
  const written = (how) => (c) => `${c.what ? `# ${c.what}\n` : ''}${how(location.origin, c)}`;
  return el('details', {
    ontoggle: (event) => {
      if (!event.target.open) return;
      const list = typeof calls === 'function' ? calls() : calls;
      const shown = list.slice(0, CALLS_SHOWN);
      fill(inside, snippet('curl', shown.map(written(asCurl)).join('\n')),
        snippet('Python', shown.map(written(asPython)).join('\n\n')),
        list.length > shown.length && el('p', {}, `and ${list.length - shown.length} more like these`));
    },
  }, el('summary', {}, 'Copy as curl / Python'), inside);
}

/**
 * A dialog with a form. `content` are its fields; `act` is called with the form's data when it is
 * sent, and the dialog stays open with the error when that throws. Resolves to what act gave, or to
 * undefined when it was closed.
 */
export function ask({ title, content = [], button = 'OK', danger = false, act = async () => true }) {
  return new Promise((resolve) => {
    const wrong = el('p.wrong', { role: 'alert' });
    const go = el(danger ? 'button.danger' : 'button.main', { type: 'submit' }, button);
    let result;
    const form = el('form', {
      method: 'dialog',
      onsubmit: async (event) => {
        event.preventDefault();
        go.disabled = true;
        try {
          result = await act(new FormData(form));
          box.close();
        } catch (error) {
          fill(wrong, error.message);
        } finally {
          go.disabled = false;
        }
      },
    }, el('h2', { id: 'dialog-title' }, title), content, wrong,
    el('div.row.end', {}, el('button', { type: 'button', onclick: () => box.close() }, 'Cancel'), go));
    const box = el('dialog', {
      'aria-labelledby': 'dialog-title',
      onclose: () => {
        box.remove();
        resolve(result);
      },
    }, form);
    document.body.append(box);
    box.showModal();
  });
}
