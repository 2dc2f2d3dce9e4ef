// Who sees what, how it is reached, and what the page does while much happens.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { after, before, test } from 'node:test';

import { api, axePath, control, enter, HOME, line, PADDOCK_URL, sandbox, start, stop, until } from './browser.mjs';

before(start);
after(stop);

const ids = (page) => page.locator('tbody tr[data-id]').evaluateAll((rows) => rows.map((row) => row.dataset.id));

test('two tenants see nothing of each other, also by address', async (t) => {
  const key = await control('key?others');
  const mine = await sandbox(t, { user_id: 'mine', thread_id: '1' });
  const theirs = await api('POST', '/v1/sandboxes', { user_id: 'theirs', thread_id: '1' }, key);
  t.after(() => api('DELETE', `/v1/sandboxes/${theirs.id}`, undefined, key).catch(() => {}));

  const v = await enter('#/', { key });
  await v.page.locator(`tr[data-id="${theirs.id}"]`).waitFor();
  assert.deepEqual(await ids(v.page), [theirs.id]);
  for (const tab of ['terminal', 'files', 'processes', 'history', 'about']) {
    await v.page.goto(`${HOME}/#/sandbox/${mine.id}/${tab}`);
    await v.page.getByRole('alert').filter({ hasText: `there is no sandbox '${mine.id}'` }).first().waitFor();
    assert.equal(await v.page.locator('.inside').innerText(), '', tab);
    await v.page.reload();
  }
  await v.page.goto(`${HOME}/#/audit`);
  await v.page.getByText('sandbox.create').first().waitFor();
  assert.ok(!(await v.page.locator('main').innerText()).includes(mine.id));
  await v.page.goto(`${HOME}/#/overview`);
  await v.page.getByRole('heading', { name: 'Tenant others' }).waitFor();
  await v.close();
});

test('what a role may not do the server refuses, whatever the page shows', async (t) => {
  const made = await sandbox(t);
  const tried = [['POST', `/v1/sandboxes/${made.id}/pause`, {}], ['DELETE', `/v1/sandboxes/${made.id}`], ['POST', '/v1/sandboxes', {}],
    ['POST', `/v1/sandboxes/${made.id}/processes`, { argv: ['true'] }], ['GET', '/v1/keys'], ['PUT', '/v1/router', {}]];
  const refused = { reader: tried.length, operator: 2, admin: 0 };
  for (const [role, count] of Object.entries(refused)) {
    const v = await enter('#/', { key: role === 'operator' ? process.env.PADDOCK_API_KEY : await control(`role?${role}`) });
    if (role === 'admin') { await v.close(); continue; } // what it may would be done
    const answers = await v.page.evaluate(async (list) => {
      const headers = { 'X-Paddock-Proof': localStorage.getItem('paddock.proof'), 'Content-Type': 'application/json' };
      return Promise.all(list.map(([method, path, body]) => fetch(path, { method, headers, body: body && JSON.stringify(body) }).then((answer) => answer.status)));
    }, role === 'reader' ? tried : tried.slice(4));
    assert.deepEqual(answers, Array(count).fill(403), role);
    await v.close();
  }
});

test('by keyboard alone: a terminal is used and left, a file is made, and the sandbox is ended', async (t) => {
  const made = await sandbox(t, { user_id: 'keys', thread_id: 'alone' });
  const v = await enter();
  const { page } = v;
  await page.keyboard.press('/');
  await page.keyboard.type('user:keys');
  await page.getByText(/^1 of \d+$|^1 in all$/).waitFor();
  /** Tab until it is there; a person would stop, too. */
  const tabTo = async (what, locator) => {
    for (let i = 0; i < 60; i++) {
      if (await locator.evaluate((node) => node === document.activeElement).catch(() => false)) return;
      await page.keyboard.press('Tab');
    }
    assert.fail(`${what} cannot be reached by Tab`);
  };
  await tabTo('the link of the sandbox', page.getByRole('link', { name: made.id }));
  await page.keyboard.press('Enter');
  const screen = page.locator('.screen');
  await until('a prompt', async () => (await screen.innerText()).includes('$'));
  await page.keyboard.type('echo by-keys > file.txt; cat file.txt');
  await page.keyboard.press('Enter');
  await until('the answer', async () => (await screen.innerText()).split('\n').some((line) => line.trim() === 'by-keys'));
  await page.keyboard.press('Control+F6');
  const tab = page.getByRole('link', { name: 'Files' });
  await tabTo('the tab', tab);
  await page.keyboard.press('Enter');
  const file = page.getByRole('button', { name: 'file.txt', exact: true });
  await file.waitFor();
  await tabTo('the file', file);
  await page.keyboard.press('Enter');
  await page.getByLabel('Text of file.txt').waitFor();
  await page.keyboard.press('Control+End');
  await page.keyboard.type('more');
  await tabTo('Save', page.getByRole('button', { name: 'Save' }));
  await page.keyboard.press('Enter');
  await until('it is saved', async () => (await api('POST', `/v1/sandboxes/${made.id}/exec`, { command: 'cat file.txt' })).stdout === 'by-keys\nmore');
  await tabTo('End', page.getByRole('button', { name: 'End...' }));
  await page.keyboard.press('Enter');
  await tabTo('the answer', page.getByRole('dialog').getByRole('button', { name: 'End', exact: true }));
  await page.keyboard.press('Enter');
  await until('it has ended', async () => (await api('GET', `/v1/sandboxes/${made.id}`)).state === 'gone');
  assert.deepEqual(v.faults, []);
  await v.close();
});

