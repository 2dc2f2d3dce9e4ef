// The pages around the sandboxes: overview, audit, keys; and what each role sees of them.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { after, before, test } from 'node:test';

import { api, axePath, control, enter, HOME, sandbox, start, stop, until, visit } from './browser.mjs';

before(start);
after(stop);

async function violations(page) {
  await page.evaluate(await readFile(axePath, 'utf8'));
  const { violations: found } = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
  return found.map((v) => `${v.id}: ${v.nodes.map((n) => n.target).join(' ')}`);
}

const links = (page) => page.getByRole('navigation', { name: 'Pages' }).getByRole('link').allInnerTexts();

test('the overview counts what there is, and an admin sees all tenants', async (t) => {
  await sandbox(t, { user_id: 'count', thread_id: 'me' });
  const mine = await enter('#/overview');
  await mine.page.getByRole('heading', { name: 'Tenant default' }).waitFor();
  assert.equal(await mine.page.getByText('All tenants').count(), 0);
  const running = mine.page.getByRole('row', { name: /^Running/ });
  await until('the number', async () => Number((await running.innerText()).replace(/\D/g, '')) >= 1);
  const all = await enter('#/overview', { key: await control('role?admin') });
  await all.page.getByText('All tenants').waitFor();
  await all.page.getByText(/a second\)/).first().waitFor();
  const made = await sandbox(t);
  await all.page.getByRole('heading', { name: 'Slowest to make' }).waitFor();
  await all.page.getByRole('row').filter({ hasText: /\d ms of \S+: jail, \w+, at / }).first().waitFor();
  await api('POST', `/v1/sandboxes/${made.id}/exec`, { argv: ['sleep', '60'], timeout_s: 0.1 });
  assert.equal((await fetch(`${HOME}/v1/sandboxes/nosuchone`, { headers: { 'X-API-Key': process.env.PADDOCK_API_KEY } })).status, 404);
  for (const name of [/^Commands stopped: timeout/, /^Requests refused: not_found/]) await all.page.getByRole('row', { name }).waitFor();
  assert.deepEqual([...mine.faults, ...all.faults], []);
  await mine.close();
  await all.close();
});

test('the audit log is filtered, leads to the sandbox, and is saved as lines', async (t) => {
  const made = await sandbox(t);
  await api('POST', `/v1/sandboxes/${made.id}/exec`, { command: 'echo "<img src=x onerror=window.hit=1>"' });
  const v = await enter('#/audit');
  const { page } = v;
  await page.getByLabel('Sandbox', { exact: true }).fill(made.id);
  await page.getByLabel('Action', { exact: true }).fill('exec');
  await page.keyboard.press('Enter');
  await until('one row', async () => (await page.locator('tbody tr').count()) === 1);
  await page.getByText('<img src=x', { exact: false }).waitFor();
  assert.equal(await page.evaluate(() => window.hit), undefined);

  const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Export' }).click()]);
  const lines = (await readFile(await download.path(), 'utf8')).trim().split('\n').map((line) => JSON.parse(line));
  assert.deepEqual(lines.map((e) => [e.action, e.sandbox, e.result]), [['exec', made.id, 'ok']]);
  await page.getByRole('link', { name: made.id }).click();
  await page.getByRole('heading', { name: new RegExp(made.id) }).waitFor();
  assert.deepEqual(v.faults, []);
  await v.close();
});

