// The page of one sandbox, in a real browser: terminals that outlive what they are seen through, files,
// previews, and programs that try to be more than text.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { after, before, test } from 'node:test';

import { api, axePath, control, enter, HOME, PADDOCK_API_KEY, PADDOCK_URL, sandbox, start, stop, until } from './browser.mjs';

before(start);
after(stop);

const screenText = (page) => page.locator('.screen').innerText();
const seen = (page, text) => until(`'${text}' on the screen`, async () => (await screenText(page)).includes(text));

async function openTerminal(t, body) {
  const made = await sandbox(t, body);
  const v = await enter(`#/sandbox/${made.id}/terminal`);
  await v.page.locator('.screen').waitFor();
  await seen(v.page, '$');
  return { ...v, id: made.id, base: `/v1/sandboxes/${made.id}` };
}

async function type(page, line) {
  await page.getByLabel('Terminal input').focus();
  await page.keyboard.type(line);
  await page.keyboard.press('Enter');
}

test('a terminal is typed into, outlives a reload and a kill of the server, and loses no byte', async (t) => {
  const v = await openTerminal(t);
  const { page } = v;
  await type(page, 'x=kept; echo $((6*7))-answer');
  await seen(page, '42-answer');
  await page.reload();
  await seen(page, '42-answer');
  await type(page, 'echo still $x');
  await seen(page, 'still kept');

  // While the server is killed and comes back, the shell counts on.
  await type(page, 'for i in $(seq 1 300); do echo line-$i; sleep 0.02; done; echo all-$((300+0))');
  await seen(page, 'line-1');
  await control('restart');
  await seen(page, 'all-300');
  await page.getByText('connected again, nothing is lost').waitFor();
  assert.equal(await page.getByText('left out').count(), 0);

  // What the page has shown from first to last is what the server has kept: scrolled back by the wheel.
  const lines = new Set();
  for (let i = 0; i < 60; i++) {
    for (const line of (await screenText(page)).split('\n')) lines.add(line.trim());
    if (lines.has('line-1')) break;
    await page.getByLabel('Terminal input').press('Shift+PageUp');
    await page.waitForFunction(() => new Promise((done) => { requestAnimationFrame(() => requestAnimationFrame(() => done(true))); }));
  }
  for (let i = 1; i <= 300; i++) assert.ok(lines.has(`line-${i}`), `line-${i} is missing`);
  assert.deepEqual(v.faults.filter((f) => !/WebSocket|Failed to load|ERR_CONNECTION/.test(f)), []);
  await v.close();
});

test('a full-screen program, Ctrl-C, and the keyboard out of it', async (t) => {
  const v = await openTerminal(t);
  const { page } = v;
  await type(page, 'printf "\\033[?1049h\\033[5;10Hfull\\033[1;31mred\\033[0m"; read -n1; printf "\\033[?1049l"; echo back-again');
  await until('the full screen', async () => /^ {9}fullred/m.test(await screenText(page)));
  assert.ok(!(await screenText(page)).includes('$'));
  await page.keyboard.press('q');
  await seen(page, 'back-again');

  await type(page, 'yes');
  await until('it is full of y', async () => (await screenText(page)).split('\n').filter((l) => l.trim() === 'y').length > 10);
  await page.keyboard.press('Control+c');
  await until('the prompt', async () => (await screenText(page)).trimEnd().endsWith('$'));
  await type(page, 'echo st"op"ped');
  await seen(page, 'stopped');
  await page.keyboard.press('Control+F6');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'main');
  assert.deepEqual(v.faults, []);
  await v.close();
});