test('at 200 % zoom nothing is cut off, and every page can be used', async (t) => {
  const made = await sandbox(t, { user_id: 'a-rather-long-name-of-a-user', thread_id: 'thread' });
  await api('POST', `/v1/sandboxes/${made.id}/exec`, { command: 'echo 1 > a-file-with-a-rather-long-name-that-says-much.txt' });
  // 1280 x 800 at 200 % are 640 x 400 pixels of CSS.
  const v = await enter('#/', { viewport: { width: 640, height: 400 }, key: await control('role?admin'), deviceScaleFactor: 2 });
  const { page } = v;
  await control('image?registry.example/a-rather-long-name/of-an-image:with-a-tag-that-says-much');
  const pages = ['', 'templates', 'images', 'overview', 'snapshots', 'providers', 'audit', 'keys', ...['terminal', 'files', 'processes', 'ports', 'metrics', 'history', 'about', 'code'].map((tab) => `sandbox/${made.id}/${tab}`)];
  for (const at of pages) {
    await page.goto(`${HOME}/#/${at}`);
    await page.reload();
    await page.locator('main :is(table, .screen, svg, pre, textarea)').first().waitFor();
    const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
    assert.equal(wide, false, `${at}: the page scrolls sideways`);
    // What is outside of the window can be scrolled to.
    const lost = await page.evaluate(() => [...document.querySelectorAll('header button, nav a, main button, main a, main input')].filter((node) => {
      const box = node.getBoundingClientRect();
      if (!box.width || node.closest('.unseen, [hidden]') || node.matches('.unseen') || getComputedStyle(node).visibility === 'hidden') return false;
      let holder = node.parentElement;
      while (holder && !/auto|scroll/.test(getComputedStyle(holder).overflow)) holder = holder.parentElement;
      return !holder && (box.left < 0 || box.right > innerWidth + 1 || box.bottom > innerHeight + 1);
    }).map((node) => node.textContent));
    assert.deepEqual(lost, [], at);
  }
  await page.evaluate(await readFile(axePath, 'utf8'));
  const found = await page.evaluate(() => window.axe.run());
  assert.deepEqual(found.violations.map((x) => x.id), []);
  await v.close();
});

test('a WebSocket of a port works in the frame and in a tab, and ends with its link', async (t) => {
  const made = await sandbox(t);
  const base = `/v1/sandboxes/${made.id}`;
  const app = await readFile(new URL('../api/port_app.py', import.meta.url));
  await fetch(`${PADDOCK_URL}${base}/files?path=/workspace/app.py`, { method: 'PUT', headers: { 'X-API-Key': process.env.PADDOCK_API_KEY, 'Content-Type': 'application/octet-stream' }, body: app });
  await api('POST', `${base}/processes`, { argv: ['python3', '/workspace/app.py'], cwd: '/workspace' });
  const v = await enter(`#/sandbox/${made.id}/ports`);
  const { page } = v;
  await page.getByRole('button', { name: 'Show port 8000 here' }).click();
  const talk = (frame) => frame.evaluate(() => new Promise((done) => {
    window.ws = new WebSocket(location.origin.replace(/^http/, 'ws') + '/ws', ['echo']);
    window.gone = false;
    window.ws.onopen = () => window.ws.send('héllo');
    window.ws.onmessage = (event) => done(event.data);
    window.ws.onclose = () => { window.gone = true; done(null); };
  }));
  const inside = await until('the frame', () => page.frames().find((f) => f !== page.mainFrame() && f.url().includes('8000-')));
  await inside.waitForLoadState();
  assert.match(String(await talk(inside)), /héllo/);

  const [tab] = await Promise.all([v.context.waitForEvent('page'), page.getByRole('button', { name: /^Open port 8000/ }).click()]);
  await tab.waitForURL((url) => url.host.startsWith('8000-'));
  assert.notEqual(new URL(tab.url()).origin, HOME);
  assert.match(String(await talk(tab)), /héllo/);

  // Both links are taken back: both sockets end, and neither opens anything any more.
  for (let i = 0; i < 2; i++) {
    const good = page.getByRole('button', { name: /^Revoke link/ });
    const left = await good.count();
    await good.first().click();
    await page.getByRole('dialog').getByRole('button', { name: 'Revoke' }).click();
    await until('it is revoked', async () => (await good.count()) === left - 1);
  }
  for (const where of [inside, tab]) await until('its socket has ended', () => where.evaluate(() => window.gone));
  await tab.reload();
  await tab.getByText('unauthenticated').waitFor();
  await v.close();
});