test('an admin makes a key, which is shown once, and revokes it; others have no such page', async () => {
  const v = await enter('#/keys', { key: await control('role?admin') });
  const { page } = v;
  await page.getByRole('button', { name: 'New key' }).click();
  await page.getByLabel('Label').fill('from the page');
  await page.getByLabel('Role').selectOption('reader');
  await page.getByRole('button', { name: 'Make' }).click();
  const key = (await page.getByLabel('The new key').innerText()).trim();
  assert.match(key, /^e2b_[0-9a-f]{40}$/);
  const me = await api('GET', '/v1/console/me', undefined, key);
  assert.equal(me.role, 'reader');
  await page.getByRole('button', { name: 'I have it' }).click();
  await page.reload();
  await page.getByRole('row', { name: /from the page/ }).waitFor();
  assert.ok(!(await page.content()).includes(key));

  await page.getByRole('button', { name: `Revoke ${me.key_id}` }).click();
  await page.getByRole('dialog').getByText('Copy as curl').waitFor();
  await page.getByRole('button', { name: 'Revoke', exact: true }).click();
  await page.getByRole('row', { name: new RegExp(`${me.key_id}.*revoked`) }).waitFor();
  assert.deepEqual(v.faults, []);
  assert.ok((await links(page)).includes('Keys'));
  await v.close();

  const other = await enter('#/keys');
  await other.page.getByLabel('Filter').waitFor(); // the list, in place of a page that is not there
  assert.ok(!(await links(other.page)).includes('Keys'));
  await other.close();
});

test('a reader sees no button that the server would refuse', async (t) => {
  const made = await sandbox(t);
  const v = await enter('#/', { key: await control('role?reader') });
  const { page } = v;
  await page.locator(`tr[data-id="${made.id}"]`).waitFor();
  assert.equal(await page.getByRole('button', { name: 'New' }).count(), 0);
  // Neither by keyboard.
  await page.keyboard.press('c');
  await page.keyboard.press('?');
  await page.getByRole('dialog').getByText('all keys').waitFor();
  assert.equal(await page.getByRole('dialog').getByText('new sandbox').count(), 0);
  await page.keyboard.press('Escape');

  // On every tab: whatever button there is does nothing that the server would refuse.
  await api('POST', `/v1/sandboxes/${made.id}/processes`, { argv: ['python3', '-m', 'http.server', '8000'] });
  await api('POST', `/v1/sandboxes/${made.id}/exec`, { command: 'echo text > file.txt' });
  const tabs = { terminal: 'No terminal is open', files: 'file.txt', processes: 'python3 -m http.server', ports: '8000', metrics: 'Memory: now', history: 'process.start', about: '"id"' };
  for (const [tab, sign] of Object.entries(tabs)) {
    await page.goto(`${HOME}/#/sandbox/${made.id}/${tab}`);
    await page.getByText(sign).first().waitFor();
    const buttons = (await page.locator('main').getByRole('button').allInnerTexts()).map((text) => text.trim());
    const harmless = ['/', 'workspace', '..', 'file.txt', 'Download', 'Refresh'];
    assert.deepEqual(buttons.filter((text) => !harmless.includes(text)), [], tab);
  }
  assert.equal(await page.getByRole('link', { name: 'Run code' }).count(), 0);
  // What it may: read and save a file.
  await page.goto(`${HOME}/#/sandbox/${made.id}/files`);
  const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Download file.txt' }).click()]);
  assert.equal(await readFile(await download.path(), 'utf8'), 'text\n');
  assert.deepEqual(v.faults, []);
  await v.close();
});

test('a page whose API a server is without is not shown, nor what would need it', async (t) => {
  const made = await sandbox(t);
  const me = await api('GET', '/v1/console/me');
  const v = await enter();
  const { page } = v;
  assert.ok((await links(page)).includes('Snapshots') && (await links(page)).includes('Audit'));
  await page.route('**/v1/console/me', (route) => route.fulfill({ json: { ...me, features: [] } }));
  await page.reload();
  await page.getByRole('link', { name: made.id }).waitFor();
  assert.deepEqual(await links(page), ['Sandboxes', 'Overview', 'Templates', 'Providers']);
  for (const at of ['snapshots', 'audit']) {
    await page.goto(`${HOME}/#/${at}`);
    await page.getByLabel('Filter').waitFor(); // the list, in place of a page that is not there
  }
  await page.goto(`${HOME}/#/templates`);
  await page.getByText('A page <b>').first().waitFor();
  assert.equal(await page.getByRole('button', { name: 'Build one' }).count(), 0);
  await page.goto(`${HOME}/#/sandbox/${made.id}/about`);
  await page.getByText(`"id": "${made.id}"`).waitFor();
  await page.getByRole('button', { name: 'End...' }).waitFor();
  for (const name of ['Snapshot...', 'Fork...']) assert.equal(await page.getByRole('button', { name }).count(), 0);
  assert.equal(await page.getByRole('link', { name: 'History' }).count(), 0);
  assert.deepEqual(v.faults, []);
  await v.close();
});

