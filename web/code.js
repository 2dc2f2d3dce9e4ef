// Run code: cells of a context, which keeps its variables. What a cell shows is foreign: text is text, tables
// are drawn from their data, pictures are images (an SVG, too: as an image it runs no script), and HTML is
// in a frame without an origin (result.html), whose scripts reach neither this page nor anything else.
import { get, linesOf, post, request } from './api.js';
import { asCode, attempt, say } from './dialog.js';
import { el, fill } from './el.js';

const LANGUAGES = ['python', 'javascript', 'typescript', 'bash', 'r', 'java'];
const ROWS_MAX = 200;
const FRAME_PX = 80; // what HTML has at least, and at most
const FRAME_MAX_PX = 600;
const BASE64 = /^[A-Za-z0-9+/=\s]*$/;

/** UTF-8 in base64: btoa knows bytes only. */
function base64(text) {
  return btoa(Array.from(new TextEncoder().encode(text), (b) => String.fromCharCode(b)).join(''));
}

function picture(type, data, name) {
  return BASE64.test(data) ? el('img.result', { src: `data:${type};base64,${data.replace(/\s/g, '')}`, alt: name }) : null;
}

/** {column: [values]} as a table. */
function tableOf(data) {
  const columns = Object.keys(data).filter((key) => Array.isArray(data[key]));
  const count = Math.max(0, ...columns.map((key) => data[key].length));
  if (!columns.length) return null;
  const cell = (value) => (value === null || value === undefined ? '' : typeof value === 'object' ? JSON.stringify(value) : value);
  return [el('table.plain', { 'aria-label': 'Table' }, el('thead', {}, el('tr', {}, columns.map((c) => el('th', { scope: 'col' }, c)))),
    el('tbody', {}, Array.from({ length: Math.min(count, ROWS_MAX) }, (_, i) => el('tr', {}, columns.map((c) => el('td', {}, cell(data[c][i]))))))),
  count > ROWS_MAX && el('p', {}, `${count - ROWS_MAX} more rows`)];
}

/** The frame takes the text once, and says how high it is; whatever else comes out of it is not heard. */
function frameOf(html, signal) {
  const frame = el('iframe.result', { sandbox: 'allow-scripts', src: '/console/result.html', title: 'HTML that the cell has shown', height: FRAME_PX });
  let isTold = false;
  addEventListener('message', ({ source, data }) => {
    if (source !== frame.contentWindow) return;
    if (!isTold) frame.contentWindow.postMessage(html, '*');
    else if (Number.isFinite(data)) frame.setAttribute('height', Math.min(Math.max(Math.ceil(data) + 2, FRAME_PX), FRAME_MAX_PX));
    isTold = true;
  }, { signal });
  return [frame, el('details', {}, el('summary', {}, 'Its source'), el('pre', { tabindex: '0', 'aria-label': 'Source' }, html))];
}

/** The best of the forms in which a result came; `signal` ends what listens to it. */
function resultOf(r, signal) {
  const drawn = (r.png && picture('image/png', r.png, 'Picture that the cell has shown'))
    || (r.jpeg && picture('image/jpeg', r.jpeg, 'Picture that the cell has shown'))
    || (r.svg && picture('image/svg+xml', base64(r.svg), 'Drawing that the cell has shown'))
    || (r.data && typeof r.data === 'object' && tableOf(r.data));
  if (drawn) return drawn;
  if (r.html) return frameOf(r.html, signal);
  const text = r.text ?? r.markdown ?? r.latex ?? (r.json !== undefined ? JSON.stringify(r.json, null, 2) : undefined)
    ?? r.javascript ?? JSON.stringify(r.extra ?? {});
  return el('pre', { tabindex: '0' }, text);
}

export function codeTab(main, { base }) {
  const select = el('select', { 'aria-label': 'Context', onchange: () => area.focus() });
  const cells = el('div.cells', { role: 'log', 'aria-label': 'Cells' });
  const area = el('textarea.cell', { 'aria-label': 'Code. Shift+Enter runs it.', rows: '6', spellcheck: 'false', autocapitalize: 'off' });
  const running = new AbortController();
  const button = (label, f, kind = 'button') => el(kind, { type: 'button', onclick: () => attempt(f) }, label);
  const context = () => `${base}/contexts/${encodeURIComponent(select.value)}`;

  async function contexts(chosen) {
    const { contexts: known } = await get(`${base}/contexts`);
    const ids = known.map((c) => c.id);
    fill(select, [...LANGUAGES.filter((l) => !ids.includes(l)).map((l) => [l, l]),
      ...known.map((c) => [c.id, c.id === c.language ? c.language : `${c.name ?? c.id.slice(0, 8)} (${c.language})`])]
      .map(([id, label]) => el('option', { value: id }, label)));
    select.value = chosen ?? 'python';
  }

  async function run() {
    const code = area.value;
    if (!code.trim()) return;
    const out = el('div', {});
    const head = el('span', {}, '[*]');
    cells.append(el('div.ran', {}, head, el('pre', { tabindex: '0', 'aria-label': 'Code' }, code), out,
      asCode([{ method: 'POST', path: `${context()}/execute`, body: { code } }])));
    area.value = '';
    const answer = await request('POST', `${context()}/execute`, { body: { code }, headers: { Accept: 'application/x-ndjson' }, signal: running.signal });
    const texts = {};
    for await (const text of linesOf(answer)) {
      if (!text.trim()) continue;
      const line = JSON.parse(text);
      if (line.type === 'start') fill(head, `[${line.execution_count}]`);
      else if (line.type === 'stdout' || line.type === 'stderr') {
        if (!texts[line.type]) out.append(texts[line.type] = el(`pre.${line.type}`, { tabindex: '0', 'aria-label': line.type }));
        texts[line.type].append(document.createTextNode(line.text));
      } else if (line.type === 'result') {
        out.append(el('div.shown', {}, resultOf(line, running.signal)));
        texts.stdout = texts.stderr = null;
      } else if (line.type === 'error') {
        out.append(el('pre.wrong', { tabindex: '0', 'aria-label': 'Error' }, line.traceback || `${line.name}: ${line.value}`));
      } else if (line.type === 'end' && line.state === 'restarted') {
        out.append(el('p.wrong', {}, `The variables of earlier cells are lost: ${line.reason}`));
      }
    }
    cells.scrollTop = cells.scrollHeight;
  }

  area.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && (event.shiftKey || event.ctrlKey)) {
      event.preventDefault();
      attempt(run);
    }
  });
  fill(main, el('div.row', {}, select,
    button('New context', async () => {
      const language = LANGUAGES.includes(select.value) ? select.value : 'python';
      await contexts((await post(`${base}/contexts`, { language })).id);
    }), button('Interrupt', () => post(`${context()}/interrupt`)),
    button('Restart', async () => { await post(`${context()}/restart`); say('Restarted: its variables are gone'); }),
    el('span.grow', {}), button('Run', run, 'button.main')), cells, area, asCode(() => [
    { what: 'New context', method: 'POST', path: `${base}/contexts`, body: { language: LANGUAGES.includes(select.value) ? select.value : 'python' } },
    { what: 'Run', method: 'POST', path: `${context()}/execute`, body: { code: area.value } },
    { what: 'Interrupt', method: 'POST', path: `${context()}/interrupt`, body: {} },
    { what: 'Restart', method: 'POST', path: `${context()}/restart`, body: {} }]));
  attempt(() => contexts());
  area.focus();
  return { end: () => running.abort() };
}