test('a full disk costs nothing that was typed, and is told; so is a sandbox that ends while it is looked at', async (t) => {
  const made = await sandbox(t, { user_id: 'full', thread_id: '1', limits: { disk_bytes: 32 << 20 } });
  const base = `/v1/sandboxes/${made.id}`;
  await api('POST', `${base}/exec`, { command: 'echo small > kept.txt; for i in 1 2 3; do head -c 100M /dev/zero >> filler; sync; done 2>/dev/null; true' });
  const v = await enter(`#/sandbox/${made.id}/files`);
  const { page } = v;
  const told = page.locator('.alert').filter({ hasText: 'no space or no files are left in the sandbox' });
  await page.locator('input[type=file]').setInputFiles({ name: 'up.bin', mimeType: 'application/octet-stream', buffer: Buffer.alloc(2 << 20) });
  await told.first().waitFor();
  await page.getByRole('button', { name: 'kept.txt', exact: true }).click();
  const area = page.getByLabel('Text of kept.txt');
  await area.fill('long'.repeat(250000));
  const before = await told.count();
  await page.getByRole('button', { name: 'Save' }).click();
  await until('it is told again', async () => (await told.count()) > before);
  assert.equal((await area.inputValue()).length, 1000000);
  assert.equal((await api('POST', `${base}/exec`, { command: 'cat kept.txt' })).stdout, 'small\n');
  await api('POST', `${base}/exec`, { command: 'rm filler' });
  await page.getByRole('button', { name: 'Save' }).click();
  await until('it is saved', async () => (await api('POST', `${base}/exec`, { command: 'wc -c < kept.txt' })).stdout.trim() === '1000000');

  await page.goto(`${HOME}/#/sandbox/${made.id}/terminal`);
  await until('a prompt', async () => (await page.locator('.screen').innerText()).includes('$'));
  await api('DELETE', base);
  await page.locator('.status').filter({ hasText: /ended|deleted|gone/ }).waitFor();
  await page.goto(`${HOME}/#/sandbox/${made.id}/files`);
  await page.getByText('It has ended: deleted by the API').waitFor();
  await page.goto(`${HOME}/#/sandbox/${made.id}/history`);
  await page.getByText('sandbox.delete').waitFor();
  await v.close();
});