test('every page has what it does as lines for curl and as Python', async (t) => {
  const made = await sandbox(t, { user_id: 'code', thread_id: '1' });
  const base = `/v1/sandboxes/${made.id}`;
  await api('POST', `${base}/processes`, { argv: ['python3', '-m', 'http.server', '8000'] });
  const v = await enter('#/', { key: await control('role?admin') });
  const { page } = v;
  await page.getByLabel('Filter').fill('user:code');
  await page.getByLabel(`Choose ${made.id}`).check();
  /** What is shown under each 'Copy as curl / Python' of the page. */
  const shown = async () => {
    await page.locator('main details').evaluateAll((all) => { for (const one of all) one.open = true; });
    return (await page.locator('main .snippet pre').allInnerTexts()).join('\n');
  };
  const head = [`POST '${HOME}${base}/extend'`, `POST '${HOME}${base}/pause'`, `POST '${HOME}${base}/fork'`, `DELETE '${HOME}${base}'`];
  const wanted = {
    '': [`POST '${HOME}${base}/extend'`, `POST '${HOME}${base}/pause'`, `POST '${HOME}${base}/resume'`, `DELETE '${HOME}${base}'`],
    [`sandbox/${made.id}/terminal`]: [...head, `POST '${HOME}${base}/processes'`],
    [`sandbox/${made.id}/files`]: [...head, `GET '${HOME}${base}/files/list?path=%2Fworkspace'`, `PUT '${HOME}${base}/files?path=%2Fworkspace%2FNAME'`, "--data-binary '@NAME'"],
    [`sandbox/${made.id}/code`]: [...head, `POST '${HOME}${base}/contexts'`, `POST '${HOME}${base}/contexts/python/execute'`, `POST '${HOME}${base}/contexts/python/interrupt'`],
    [`sandbox/${made.id}/processes`]: [...head, '/signal', '"signal":"SIGINT"'],
    [`sandbox/${made.id}/ports`]: [...head, `POST '${HOME}${base}/ports/8000/preview'`],
    [`sandbox/${made.id}/metrics`]: [...head, `GET '${HOME}${base}/metrics?history=true'`],
    [`sandbox/${made.id}/history`]: [...head, `GET '${HOME}${base}/events?limit=500'`],
    [`sandbox/${made.id}/about`]: [...head, `GET '${HOME}${base}'`],
    overview: [`GET '${HOME}/v1/overview'`], templates: [`GET '${HOME}/v1/templates'`], snapshots: [`GET '${HOME}/v1/snapshots'`],
    providers: [`GET '${HOME}/v1/route?explain=true'`, `GET '${HOME}/v1/router'`], audit: [`GET '${HOME}/v1/audit?limit=200'`], keys: [`GET '${HOME}/v1/keys'`],
  };
  const ready = { ports: 'Show here', processes: 'python3 -m http.server', code: 'Interrupt' };
  for (const [at, lines] of Object.entries(wanted)) {
    if (at) await page.goto(`${HOME}/#/${at}`);
    if (at.startsWith('sandbox/')) await page.getByRole('button', { name: 'End...' }).waitFor();
    if (ready[at.split('/')[2]]) await page.locator('.inside').getByText(ready[at.split('/')[2]]).first().waitFor();
    await page.locator('main summary').first().waitFor();
    let said = '';
    await until(`what ${at || 'the list'} does`, async () => {
      said = await shown();
      return lines.every((line) => said.includes(line));
    }).catch(() => assert.fail(`${at}: ${JSON.stringify(lines)} is not all in\n${said}`));
    assert.match(said, /urllib\.request/);
  }

  // What is done without a question is told afterwards: a file that was saved, too.
  await api('POST', `${base}/exec`, { command: 'echo text > file.txt' });
  await page.goto(`${HOME}/#/sandbox/${made.id}/files`);
  await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Download file.txt' }).click()]);
  await page.getByRole('button', { name: 'As code' }).click();
  await page.getByRole('dialog').getByText(`GET ${base}/files?path=%2Fworkspace%2Ffile.txt`).waitFor();
  assert.deepEqual(v.faults, []);
  await v.close();
});

