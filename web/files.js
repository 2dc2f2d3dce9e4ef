// Files of a sandbox: browse, upload, download, edit. Names are whatever programs have made of them.
import { del, done, get, post, request } from './api.js';
import { asCode, ask, attempt, say } from './dialog.js';
import { el, fill } from './el.js';
import { bytes, time } from './format.js';
import { repeat } from './tabs.js';

const EDIT_MAX = 1 << 20;
const q = encodeURIComponent;

const nameOf = (button) => button.getAttribute('aria-label') ?? button.textContent;
const parent = (path) => path.replace(/\/[^/]*$/, '') || '/';
const join = (folder, name) => `${folder === '/' ? '' : folder}/${name}`;

export function filesTab(main, { base, me }) {
  let here = '/workspace';
  const crumbs = el('nav.row', { 'aria-label': 'Folder' });
  const upload = el('input.unseen.writes', { type: 'file', multiple: true, 'aria-label': 'Files to upload', tabindex: '-1', onchange: () => attempt(() => put([...upload.files])) });
  const body = el('tbody', {});
  const place = el('div.place', {
    ondragover: (event) => event.preventDefault(),
    ondrop: (event) => {
      event.preventDefault();
      if (me.role !== 'reader') attempt(() => put([...event.dataTransfer.files]));
    },
  }, el('table.list.acting', { 'aria-label': 'Files' }, el('thead', {}, el('tr', {}, ['Name', 'Size', 'Mode', 'Changed', 'Actions'].map((h) => el('th', { scope: 'col' }, h)))), body));
  const editor = el('div.editor', {});

  const button = (label, f, kind = 'button.quiet', more = {}) => el(kind, { type: 'button', onclick: () => attempt(f), ...more }, label);
  fill(main, el('div.row', {}, crumbs, el('span.grow', {}), button('Upload', () => upload.click(), 'button.writes'), upload, button('New folder', newFolder, 'button.writes'),
    button('Refresh', () => show(here), 'button')), place, editor, asCode(() => [
    { what: 'What is in the folder', method: 'GET', path: `${base}/files/list?path=${q(here)}` },
    { what: 'Upload', method: 'PUT', path: `${base}/files?path=${q(join(here, 'NAME'))}`, file: 'NAME' },
    { what: 'Download', method: 'GET', path: `${base}/files?path=${q(join(here, 'NAME'))}` },
    { what: 'New folder', method: 'POST', path: `${base}/files/mkdir`, body: { path: join(here, 'NAME') } },
    { what: 'Delete', method: 'DELETE', path: `${base}/files?path=${q(join(here, 'NAME'))}` }]));

  async function put(files) {
    for (const file of files) {
      await request('PUT', `${base}/files?path=${q(join(here, file.name))}`, { data: file, headers: { 'Content-Type': 'application/octet-stream' } });
      say(`Uploaded ${file.name}`);
    }
    upload.value = '';
    await show(here);
  }

  function newFolder() {
    return ask({
      title: 'New folder', button: 'Make', content: [el('label.field', {}, 'Name', el('input', { name: 'name', required: true })), asCode([{ method: 'POST', path: `${base}/files/mkdir`, body: { path: join(here, 'NAME') } }])],
      act: async (data) => {
        await post(`${base}/files/mkdir`, { path: join(here, data.get('name')) });
        await show(here);
        return true;
      },
    });
  }

  function remove(entry) {
    return ask({
      title: `Delete ${entry.name}?`, button: 'Delete', danger: true,
      content: [el('p', {}, entry.type === 'dir' ? 'The folder and everything in it.' : 'The file.'),
        asCode([{ method: 'DELETE', path: `${base}/files?path=${q(entry.path)}&recursive=${entry.type === 'dir'}` }])],
      act: async () => {
        await del(`${base}/files?path=${q(entry.path)}&recursive=${entry.type === 'dir'}`);
        await show(here);
        return true;
      },
    });
  }

  async function download(entry) {
    // The browser fetches it by itself, into a file: nothing of it passes through the page's memory.
    const { url } = await post(`${base}/files/ticket?path=${q(entry.path)}`);
    done({ method: 'GET', path: `${base}/files?path=${q(entry.path)}` });
    el('a', { href: url, download: entry.name }).click();
  }

  async function edit(entry) {
    const answer = await request('GET', `${base}/files?path=${q(entry.path)}`);
    let tag = answer.headers.get('ETag');
    const data = await answer.arrayBuffer();
    let text;
    try {
      text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(data);
    } catch {
      throw new Error(`${entry.name} is no text: download it`);
    }
    const area = el('textarea', { 'aria-label': `Text of ${entry.name}`, spellcheck: 'false', rows: '20', value: text });
    const write = (headers) => request('PUT', `${base}/files?path=${q(entry.path)}`, { data: area.value, headers: { 'Content-Type': 'application/octet-stream', ...headers } });
    const save = async () => {
      let saved = null;
      try {
        // The server compares and replaces in one step: whatever was written meanwhile is found.
        saved = await write({ 'If-Match': tag });
      } catch (error) {
        if (error.status !== 409) throw error;
        const go = await ask({
          title: `${entry.name} was changed meanwhile`, button: 'Overwrite', danger: true,
          content: [el('p', {}, `${error.message}. Overwriting loses what was written there; Cancel keeps your text here.`)],
        });
        if (!go) return;
        saved = await write({});
      }
      tag = saved.headers.get('ETag');
      say(`Saved ${entry.name}`);
      await show(here);
    };
    fill(editor, el('div.row', {}, el('strong', {}, entry.path), el('span.grow', {}), button('Save', save, 'button.main.writes'), button('Close', () => fill(editor), 'button')), area);
    area.focus();
  }

  let drawn = null; // what is shown
  let isLong = false; // too many to look for changes every two seconds
  let turns = 0; // of two folders that were asked for the later one is shown

  /** `isGlance`: nobody has asked for it, and whoever does is not held up by it. */
  async function show(path, isGlance = false) {
    const turn = isGlance ? turns : ++turns;
    const entries = [];
    let cursor = null;
    do {
      const page = await get(`${base}/files/list?observe=true&limit=1000&path=${q(path)}${cursor ? `&cursor=${q(cursor)}` : ''}`);
      entries.push(...page.entries);
      cursor = page.next_cursor;
    } while (cursor && entries.length < 5000);
    if (turn !== turns || (isGlance && path !== here)) return;
    here = path;
    isLong = entries.length >= 1000;
    const now = JSON.stringify([path, entries]);
    if (now === drawn) return;
    drawn = now;
    const held = body.contains(document.activeElement) ? nameOf(document.activeElement) : null;
    const parts = path.split('/').filter(Boolean);
    fill(crumbs, button('/', () => show('/')), parts.map((part, i) => [button(part, () => show(`/${parts.slice(0, i + 1).join('/')}`)), i < parts.length - 1 ? '/' : null]));
    fill(body, path !== '/' && el('tr', {}, el('td', { colspan: '5' }, button('..', () => show(parent(path)), 'button.quiet', { 'aria-label': 'Folder above' }))),
      entries.map((entry) => {
        const isOdd = entry.path_base64 !== undefined; // a name that is no text cannot be written in an address
        const name = entry.type === 'dir' ? `${entry.name}/` : entry.type === 'symlink' ? `${entry.name} -> ${entry.target}` : entry.name;
        return el('tr', {}, el('td', {}, entry.type === 'dir' && !isOdd ? button(name, () => show(entry.path))
          : entry.type === 'file' && !isOdd && entry.size <= EDIT_MAX ? button(name, () => edit(entry)) : name),
        el('td', {}, entry.type === 'file' ? bytes(entry.size) : entry.type), el('td.mono', {}, entry.mode), el('td', {}, time(entry.modified_at)),
        el('td', {}, !isOdd && [entry.type === 'file' && button('Download', () => download(entry), 'button.quiet', { 'aria-label': `Download ${entry.name}` }),
          button('Delete', () => remove(entry), 'button.quiet.writes', { 'aria-label': `Delete ${entry.name}` })]));
      }), !entries.length && el('tr', {}, el('td.empty', { colspan: '5' }, 'Nothing here: upload files, or drop them here.')),
      cursor && el('tr', {}, el('td.empty', { colspan: '5' }, 'There are more than 5,000; the rest is not shown.')));
    // Whoever was on a button is still there.
    if (held) [...body.querySelectorAll('button')].find((one) => nameOf(one) === held)?.focus({ preventScroll: true });
  }

  // What programs do there is seen, too.
  const end = repeat(async () => { if (!drawn || !isLong) await show(here, true); });
  return { end, keys: { u: ['upload', () => upload.click(), 'writes'] } };
}
