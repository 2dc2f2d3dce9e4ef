// Logging in, and the list: with a real browser, as people use it.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { after, before, test } from 'node:test';

import { api, control, enter, HOME, line, PADDOCK_API_KEY, PATIENCE, sandbox, start, stop, until, visit } from './browser.mjs';

before(start);
after(stop);

/** What the browser has of a login. */
async function secrets({ context, page }) {
  const cookies = await context.cookies();
  return { cookie: cookies.find((c) => c.name.includes('paddock-')), proof: await page.evaluate(() => localStorage.getItem('paddock.proof')) };
}

test('a key logs in, and logging out ends it for the server, too', async () => {
  const v = await enter();
  const { cookie, proof } = await secrets(v);
  assert.equal(cookie.httpOnly, true);
  assert.equal(cookie.sameSite, 'Strict');
  const headers = { Cookie: `${cookie.name}=${cookie.value}`, 'X-Paddock-Proof': proof };
  const me = () => fetch(`${HOME}/v1/console/me`, { headers });
  assert.equal((await me()).status, 200);

  await v.page.getByRole('button', { name: 'Log out' }).click();
  await v.page.getByLabel('API key').waitFor();
  assert.equal((await me()).status, 401);
  assert.deepEqual(v.faults, []);
  await v.close();
});

/** A login whose first `times` requests are dropped, as a browser does when the machine's network changes. */
async function loginDropped(v, times) {
  const asked = [];
  await v.page.route('**/v1/console/login', (route) => {
    asked.push(route.request().method());
    return asked.length > times ? route.continue() : route.abort('connectionreset');
  });
  return asked;
}

test('a login that the browser drops is tried again by key, and never by a code, which is of one use', async () => {
  const v = await visit();
  const byKey = await loginDropped(v, 2);
  await v.page.goto(`${HOME}/`);
  await v.page.getByLabel('API key').fill(PADDOCK_API_KEY);
  await v.page.getByRole('button', { name: 'Log in' }).click();
  await v.page.getByRole('navigation', { name: 'Pages' }).waitFor();
  assert.equal(byKey.length, 3);
  await v.close();

  const other = await visit();
  const byCode = await loginDropped(other, 1);
  await other.page.goto(await control('link'));
  await other.page.getByRole('alert').filter({ hasText: 'cannot be reached' }).waitFor();
  assert.equal(byCode.length, 1);
  await other.close();
});

test('a wrong key is told, and nothing is kept', async () => {
  const v = await visit();
  await v.page.goto(`${HOME}/`);
  await v.page.getByLabel('API key').fill('e2b_' + '0'.repeat(40));
  await v.page.keyboard.press('Enter');
  await v.page.getByRole('alert').filter({ hasText: 'not known here' }).waitFor();
  assert.equal((await secrets(v)).proof, null);
  await v.close();
});