test('while much changes, a socket is lost and the server is killed, the list becomes as the server has it', async (t) => {
  const wire = await line();
  t.after(wire.close);
  const v = await enter('#/', { proxy: wire.proxy });
  const { page } = v;
  await page.getByText('● live').waitFor();
  const made = [];
  t.after(() => Promise.all(made.map((id) => api('DELETE', `/v1/sandboxes/${id}`).catch(() => {}))));
  const rounds = process.env.PADDOCK_NIGHTLY ? 120 : 12;
  let ends = 0;
  /** Each makes, pauses, resumes, renews and now and then ends. */
  const worker = async (n) => {
    for (let i = 0; i < rounds; i++) {
      const { id } = await api('POST', '/v1/sandboxes', { user_id: 'churn', thread_id: `${n}-${i}` });
      made.push(id);
      await api('POST', `/v1/sandboxes/${id}/pause`, {});
      if (i % 3) await api('POST', `/v1/sandboxes/${id}/resume`, {});
      if (i % 3) await api('POST', `/v1/sandboxes/${id}/extend`, { idle_timeout_s: 500 + i });
      if (i % 2 || i + 6 < rounds) { await api('DELETE', `/v1/sandboxes/${id}`); ends++; }
    }
  };
  /** What the whole list shows, by id: it is scrolled from its top to its end, because only what can be seen is in the page. */
  const shown = () => page.locator('.scroll').evaluate(async (scroll) => {
    const all = {};
    for (let at = 0, end = 0; !end; at += scroll.clientHeight) {
      scroll.scrollTop = at;
      await new Promise((done) => { requestAnimationFrame(() => setTimeout(done)); });
      for (const row of scroll.querySelectorAll('tbody tr[data-id]')) all[row.dataset.id] = row.querySelector('.state').lastChild.textContent;
      end = at + scroll.clientHeight >= scroll.scrollHeight;
    }
    scroll.scrollTop = 0;
    return all;
  });
  /** Waits until the list has what the server has. */
  const same = async () => {
    let wanted, seen;
    await until('they are the same', async () => {
      const list = (await api('GET', '/v1/sandboxes?user_id=churn&limit=1000')).sandboxes;
      wanted = Object.fromEntries(list.map((s) => [s.id, s.state]));
      seen = Object.fromEntries(Object.entries(await shown()).filter(([, state]) => state !== 'gone'));
      return JSON.stringify(Object.entries(seen).sort()) === JSON.stringify(Object.entries(wanted).sort());
    }).catch((error) => assert.fail(`${error.message}\nwanted ${JSON.stringify(wanted)}\nseen ${JSON.stringify(seen)}`));
    return Object.keys(wanted).length;
  };
  await page.getByLabel('Filter').fill('user:churn');
  await Promise.all([0, 1, 2].map(worker));
  wire.cut(); // whatever was still on its way is lost
  await control('restart');
  await page.getByText('× no connection').waitFor();
  await Promise.all([3, 4, 5].map(worker));
  wire.mend();
  await Promise.all([6, 7, 8].map(worker));
  await page.getByText('● live').waitFor();
  // Those that the page has seen to end stay in it, above the ones that are left: more than fit into the window.
  const late = await Promise.all(Array.from({ length: 40 }, (_, i) => api('POST', '/v1/sandboxes', { user_id: 'churn', thread_id: `seen-${i}` })));
  await page.locator('tbody tr[data-id]').filter({ hasText: /churn\/seen-/ }).nth(30).waitFor();
  await Promise.all(late.map(({ id }) => api('DELETE', `/v1/sandboxes/${id}`)));
  const left = await same();
  t.diagnostic(`${made.length} made, ${ends} ended, ${left} left`);
  assert.ok(left > 0 && ends > 0);
  await v.close();
});

test('a sandbox that ends while the list is on its way is not shown as if it ran', async (t) => {
  const v = await enter('#/overview');
  const { page } = v;
  const [kept, ended] = [await sandbox(t, { user_id: 'late', thread_id: 'kept' }), await sandbox(t, { user_id: 'late', thread_id: 'ended' })];
  // Its end comes as one change, as it does when both fall into one turn of 100 ms.
  let told;
  const end = new Promise((done) => { told = done; });
  await page.routeWebSocket('**/v1/changes', (ws) => {
    ws.connectToServer().onMessage((text) => {
      const message = JSON.parse(text);
      const states = (message.sandboxes ?? []).filter((s) => s.id === ended.id).map((s) => s.state);
      if (!states.includes('stopping')) ws.send(text);
      if (states.includes('gone')) told();
    });
  });
  await page.reload();
  // The server answers at once; its answer comes after the news of what happened since.
  await page.route('**/v1/sandboxes?*', async (route) => {
    const url = new URL(route.request().url());
    const answer = await api('GET', url.pathname + url.search);
    assert.ok(answer.sandboxes.some((s) => s.id === ended.id), 'a control: it was in the list');
    await api('DELETE', `/v1/sandboxes/${ended.id}`);
    await end;
    await route.fulfill({ json: answer });
  }, { times: 1 });
  await page.goto(`${HOME}/#/`);
  await page.locator(`tr[data-id="${kept.id}"]`).waitFor();
  await page.getByText('● live').waitFor();
  assert.deepEqual((await ids(page)).filter((id) => [kept.id, ended.id].includes(id)), [kept.id]);
  await v.close();
});

test('no secret is in any address or in what the server has said', async () => {
  const key = await control('key');
  const link = await control('link');
  const { context, page, close } = await enter('#/', { key });
  const asked = [];
  page.on('request', (request) => asked.push(request.url()));
  page.on('websocket', (ws) => asked.push(ws.url()));
  for (const at of ['overview', 'audit', 'templates', '']) {
    await page.goto(`${HOME}/#/${at}`);
    await page.reload();
    await page.locator('main h1').waitFor();
  }
  const secrets = [key, link.split('=')[1], await page.evaluate(() => localStorage.getItem('paddock.proof')), ...(await context.cookies()).map((c) => c.value)];
  const audit = JSON.stringify((await api('GET', '/v1/audit?limit=1000')).events);
  const log = await control('log');
  for (const secret of secrets) {
    assert.ok(secret.length > 20);
    assert.equal(asked.find((url) => url.includes(secret)), undefined);
    assert.ok(!audit.includes(secret) && !log.includes(secret));
  }
  assert.ok(asked.some((url) => url.startsWith('ws:')), 'a control: sockets are seen');
  await close();
});