test('a snapshot is taken, used and deleted, and a sandbox is forked', async (t) => {
  const made = await sandbox(t, { metadata: { a: '1' } });
  await api('POST', `/v1/sandboxes/${made.id}/exec`, { command: 'echo kept > file.txt' });
  const v = await enter(`#/sandbox/${made.id}/files`);
  const { page } = v;
  await page.getByRole('button', { name: 'Snapshot...' }).click();
  await page.getByLabel('Name (or none)').fill('from-page');
  await page.getByRole('button', { name: 'Take' }).click();
  await page.getByText('Snapshot from-page').waitFor();
  await page.getByRole('button', { name: 'Fork...' }).click();
  await page.getByRole('button', { name: 'Fork', exact: true }).click();
  await page.waitForURL((url) => url.hash.startsWith('#/sandbox/') && !url.hash.includes(made.id));
  const fork = new URL(page.url()).hash.split('/')[2];
  t.after(() => api('DELETE', `/v1/sandboxes/${fork}`).catch(() => {}));
  assert.equal((await api('POST', `/v1/sandboxes/${fork}/exec`, { command: 'cat file.txt' })).stdout, 'kept\n');

  await page.getByRole('link', { name: 'Snapshots' }).click();
  const row = page.getByRole('row', { name: /from-page/ });
  await row.getByRole('button', { name: /^New sandbox/ }).click();
  await page.getByRole('button', { name: 'Create' }).click();
  await page.waitForURL((url) => url.hash.startsWith('#/sandbox/'));
  const other = new URL(page.url()).hash.split('/')[2];
  t.after(() => api('DELETE', `/v1/sandboxes/${other}`).catch(() => {}));
  assert.equal((await api('POST', `/v1/sandboxes/${other}/exec`, { command: 'cat file.txt' })).stdout, 'kept\n');

  await page.goto(`${HOME}/#/snapshots`);
  await row.getByRole('button', { name: /^Delete/ }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
  await row.waitFor({ state: 'detached' });

  // Whatever was done can be had as code, and none of it has the login.
  await page.getByRole('button', { name: 'As code' }).click();
  await page.getByRole('dialog').getByText(`POST /v1/sandboxes/${made.id}/fork`).waitFor();
  await page.getByRole('dialog').getByText('Copy as curl / Python').first().click();
  await page.getByRole('dialog').getByText('curl -X DELETE', { exact: false }).first().waitFor();
  assert.equal(await page.getByRole('dialog').getByText('console/login').count(), 0);
  assert.deepEqual(v.faults, []);
  await v.close();
});

test('a template is chosen, and its page is there when the sandbox is', async (t) => {
  const v = await enter('#/templates');
  const { page } = v;
  const row = page.getByRole('row', { name: /A page <b>/ });
  await row.getByText('port 8123 (The page)', { exact: false }).waitFor();
  await row.getByRole('button', { name: 'New sandbox from page' }).click();
  await page.getByLabel('Template').and(page.locator('select')).waitFor();
  assert.equal(await page.locator('select[name=template]').inputValue(), 'page');
  await page.getByRole('button', { name: 'Create' }).click();
  await page.waitForURL((url) => /^#\/sandbox\/[a-z0-9]+\/ports$/.test(url.hash));
  const id = new URL(page.url()).hash.split('/')[2];
  t.after(() => api('DELETE', `/v1/sandboxes/${id}`).catch(() => {}));
  await page.getByRole('button', { name: 'Show port 8123 here' }).click();
  await page.frameLocator('iframe').getByText('From a template').waitFor();

  // One that this host has nothing for says so where it was asked, and leaves nothing.
  await page.goto(`${HOME}/#/templates`);
  await page.route('**/v1/sandboxes', (route) => route.fulfill({ status: 501, contentType: 'application/json', body: '{"error":{"code":"unsupported","message":"its sandbox has no such program"}}' }));
  await page.getByRole('button', { name: 'New sandbox from page' }).click();
  await page.getByRole('button', { name: 'Create' }).click();
  await page.getByRole('dialog').getByText('its sandbox has no such program').waitFor();
  assert.deepEqual(v.faults, []);
  await v.close();
});

test('a template is built, its log is followed, and a sandbox is made of it', async (t) => {
  const v = await enter('#/templates');
  const { page } = v;
  await page.getByRole('button', { name: 'Build one' }).click();
  await page.getByLabel('Name').fill('from-page');
  await page.getByLabel('Commands, one in a line').fill('echo "<img src=x onerror=window.hit=1>"\necho built > /home/user/greeting');
  // What the steps have left is kept for the next build, until it is asked for.
  t.after(() => api('DELETE', '/v1/templates/from-page').catch(() => {}).then(() => api('DELETE', '/v1/build-cache')));
  await page.getByRole('button', { name: 'Build', exact: true }).click();
  await page.getByRole('log', { name: 'Log of from-page' }).getByText('<img src=x onerror=window.hit=1>').first().waitFor();
  await page.getByRole('row', { name: /^from-page .*ready; from template base, 1 build/ }).waitFor();
  await page.getByRole('button', { name: 'New sandbox from from-page' }).click();
  await page.getByRole('button', { name: 'Create' }).click();
  await page.waitForURL((url) => url.hash.startsWith('#/sandbox/'));
  const id = new URL(page.url()).hash.split('/')[2];
  t.after(() => api('DELETE', `/v1/sandboxes/${id}`).catch(() => {}));
  assert.equal((await api('POST', `/v1/sandboxes/${id}/exec`, { command: 'cat /home/user/greeting' })).stdout, 'built\n');
  assert.equal(await page.evaluate(() => window.hit), undefined);
  await page.goto(`${HOME}/#/templates`);
  await page.getByRole('button', { name: 'Delete from-page' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
  await page.getByRole('button', { name: 'Delete from-page' }).waitFor({ state: 'detached' });
  assert.deepEqual(v.faults, []);
  await v.close();
});

for (const colorScheme of ['light', 'dark']) {
  test(`the login, dialogs and these pages have no violation of axe's rules, ${colorScheme}`, async () => {
    const out = await visit({ colorScheme });
    await out.page.goto(`${HOME}/`);
    await out.page.getByLabel('API key').waitFor();
    assert.deepEqual(await violations(out.page), []);
    await out.close();

    const v = await enter('#/', { colorScheme, key: await control('role?admin') });
    const { page } = v;
    await page.getByText('● live').waitFor();
    await page.keyboard.press('c');
    await page.getByRole('dialog').getByText('Copy as curl / Python').click();
    assert.deepEqual(await violations(page), []);
    await page.keyboard.press('Escape');
    await control('image?looked-at:1');
    for (const [at, sign] of [['images', 'looked-at:1'], ['overview', 'Since the server started'], ['audit', 'console.login'], ['templates', 'A page <b>'], ['snapshots', 'Of sandbox'], ['keys', '● valid']]) {
      await page.goto(`${HOME}/#/${at}`);
      await page.getByText(sign).first().waitFor();
      assert.deepEqual(await violations(page), [], at);
    }
    await page.getByRole('button', { name: 'New key' }).click();
    assert.deepEqual(await violations(page), []);
    await page.keyboard.press('Escape');
    await page.goto(`${HOME}/#/images`);
    await page.getByRole('button', { name: 'Fetch...' }).click();
    await page.getByRole('dialog').getByLabel('Image', { exact: true }).waitFor();
    assert.deepEqual(await violations(page), []);
    await v.close();
  });
}