test('the link of `paddock console` logs in once, and leaves the address', async () => {
  const link = await control('link');
  assert.match(link, /^http:\/\/localhost:\d+\/#code=[0-9a-f]{64}$/);
  const v = await visit();
  await v.page.goto(link);
  await v.page.getByRole('navigation', { name: 'Pages' }).waitFor();
  assert.ok(!v.page.url().includes('code'), v.page.url());

  const again = await visit();
  await again.page.goto(link);
  await again.page.getByRole('alert').filter({ hasText: 'was used already' }).waitFor();
  const said = await control('log');
  for (const secret of [link.split('=')[1], (await secrets(v)).proof, (await secrets(v)).cookie.value]) assert.ok(!said.includes(secret));
  assert.deepEqual([...v.faults, ...again.faults], []);
  await v.close();
  await again.close();
});

test('a sandbox is made, found, renewed and ended by keyboard alone', async (t) => {
  const v = await enter();
  const { page } = v;
  await page.keyboard.press('c');
  await page.getByRole('dialog').waitFor();
  await page.getByLabel('User (or nobody)').fill('ann');
  await page.keyboard.press('Enter');
  await page.getByRole('dialog').waitFor({ state: 'detached' });
  const made = await until('the sandbox', async () => (await api('GET', '/v1/sandboxes?user_id=ann')).sandboxes[0]);
  t.after(() => api('DELETE', `/v1/sandboxes/${made.id}`).catch(() => {}));

  await page.keyboard.press('/');
  await page.keyboard.type('user:ann state:running');
  await page.getByText(/^1 of \d+$|^1 in all$/).waitFor();
  await page.keyboard.press('Tab');
  await page.locator('.scroll').focus();
  await page.keyboard.press('j');
  const before = (await api('GET', `/v1/sandboxes/${made.id}`)).last_used_at;
  await page.keyboard.press('e');
  await until('it is renewed', async () => (await api('GET', `/v1/sandboxes/${made.id}`)).last_used_at > before);
  await page.keyboard.press('d');
  await page.getByRole('dialog').getByText(`End sandbox ${made.id}?`).waitFor();
  await page.getByRole('button', { name: 'End', exact: true }).press('Enter');
  await until('it has ended', async () => (await api('GET', `/v1/sandboxes/${made.id}`)).state === 'gone');
  assert.deepEqual(v.faults, []);
  await v.close();
});

test('changes come by themselves: made, paused, extended, ended; and the list is read once', async (t) => {
  const { key } = await api('POST', '/v1/keys', { label: 'ci, <b>nightly</b>' }, await control('role?admin'));
  const v = await enter();
  const { page } = v;
  const lists = [];
  await page.getByText('● live').waitFor(); // it was read: from here on nobody asks again
  page.on('request', (request) => {
    if (new URL(request.url()).pathname === '/v1/sandboxes') lists.push(request.url());
  });
  const other = await api('POST', '/v1/sandboxes', { user_id: 'news', thread_id: '2' }, key);
  t.after(() => api('DELETE', `/v1/sandboxes/${other.id}`).catch(() => {}));
  await page.locator(`tr[data-id="${other.id}"]`).getByText('ci, <b>nightly</b>').waitFor();
  const made = await sandbox(t, { user_id: 'news', thread_id: '1', idle_timeout_s: 86400 });
  const row = page.locator(`tr[data-id="${made.id}"]`);
  await row.getByText('running').waitFor();
  await row.getByText(made.made_by.slice(0, 8)).waitFor();
  await api('POST', `/v1/sandboxes/${made.id}/pause`);
  await row.getByText('paused').waitFor();
  await api('POST', `/v1/sandboxes/${made.id}/resume`);
  await row.getByText('running').waitFor();
  await api('POST', `/v1/sandboxes/${made.id}/extend`, { idle_timeout_s: 100 });
  await row.locator('.ends.soon').waitFor();
  // It counts down, and nobody asks the server for that.
  const before = await row.locator('.ends').innerText();
  await until('a second has passed', async () => (await row.locator('.ends').innerText()) !== before);
  const used = (await api('GET', `/v1/sandboxes/${made.id}`)).last_used_at;
  await row.getByRole('button', { name: `Renew ${made.id}` }).click();
  await until('it is renewed', async () => (await api('GET', `/v1/sandboxes/${made.id}`)).last_used_at > used);
  await api('DELETE', `/v1/sandboxes/${made.id}`);
  await row.getByText('gone').waitFor();
  assert.deepEqual(lists, []);
  assert.deepEqual(v.faults, []);
  await v.close();
});

test('a lost connection is told, and the list is as the server has it again', async (t) => {
  const wire = await line();
  t.after(wire.close);
  const v = await enter('#/', { proxy: wire.proxy });
  const { page } = v;
  await page.getByText('● live').waitFor();
  const old = await sandbox(t, { user_id: 'kept', thread_id: '1' });
  await page.locator(`tr[data-id="${old.id}"]`).waitFor();
  wire.cut();
  await control('restart');
  await page.getByText('× no connection').waitFor();
  const made = await sandbox(t, { user_id: 'missed', thread_id: '1' });
  await api('DELETE', `/v1/sandboxes/${old.id}`);
  wire.mend();
  await page.locator(`tr[data-id="${made.id}"]`).waitFor();
  await page.getByText('● live').waitFor();
  await page.locator(`tr[data-id="${old.id}"]`).waitFor({ state: 'detached' });
  await v.close();
});

test('many are chosen, and what fails of a bulk action is told', async (t) => {
  const made = [];
  for (let i = 0; i < 6; i++) made.push(await sandbox(t, { user_id: 'bulk', thread_id: `${i}` }));
  const v = await enter();
  const { page } = v;
  await page.getByLabel('Filter').fill('user:bulk');
  await page.getByText(/^6 of \d+$|^6 in all$/).waitFor();
  await page.getByLabel(`Choose ${made[0].id}`).check();
  await page.getByRole('button', { name: 'Select all 6' }).click();
  await page.getByText('6 selected').waitFor();
  // One of them is refused: it is paused already when it is to be resumed, and gone when it is to be paused.
  await page.route(`**/v1/sandboxes/${made[2].id}/pause`, (route) => route.fulfill({
    status: 503, contentType: 'application/json', body: '{"error":{"code":"capacity","message":"no room just now"}}' }));
  await page.getByRole('button', { name: 'Pause', exact: true }).click();
  await page.getByText('Paused: 5 of 6').waitFor();
  await page.getByRole('alert').filter({ hasText: `1 failed; ${made[2].id}: no room just now` }).waitFor();
  await until('five are paused', async () => (await api('GET', '/v1/sandboxes?user_id=bulk&state=paused')).sandboxes.length === 5);
  await page.getByRole('button', { name: 'End...' }).click();
  await page.getByText('End 6 sandboxes?').waitFor();
  await page.getByRole('button', { name: 'End', exact: true }).click();
  await until('none is left', async () => (await api('GET', '/v1/sandboxes?user_id=bulk')).sandboxes.length === 0);
  assert.deepEqual(v.faults, []);
  await v.close();
});

test('changes of others leave the focus on a button, and what is chosen is saved', async (t) => {
  const made = await sandbox(t, { user_id: 'place', thread_id: '1' });
  const v = await enter();
  const { page } = v;
  await page.getByLabel('Filter').fill('user:place');
  await page.getByLabel(`Choose ${made.id}`).check();
  const button = page.getByRole('button', { name: 'Export' });
  await button.focus();
  const others = page.locator('.count');
  const before = await others.innerText();
  await sandbox(t, { user_id: 'another', thread_id: '1' });
  await until('the list has heard of it', async () => (await others.innerText()) !== before);
  await api('POST', `/v1/sandboxes/${made.id}/pause`);
  await page.locator(`tr[data-id="${made.id}"]`).getByText('paused').waitFor();
  assert.equal(await button.evaluate((node) => node === document.activeElement), true);
  const [download] = await Promise.all([page.waitForEvent('download'), page.keyboard.press('Enter')]);
  const lines = (await readFile(await download.path(), 'utf8')).trim().split('\n').map((line) => JSON.parse(line));
  assert.deepEqual(lines.map((s) => [s.id, s.user_id, s.state]), [[made.id, 'place', 'paused']]);
  assert.deepEqual(v.faults, []);
  await v.close();
});

test('while the image of a new sandbox is pulled, it is told how far that is; a pull that fails is told, too', async () => {
  const v = await enter();
  const { page } = v;
  const pull = { id: 'a'.repeat(20), image: 'tool:<b>1</b>', layers_done: 1, layers: 3, bytes_done: 5 << 20, bytes: 20 << 20 };
  const events = (...list) => list.map(([event, data]) => `event: ${event}\ndata: ${JSON.stringify(data)}\n\n`).join('');
  const failure = ['error', { error: { code: 'not_found', message: 'the registry has no such image', details: {} } }];
  // The answer of a server with a provider that pulls, piece by piece.
  await page.addInitScript(() => {
    const real = window.fetch;
    window.fetch = async (path, how) => {
      if (how?.method !== 'POST' || path !== '/v1/sandboxes') return real(path, how);
      window.accepted = how.headers.Accept;
      const body = new ReadableStream({ start: (out) => { window.news = (text) => out.enqueue(new TextEncoder().encode(text)); window.over = () => out.close(); } });
      return new Response(body, { status: 200, headers: { 'Content-Type': 'text/event-stream' } });
    };
  });
  await page.reload();
  for (const what of ['it fails', 'it is lost', 'it is made']) {
    await page.getByRole('button', { name: 'New', exact: true }).click();
    await page.getByLabel('Image (where a provider has images)').fill('tool:1');
    await page.getByRole('button', { name: 'Create' }).click();
    await page.waitForFunction(() => window.news);
    assert.equal(await page.evaluate(() => window.accepted), 'text/event-stream');
    const text = events(['image.pull', pull]);
    await page.evaluate((half) => window.news(half), text.slice(0, 40));
    await page.evaluate((half) => window.news(half), text.slice(40));
    await page.getByRole('dialog').getByText('Pulling tool:<b>1</b>: 1 of 3 layers, 5M of 20M').waitFor();
    if (what === 'it fails') await page.evaluate((text) => window.news(text), events(failure));
    if (what === 'it is made') await page.evaluate((text) => window.news(text), events(['created', { id: pull.id }]));
    await page.evaluate(() => { window.over(); delete window.news; });
    if (what === 'it fails') await page.getByRole('dialog').getByText('the registry has no such image').waitFor();
    if (what === 'it is lost') await page.getByRole('dialog').getByText('the connection was lost while the image was pulled').waitFor();
    if (what === 'it is made') await page.getByText(`Made ${pull.id}`).waitFor();
    await page.keyboard.press('Escape');
  }
  assert.deepEqual(v.faults, []);
  await v.close();
});

test('hostile names are text', async (t) => {
  const evil = '<img src=x onerror=window.hit=1>';
  await sandbox(t, { user_id: evil, thread_id: '\u202egnp.exe</td><script>window.hit=1</script>', metadata: { a: '"><svg onload=window.hit=1>' } });
  const v = await enter();
  await v.page.getByText(evil, { exact: false }).first().waitFor();
  await v.page.getByText('<202e>gnp.exe', { exact: false }).first().waitFor();
  assert.equal(await v.page.evaluate(() => window.hit), undefined);
  assert.equal(await v.page.locator('main img, main svg, main script').count(), 0);
  assert.deepEqual(v.faults, []);
  await v.close();
});

test('a revoked key closes the page within two seconds, and the page says why', async (t) => {
  const key = await control('key');
  const v = await enter('#/', { key });
  const sockets = [];
  v.page.on('websocket', (ws) => sockets.push(ws));
  await v.page.reload();
  const id = (await (await fetch(`${HOME}/v1/console/me`, { headers: { 'X-API-Key': key } })).json()).key_id;
  await v.page.getByText('● live').waitFor();
  const closed = new Promise((done) => { v.page.once('close', done); sockets.at(-1).once('close', done); });
  await control(`revoke?${id}`);
  const began = Date.now();
  await closed;
  t.diagnostic(`its socket was closed ${Date.now() - began} ms after`);
  assert.ok(Date.now() - began < PATIENCE / 7.5); // two seconds, more where the machine is slow
  await v.page.getByLabel('API key').waitFor();
  await v.page.getByRole('alert').filter({ hasText: /^You are logged out: .+\. What runs in sandboxes goes on/ }).waitFor();
  // Logging out by oneself needs no such word.
  await v.page.getByLabel('API key').fill(PADDOCK_API_KEY);
  await v.page.getByRole('button', { name: 'Log in' }).click();
  await v.page.getByRole('button', { name: 'Log out' }).click();
  await v.page.getByLabel('API key').waitFor();
  assert.equal(await v.page.getByText('You are logged out').count(), 0);
  await v.close();
});

test('the login outlives a kill of the server', async () => {
  const v = await enter();
  await control('restart');
  await v.page.reload();
  await v.page.getByRole('navigation', { name: 'Pages' }).waitFor();
  await v.page.getByText(/in all$/).waitFor();
  assert.deepEqual(v.faults, []);
  await v.close();
});
