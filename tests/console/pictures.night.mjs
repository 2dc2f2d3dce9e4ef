// Pictures of every page, into $CONSOLE_PICTURES; scripts/console-pictures runs it.
import { mkdirSync } from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';

import { api, control, enter, HOME, sandbox, start, stop, until } from './browser.mjs';

before(start);
before(() => mkdirSync(process.env.CONSOLE_PICTURES, { recursive: true }));
after(stop);

/** Of everything that a cell can show. */
async function cells(page) {
  for (const code of ['total = sum(range(10)); print("so far", total)', `
class Table:
    def _repr_e2b_data_(self): return {"name": ["ann", "bob", "eve"], "sandboxes": [4, 3, 3]}
class Note:
    def _repr_html_(self): return "<h3>HTML of a cell</h3><p>in a frame of its own: <b id=n></b></p><script>document.getElementById('n').textContent = 6 * 7</script>"
display(Table()); display(Note())`, 'total / 0']) {
    const before = await page.locator('.ran').count();
    await page.getByLabel('Code. Shift+Enter').fill(code.trim());
    await page.keyboard.press('Shift+Enter');
    await page.locator('.ran').nth(before).getByText(/^\[\d+\]$/).waitFor();
  }
  await page.locator('.ran .wrong').waitFor();
  await page.frameLocator('iframe.result').getByText('42').waitFor();
}

async function preview(page) {
  await page.getByRole('button', { name: /^Show port 8000/ }).click();
  await page.frameLocator('.framed iframe').getByText('Hello').waitFor();
}

const SIZES = { '': { width: 900, height: 420 }, '-wide': { width: 1500, height: 800 }, '-narrow': { width: 400, height: 700 } };

for (const [size, colorScheme] of [['', 'light'], ['', 'dark'], ['-wide', 'dark'], ['-narrow', 'light']]) {
  test(`pictures, ${colorScheme}${size}`, async (t) => {
    const viewport = SIZES[size];
    const picture = (page, name) => page.screenshot({ path: path.join(process.env.CONSOLE_PICTURES, `${name}-${colorScheme}${size}.png`) });
    for (let i = 0; i < 9; i++) await sandbox(t, { user_id: ['ann', 'bob', 'eve'][i % 3], thread_id: `chat-${i}`, template: ['default', 'base'][i % 2] });
    const paused = await sandbox(t, { user_id: 'ann', thread_id: 'night' });
    await api('POST', `/v1/sandboxes/${paused.id}/pause`);
    const made = await sandbox(t, { user_id: 'bob', thread_id: 'demo' });
    const base = `/v1/sandboxes/${made.id}`;
    await api('POST', `${base}/exec`, { command: 'mkdir src; echo "print(6 * 7)" > src/app.py; seq 1000 > numbers.txt; echo "<h1>Hello</h1>" > index.html' });
    await api('POST', `${base}/processes`, { argv: ['python3', '-m', 'http.server', '8000'], cwd: '/workspace' });

    const v = await enter('#/', { colorScheme, viewport });
    const { page } = v;
    await page.locator('tbody a').nth(9).waitFor();
    await page.locator('.scroll').focus();
    await page.keyboard.press('j');
    await page.keyboard.press('x');
    await picture(page, 'list');
    await page.goto(`${HOME}/#/sandbox/${made.id}/terminal`);
    const screen = page.locator('.screen');
    await until('a prompt', async () => (await screen.innerText()).includes('$'));
    await page.getByLabel('Terminal input').focus();
    await page.keyboard.type('ls -l --color; python3 src/app.py');
    await page.keyboard.press('Enter');
    await until('the answer', async () => (await screen.innerText()).split('\n').some((line) => line.trim() === '42'));
    await picture(page, 'terminal');
    for (const tab of ['files', 'processes', 'ports', 'metrics', 'history', 'about', 'code']) {
      await page.goto(`${HOME}/#/sandbox/${made.id}/${tab}`);
      await page.locator('.inside tbody td, .inside svg, .inside pre, .inside textarea').first().waitFor();
      if (tab === 'code') await cells(page);
      if (tab === 'ports') await preview(page);
      await picture(page, tab);
    }
    await api('POST', `${base}/exec`, { command: 'make test' });
    for (const at of ['overview', 'audit', 'keys']) {
      const admin = await enter(`#/${at}`, { colorScheme, viewport, key: await control('role?admin') });
      await admin.page.locator('h1', { hasText: new RegExp(at, 'i') }).waitFor();
      await admin.page.locator('tbody td').first().waitFor();
      await picture(admin.page, at);
      await admin.close();
    }
    for (const at of ['providers', 'templates']) {
      await page.goto(`${HOME}/#/${at}`);
      await page.locator('h1', { hasText: new RegExp(at, 'i') }).waitFor();
      await page.locator('tbody td').first().waitFor();
      await picture(page, at);
    }
    for (const name of ['debian:12', 'registry.example/team/tool:1.4']) await control(`image?${name}`);
    await page.goto(`${HOME}/#/images`);
    await page.getByText('debian:12').waitFor();
    await picture(page, 'images');
    await page.getByRole('button', { name: 'Fetch...' }).click();
    await page.getByRole('dialog').waitFor();
    await picture(page, 'fetch');
    await page.keyboard.press('Escape');
    await api('POST', `${base}/snapshots`, { name: 'before-the-tests' });
    await page.goto(`${HOME}/#/snapshots`);
    await page.getByText('before-the-tests').waitFor();
    await picture(page, 'snapshots');
    await api('DELETE', '/v1/snapshots/before-the-tests');
    await page.goto(`${HOME}/#/`);
    await page.getByRole('button', { name: 'New', exact: true }).click();
    await page.getByRole('dialog').waitFor();
    await picture(page, 'new');
    await page.keyboard.press('Escape');
    await page.getByRole('button', { name: 'Log out' }).click();
    await page.getByLabel('API key').waitFor();
    await picture(page, 'login');
    await v.close();
  });
}
