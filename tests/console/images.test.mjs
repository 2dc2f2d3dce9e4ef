// The page of images: as the server has them, and with prepared answers for what takes its time.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { control, enter, HOME, start, stop, until } from './browser.mjs';

before(start);
after(stop);

const digest = (letter) => `sha256:${letter.repeat(64)}`;
const image = (letter, names, more = {}) => ({
  id: digest(letter), names, layers: [digest('0'), digest(letter)], size_bytes: 120 << 20, workdir: null, user: null, entrypoint: [], cmd: ['bash'],
  architecture: 'amd64', created: null, used_at: '2026-01-02T03:04:05.000Z', ...more,
});

/** A page whose server has these images; what else was asked of them is in `asked`. */
async function withImages(role, images) {
  const asked = [];
  const v = await enter('#/', role ? { key: await control(`role?${role}`) } : {});
  const { page } = v;
  await page.route('**/v1/console/me', async (route) => {
    const me = await (await route.fetch()).json();
    await route.fulfill({ json: { ...me, features: [...me.features.filter((f) => f !== 'images'), 'images'] } });
  });
  await page.route(/\/v1\/image/, (route) => {
    const asking = route.request();
    if (asking.method() === 'GET') return route.fulfill({ json: { images } });
    asked.push([asking.method(), new URL(asking.url()).pathname, asking.postDataJSON()]);
    if (asking.method() === 'DELETE') images.splice(0, 1);
    return route.fulfill(asking.method() === 'DELETE' ? { status: 204 } : { json: { removed: [digest('f')] } });
  });
  await page.goto(`${HOME}/#/images`);
  await page.reload();
  await page.getByRole('heading', { name: 'Images' }).waitFor();
  return { ...v, asked };
}

test('images are listed, sandboxes are made of them, and an admin removes them', async () => {
  const v = await withImages('admin', [image('a', ['debian:12', 'debian:<b>']), image('b', ['tool:1'], { entrypoint: ['/tool'] })]);
  const { page } = v;
  await page.getByRole('cell', { name: 'debian:12, debian:<b>' }).waitFor();
  await page.getByRole('cell', { name: '/tool bash' }).waitFor();
  assert.equal(await page.getByRole('link', { name: 'Images' }).getAttribute('aria-current'), 'page');
  await page.getByRole('button', { name: 'New sandbox of tool:1' }).click();
  assert.equal(await page.getByRole('dialog').getByLabel(/^Image/).inputValue(), 'tool:1');
  await page.keyboard.press('Escape');
  await page.getByRole('button', { name: 'Remove debian:12' }).click();
  await page.getByText('The name; under others it stays.').waitFor();
  await page.getByRole('dialog').getByRole('button', { name: 'Remove' }).click();
  await until('it is gone', async () => await page.getByRole('row').count() === 2);
  await page.getByRole('button', { name: 'Remove unused...' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Remove' }).click();
  await page.getByText('Removed 1').waitFor();
  assert.deepEqual(v.asked, [['DELETE', '/v1/images/debian%3A12', null], ['POST', '/v1/image-prune', {}]]);
  assert.deepEqual(v.faults, []);
  await v.close();
});

test('a fetch tells how far it is, layer by layer; one that fails is told, and closing the question ends it', async () => {
  const v = await withImages(null, []);
  const { page } = v;
  await page.getByText('None yet').waitFor();
  assert.equal(await page.getByRole('button', { name: 'Remove unused...' }).count(), 0);
  await page.evaluate(() => {
    const real = window.fetch;
    window.fetch = async (path, how) => {
      if (how?.method !== 'POST' || path !== '/v1/images') return real(path, how);
      window.ended = false;
      how.signal.addEventListener('abort', () => { window.ended = true; });
      window.body = how.body;
      const body = new ReadableStream({ start: (out) => { window.news = (event, data) => out.enqueue(new TextEncoder().encode(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`)); } });
      return new Response(body, { status: 200, headers: { 'Content-Type': 'text/event-stream' } });
    };
  });
  const ends = {
    'it fails': ['error', { error: { code: 'not_found', message: 'the registry has no such image', details: {} } }, 'the registry has no such image'],
    'it is here': ['image', image('c', ['tool:1']), 'Fetched tool:1'],
    'it is closed': null,
  };
  for (const [what, end] of Object.entries(ends)) {
    await page.getByRole('button', { name: 'Fetch...' }).click();
    await page.getByLabel('Image', { exact: true }).fill(' tool:1 ');
    await page.getByRole('button', { name: 'Fetch', exact: true }).click();
    await page.waitForFunction(() => window.news);
    assert.equal(await page.evaluate(() => window.body), '{"image":"tool:1"}');
    for (const [letter, state] of [['d', 'downloading'], ['e', 'done']]) {
      await page.evaluate((data) => window.news('image.pull', data), { layer: digest(letter), state, done: 5 << 20, total: 9 << 20, layers_done: 1, layers: 2, bytes_done: 14 << 20, bytes: 18 << 20 });
    }
    const told = page.getByRole('dialog');
    await told.getByText('1 of 2 layers, 14M of 18M').waitFor();
    await told.getByText('dddddddddddd downloading 5M of 9M').waitFor();
    assert.equal(await told.getByText('eeeeeeeeeeee').count(), 0, what);
    if (end) {
      await page.evaluate(([event, data]) => window.news(event, data), end);
      await page.getByText(end[2]).first().waitFor();
    }
    await page.keyboard.press('Escape');
    if (!end) await page.waitForFunction(() => window.ended);
    await page.evaluate(() => { delete window.news; });
  }
  assert.deepEqual(v.faults, []);
  await v.close();
});

test('an image of the server is shown and removed, and what cannot be fetched is told', async () => {
  await control('image?seen-here:1');
  const v = await enter('#/images', { key: await control('role?admin') });
  const { page } = v;
  await page.getByRole('row').filter({ hasText: 'seen-here:1' }).waitFor();
  await page.getByRole('button', { name: 'Fetch...' }).click();
  await page.getByLabel('Image', { exact: true }).fill('127.0.0.1:1/nothing:1');
  await page.getByRole('button', { name: 'Fetch', exact: true }).click();
  await until('a reason', async () => (await page.locator('dialog .wrong').innerText()).length > 10);
  await page.keyboard.press('Escape');
  await page.getByRole('button', { name: /^Remove .*seen-here:1$/ }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Remove' }).click();
  await until('it is gone', async () => await page.getByText('seen-here:1', { exact: false }).and(page.locator('td')).count() === 0);
  assert.deepEqual(v.faults, []);
  await v.close();
});