test('what a program writes is text: no element, no script, no clipboard', async (t) => {
  const v = await openTerminal(t);
  const { page, context } = v;
  await context.grantPermissions(['clipboard-read', 'clipboard-write'], { origin: HOME });
  await page.evaluate(() => navigator.clipboard.writeText('mine'));
  await api('PUT', `/v1/sandboxes/${v.id}/env`, { env: {} }).catch(() => {});
  await fetch(`${PADDOCK_URL}${v.base}/files?path=/workspace/evil`, {
    method: 'PUT', headers: { 'X-API-Key': PADDOCK_API_KEY, 'Content-Type': 'application/octet-stream' },
    body: '\x1b]0;<img src=x onerror=window.hit=1>\x07\x1b]52;c;ZXZpbA==\x07\x1b]8;;javascript:window.hit=1\x07<script>window.hit=1</script>\x1b]8;;\x07 THE-END\r\n',
  });
  await type(page, 'cat evil');
  await seen(page, '<script>window.hit=1</script> THE-END');
  assert.equal(await page.evaluate(() => window.hit), undefined);
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), 'mine');
  assert.equal(await page.locator('.screen a, .screen img, .screen script, .tabs img').count(), 0);
  assert.deepEqual(v.faults, []);
  await v.close();
});

test('files: uploaded, listed with hostile names, edited with a conflict, downloaded, deleted', async (t) => {
  const made = await sandbox(t);
  const base = `/v1/sandboxes/${made.id}`;
  const evil = '<img src=x onerror=window.hit=1>';
  await api('POST', `${base}/exec`, { argv: ['touch', `/workspace/${evil}`, '/workspace/\u202egnp.exe'] });
  const v = await enter(`#/sandbox/${made.id}/files`);
  const { page } = v;
  await page.getByText(evil).waitFor();
  await page.getByText('<202e>gnp.exe').waitFor();
  assert.equal(await page.evaluate(() => window.hit), undefined);

  // What programs make there comes by itself, and takes nobody's place on a button.
  const held = page.getByRole('button', { name: `Delete ${evil}` });
  await held.focus();
  await api('POST', `${base}/exec`, { command: 'echo text > later.txt' });
  await page.getByRole('button', { name: 'later.txt', exact: true }).waitFor();
  assert.equal(await held.evaluate((node) => node === document.activeElement), true);

  await page.locator('input[type=file]').setInputFiles({ name: 'up.txt', mimeType: 'text/plain', buffer: Buffer.from('first\n') });
  await page.getByRole('button', { name: 'up.txt', exact: true }).click();
  const area = page.getByLabel('Text of up.txt');
  assert.equal(await area.inputValue(), 'first\n');
  await area.fill('second\n');
  await page.getByRole('button', { name: 'Save' }).click();
  const content = async () => (await api('POST', `${base}/exec`, { command: 'cat up.txt' })).stdout;
  await until('it is saved', async () => (await content()) === 'second\n');

  await until('its time is another one', async () => (await api('POST', `${base}/exec`, { command: 'echo theirs > up.txt; cat up.txt' })).stdout === 'theirs\n');
  await area.fill('mine\n');
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByText('up.txt was changed meanwhile').waitFor();
  await page.getByRole('dialog').getByRole('button', { name: 'Cancel' }).click();
  assert.equal(await content(), 'theirs\n');
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByRole('button', { name: 'Overwrite' }).click();
  await until('it is overwritten', async () => (await content()) === 'mine\n');

  const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Download up.txt' }).click()]);
  assert.equal(download.suggestedFilename(), 'up.txt');
  assert.equal(await readFile(await download.path(), 'utf8'), 'mine\n');
  await page.getByRole('button', { name: 'Delete up.txt' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
  await page.getByRole('button', { name: 'up.txt', exact: true }).waitFor({ state: 'detached' });
  assert.deepEqual(v.faults, []);
  await v.close();
});

test('a port is shown in a frame, on an origin of its own', async (t) => {
  const made = await sandbox(t);
  const base = `/v1/sandboxes/${made.id}`;
  await api('POST', `${base}/exec`, { command: 'echo "<h1>from the sandbox</h1><script>document.title = String(top.location === location); try { top.hit = 1 } catch { document.body.append(\'kept-out\') }</script>" > index.html' });
  await api('POST', `${base}/processes`, { argv: ['python3', '-m', 'http.server', '8000'], cwd: '/workspace' });
  const v = await enter(`#/sandbox/${made.id}/ports`);
  await v.page.getByRole('button', { name: 'Show port 8000 here' }).click();
  const frame = v.page.frameLocator('iframe');
  await frame.getByText('from the sandbox').waitFor();
  await frame.getByText('kept-out').waitFor();
  assert.equal(await v.page.evaluate(() => window.hit), undefined);

  // The link that the frame has is listed, and revoked it opens nothing any more.
  const address = await v.page.locator('iframe').getAttribute('src');
  await v.page.getByRole('button', { name: /^Revoke link/ }).click();
  await v.page.getByRole('dialog').getByRole('button', { name: 'Revoke' }).click();
  await v.page.getByText('× revoked').waitFor();
  const other = await v.context.newPage();
  await other.goto(address);
  await other.getByText('unauthenticated').waitFor();
  await v.close();
});

test('processes, metrics, history and about', async (t) => {
  const made = await sandbox(t);
  const base = `/v1/sandboxes/${made.id}`;
  const evil = '<b onclick=window.hit=1>x</b>';
  const process = await api('POST', `${base}/processes`, { argv: ['sleep', '1000'], env: { A: evil } });
  await api('POST', `${base}/exec`, { command: `echo '${evil}'` });
  const v = await enter(`#/sandbox/${made.id}/processes`);
  const { page } = v;
  await page.getByRole('table', { name: 'Started through the API' }).getByRole('cell', { name: 'sleep 1000' }).waitFor();
  await api('POST', `${base}/exec`, { argv: ['bash', '-c', `(exec -a '${evil}' sleep 999 &) ; true`] });
  await page.getByRole('table', { name: 'Every process' }).getByText(evil).waitFor();
  await page.getByRole('button', { name: `Kill ${process.pid}` }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Kill' }).click();
  await page.getByText(/ended: SIGKILL/).waitFor();
  await page.getByRole('link', { name: 'Metrics' }).click();
  await page.getByRole('img', { name: /^Memory: now/ }).waitFor();
  await page.getByRole('link', { name: 'History' }).click();
  await page.getByText(evil).first().waitFor();
  await page.getByRole('link', { name: 'About' }).click();
  await page.getByText(`"id": "${made.id}"`).waitFor();
  assert.equal(await page.evaluate(() => window.hit), undefined);
  assert.deepEqual(v.faults, []);
  await v.close();
});

test('a page that is left open does not keep a sandbox from idling out', async (t) => {
  const made = await sandbox(t);
  const v = await enter(`#/sandbox/${made.id}/files`);
  await v.page.getByText('Nothing here').waitFor();
  await api('POST', `/v1/sandboxes/${made.id}/extend`, { idle_timeout_s: 2 });
  await until('it has ended', async () => (await api('GET', `/v1/sandboxes/${made.id}`)).end_cause === 'idle');
  await v.close();
});

for (const colorScheme of ['light', 'dark']) {
  test(`axe finds nothing, ${colorScheme}`, async (t) => {
    const made = await sandbox(t, { user_id: 'ann', thread_id: 'chat-1' });
    await api('POST', `/v1/sandboxes/${made.id}/exec`, { command: 'echo hello > hello.txt' });
    const v = await enter('#/', { colorScheme, bypassCSP: true });
    const { page } = v;
    for (const address of ['#/', ...['terminal', 'files', 'processes', 'ports', 'metrics', 'history', 'about'].map((tab) => `#/sandbox/${made.id}/${tab}`)]) {
      await page.goto(`${HOME}/${address}`);
      await page.reload();
      await page.locator('table tbody tr, .screen div, svg, pre').first().waitFor();
      await page.addScriptTag({ path: axePath });
      const found = await page.evaluate(() => globalThis.axe.run());
      assert.deepEqual(found.violations.map((x) => [address, x.id, x.nodes.map((n) => n.html)]), []);
    }
    await v.close();
  });
}
