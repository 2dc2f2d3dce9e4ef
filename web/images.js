// Images that the server has for its sandboxes: fetched from registries, used, and removed.
import { del, get, post, streamed } from './api.js';
import { asCode, ask, attempt, say } from './dialog.js';
import { el, fill } from './el.js';
import { bytes, time } from './format.js';
import { askForNew } from './list.js';
import { repeat, tableOf } from './tabs.js';

const q = encodeURIComponent;
const short = (id) => id.replace(/^sha256:/, '').slice(0, 12);
const nameOf = (image) => image.names[0] ?? image.id;

/** The layers of a fetch as they come, the last word on each. */
function progress() {
  const layers = new Map();
  const node = el('div', { role: 'status' });
  return {
    node,
    told(news) {
      layers.set(news.layer, news);
      fill(node, el('p', {}, `${news.layers_done} of ${news.layers} layers, ${bytes(news.bytes_done)} of ${bytes(news.bytes)}`),
        [...layers.values()].filter((l) => l.state === 'downloading' || l.state === 'unpacking')
          .map((l) => el('p.mono', {}, `${short(l.layer)} ${l.state} ${bytes(l.done)} of ${bytes(l.total)}`)));
    },
  };
}

export function imagesPage(main, _, me) {
  const [table, body] = tableOf('Images', ['Name', 'ID', 'Runs', 'Layers', 'Size', 'Last used', 'Actions']);
  const isAdmin = me.role === 'admin';
  let drawn = '';
  fill(main, el('div.row', {}, el('h1', {}, 'Images'), el('span.grow', {}),
    isAdmin && el('button', { type: 'button', onclick: () => attempt(prune) }, 'Remove unused...'),
    el('button.main.writes', { type: 'button', onclick: () => attempt(pull) }, 'Fetch...')), table, asCode([{ method: 'GET', path: '/v1/images' }]));

  async function pull() {
    const far = progress();
    const stop = new AbortController();
    const wanted = (data) => ({ image: data.get('image').trim() });
    const content = [el('label.field', {}, 'Image', el('input', { name: 'image', required: true, maxlength: 511, autocomplete: 'off', spellcheck: 'false', placeholder: 'debian:12' })),
      el('p', {}, 'What has come of one that is not fetched to its end stays for the next time.'), far.node];
    content.push(asCode(() => [{ method: 'POST', path: '/v1/images', body: wanted(new FormData(content[0].closest('form'))) }]));
    const image = await ask({
      title: 'Fetch an image', button: 'Fetch', content,
      act: (data) => streamed('/v1/images', wanted(data), { last: 'image', news: 'image.pull', told: far.told, signal: stop.signal }),
    }).finally(() => stop.abort()); // a dialog that is closed ends it
    if (image) say(`Fetched ${nameOf(image)}`);
    await read();
  }

  const prune = () => ask({
    title: 'Remove what nobody needs?', button: 'Remove', danger: true,
    content: [el('p', {}, 'Images without a name that no sandbox uses, layers of no image, and what has come of layers that nobody fetches.'),
      asCode([{ method: 'POST', path: '/v1/image-prune', body: {} }])],
    act: async () => {
      const { removed } = await post('/v1/image-prune');
      say(`Removed ${removed.length}`);
      await read();
      return true;
    },
  });

  const remove = (image) => ask({
    title: `Remove ${nameOf(image)}?`, button: 'Remove', danger: true,
    content: [el('p', {}, image.names.length > 1 ? 'The name; under others it stays.' : 'The image, and the layers that no other has.'),
      asCode([{ method: 'DELETE', path: `/v1/images/${q(nameOf(image))}` }])],
    act: async () => {
      await del(`/v1/images/${q(nameOf(image))}`);
      say(`Removed ${nameOf(image)}`);
      await read();
      return true;
    },
  });

  async function use(image) {
    const made = await askForNew({ image: nameOf(image) });
    if (made) location.hash = `#/sandbox/${made.id}`;
  }

  const button = (label, name, f) => el('button.quiet.writes', { type: 'button', 'aria-label': name, onclick: () => attempt(f) }, label);
  async function read() {
    const { images } = await get('/v1/images');
    const now = JSON.stringify(images);
    if (now === drawn) return;
    drawn = now;
    fill(body, images.map((image) => el('tr', {}, el('td.wide', {}, image.names.join(', ') || '-'), el('td.mono', { title: image.id }, short(image.id)),
      el('td.mono', {}, [...image.entrypoint, ...image.cmd].join(' ') || '-'), el('td', {}, image.layers.length), el('td', {}, bytes(image.size_bytes)), el('td', { title: time(image.used_at) }, time(image.used_at).slice(0, 16)),
      el('td', {}, button('New sandbox', `New sandbox of ${nameOf(image)}`, () => use(image)), isAdmin && button('Remove', `Remove ${nameOf(image)}`, () => remove(image))))),
    !images.length && el('tr', {}, el('td.empty', { colspan: '7' }, 'None yet: fetch one, or make a sandbox of one.')));
  }

  const end = repeat(read);
  return { end, keys: { c: ['fetch an image', () => attempt(pull), 'writes'] } };
}
