// Cells in a sandbox, providers, and a list that is long.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { api, axePath, control, enter, HOME, sandbox, start, stop, until } from './browser.mjs';

before(start);
after(stop);

async function run(page, code) {
  await page.getByLabel('Code. Shift+Enter').fill(code);
  await page.keyboard.press('Shift+Enter');
}

test('cells keep their variables, and show text, tables and pictures', async (t) => {
  const made = await sandbox(t);
  const v = await enter(`#/sandbox/${made.id}/code`);
  const { page } = v;
  await page.getByRole('option', { name: 'python' }).waitFor({ state: 'attached' });
  await run(page, 'x = 20');
  await page.getByText('[1]').waitFor();
  await run(page, 'print("seen", x)\nx * 2 + 2');
  await page.getByText('seen 20').waitFor();
  await page.locator('.shown pre', { hasText: /^42$/ }).waitFor();

  await run(page, `
class Table:
    def _repr_e2b_data_(self): return {"name": ["<b>ann</b>", "bob"], "n": [1, 2]}
class Drawing:
    def _repr_svg_(self): return '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="10"><script>top.hit=1</script><rect width="20" height="10"/></svg>'
display(Table()); display(Drawing())`);
  await page.getByRole('cell', { name: '<b>ann</b>' }).waitFor();
  await page.getByRole('img', { name: /^Drawing/ }).waitFor();
  await until('the drawing is there', () => page.locator('img.result').evaluate((img) => img.complete && img.naturalWidth === 20));

  await run(page, '1/0');
  await page.getByText('ZeroDivisionError').first().waitFor();
  assert.equal(await page.evaluate(() => window.hit), undefined);
  assert.deepEqual(v.faults, []);
  await v.close();
});

test('HTML of a cell runs in a frame of its own, which reaches nothing; all else that a cell shows is text', async (t) => {
  const made = await sandbox(t);
  const v = await enter(`#/sandbox/${made.id}/code`);
  const { page } = v;
  const came = []; // what the policy refuses is asked for, too, and nothing comes
  page.on('response', (answer) => { if (answer.frame() !== page.mainFrame()) came.push(answer.url()); });
  await page.getByRole('option', { name: 'python' }).waitFor({ state: 'attached' });
  await run(page, `
class Evil:
    def __repr__(self): return '<img src=x onerror=window.hit=1>'
    def _repr_png_(self): return b'"><script>window.hit=1</script>'
    def _repr_javascript_(self): return 'window.hit=1'
class Page:
    def _repr_html_(self): return """<h1 id=title>none ran</h1><pre id=told></pre><script>
      const told = [], at = document.getElementById('told');
      const attempt = async (name, f) => { try { const got = await f(); told.push(name + ': ' + (got ?? 'nothing')); } catch (error) { told.push(name + ': refused'); } at.textContent = told.join('\\\\n'); };
      (async () => {
        document.getElementById('title').textContent = 'a script ran';
        await attempt('its own page', () => eval('6 * 7'));
        await attempt('parent', () => parent.document.title);
        await attempt('cookie', () => document.cookie);
        await attempt('storage', () => localStorage.length);
        await attempt('the API', async () => (await fetch('${HOME}/v1/console/me')).status);
        await attempt('another server', () => new Promise((done, failed) => { const ws = new WebSocket('ws://127.0.0.1:1'); ws.onopen = done; ws.onerror = failed; }));
        await attempt('a picture from elsewhere', () => new Promise((done, failed) => { const img = new Image(); img.onload = () => done('loaded'); img.onerror = failed; img.src = '${HOME}/docs'; }));
        await attempt('the page above', () => { top.location = 'about:blank'; });
        await attempt('a window', () => open('about:blank') ? 'opened' : 'nothing');
        parent.postMessage({ height: 1e9 }, '*'); parent.postMessage(1e9, '*'); parent.postMessage('ready', '*');
        document.body.style.height = '5000px'; told.push('all'); at.textContent = told.join('\\\\n');
      })();
    </script>"""
print('<script>window.hit=1</script>'); display(Evil()); display(Page()); "done"`);
  await page.locator('.shown pre', { hasText: /^done$/ }).waitFor();
  const inside = page.frameLocator('iframe.result');
  await inside.getByRole('heading', { name: 'a script ran' }).waitFor();
  await inside.locator('#told', { hasText: /^all$/m }).waitFor();
  const told = (await inside.locator('#told').innerText()).split('\n').filter((line) => !line.startsWith('the page above'));
  assert.deepEqual(told, ['its own page: 42', 'parent: refused', 'cookie: refused', 'storage: refused', 'the API: refused', 'another server: refused',
    'a picture from elsewhere: refused', 'a window: nothing', 'all']);
  assert.deepEqual([...new Set(came)], [`${HOME}/console/result.html`]);
  const frame = page.locator('iframe.result');
  await until('it is as high as it may be, and no higher', async () => await frame.getAttribute('height') === '600');
  assert.equal(await frame.getAttribute('sandbox'), 'allow-scripts');
  assert.equal(await page.evaluate(() => window.hit), undefined);
  assert.equal(page.url(), `${HOME}/#/sandbox/${made.id}/code`);
  assert.equal(await page.locator('.cells script, .cells img:not(.result)').count(), 0);
  await page.getByText('Its source').click();
  await page.getByLabel('Source').getByText('none ran').waitFor();

  // The frame by itself is nobody's either: it listens to nobody but a page that frames it, and only the console may.
  const alone = await v.context.newPage();
  await alone.goto(`${HOME}/console/result.html`);
  assert.equal(await alone.evaluate(() => { postMessage('<h1>said</h1>', '*'); return self.origin; }), 'null');
  await alone.evaluate(() => new Promise((done) => { setTimeout(done, 0); }));
  assert.equal(await alone.getByText('said').count(), 0);
  // What the policy kept out of the frame is written there; of the page itself nothing is.
  assert.deepEqual(v.faults.filter((f) => !/Content Security Policy|sandbox|Refused|Blocked|WebSocket/i.test(f)), []);
  await v.close();
});

test('providers, and why', async () => {
  const v = await enter('#/providers');
  await v.page.getByRole('cell', { name: 'jail (default)' }).waitFor();
  await v.page.getByLabel('User').fill('ann');
  await v.page.getByRole('button', { name: 'Why?' }).click();
  await v.page.getByRole('listitem').first().waitFor();
  await v.page.getByText('an admin key sees them').waitFor();
  assert.deepEqual(v.faults, []);
  await v.close();
});

test('an admin changes a share by the slider, is told what that does, and a mistake changes nothing', async (t) => {
  const key = await control('role?admin');
  t.after(() => api('PUT', '/v1/router', {}, key));
  await api('PUT', '/v1/router', { flags: [{ name: 'rollout', provider: 'jail', percentage: 10 }] }, key);
  const v = await enter('#/providers', { key });
  const { page } = v;
  const rules = async () => (await api('GET', '/v1/router', undefined, key)).rules.flags[0].percentage;
  await page.getByRole('button', { name: 'Change the rules...' }).click();
  await page.getByText('Nothing is different yet.').waitFor();
  await page.getByRole('slider', { name: 'Flag rollout' }).press('PageUp');
  await page.getByText(/flag rollout: 10 % -> [\d.]+ % of users get jail; those who are in stay in/).waitFor();
  await page.getByLabel('Per cent of flag rollout').fill('120');
  await page.getByLabel('Per cent of flag rollout').evaluate((node) => node.removeAttribute('max'));
  await page.getByRole('button', { name: 'Change', exact: true }).click();
  await page.getByRole('dialog').getByText('120 is not in the range 0 to 100').waitFor();
  assert.equal(await rules(), 10);
  await page.getByLabel('Per cent of flag rollout').fill('12.5');
  await page.getByText('flag rollout: 10 % -> 12.5 % of users').waitFor();
  await page.getByRole('button', { name: 'Change', exact: true }).click();
  await page.getByRole('dialog').waitFor({ state: 'detached' });
  assert.equal(await rules(), 12.5);
  await page.getByText('"percentage": 12.5').waitFor();
  await page.getByRole('button', { name: 'Change the rules...' }).click();
  await page.getByLabel('Rules', { exact: true }).and(page.locator('textarea')).fill('{');
  await page.getByText('no JSON').waitFor();
  assert.deepEqual(v.faults, []);
  await v.close();
});

test('ten thousand sandboxes: about sixty rows are in the page, and all can be reached, filtered and chosen', async () => {
  const v = await enter();
  const { page } = v;
  const all = Array.from({ length: 10000 }, (_, i) => ({
    id: `s${String(i).padStart(19, '0')}`, state: i % 10 ? 'running' : 'paused', user_id: `user-${i}`, thread_id: 't', template: 'default', provider: 'jail',
    metadata: {}, limits: { memory_bytes: 1 << 29 }, created_at: new Date(Date.UTC(2026, 0, 2) - 1000 * i).toISOString(), expires_at: '2099-01-01T00:00:00.000Z',
  }));
  await page.route('**/v1/sandboxes?*', (route) => {
    const from = Number(new URL(route.request().url()).searchParams.get('cursor') ?? 0);
    return route.fulfill({ json: { sandboxes: all.slice(from, from + 1000), next_cursor: from + 1000 < all.length ? String(from + 1000) : null } });
  });
  await page.reload();
  await page.getByText('10000 in all').waitFor();
  await page.getByText('user-0/t', { exact: true }).waitFor();
  assert.ok(await page.locator('tbody tr').count() < 100);
  await page.locator('.scroll').evaluate((node) => { node.scrollTop = node.scrollHeight; });
  // The newest is above and the oldest below: what was in the page before it was scrolled proves nothing.
  await page.getByText('user-9999/t', { exact: true }).waitFor();
  await page.getByText('user-0/t', { exact: true }).waitFor({ state: 'detached' });
  assert.ok(await page.locator('tbody tr').count() < 100);
  await page.getByLabel('Filter').fill('state:paused user:user-99');
  await page.getByText(/^\d+ of 10000$/).waitFor();
  await page.getByText('user-9990/t').waitFor();
  await page.locator('tbody input').first().check();
  await page.getByRole('button', { name: /^Select all \d+$/ }).click();
  await page.getByText(/^\d\d+ selected$/).waitFor();
  assert.deepEqual(v.faults, []);
  await v.close();
});

for (const colorScheme of ['light', 'dark']) {
  test(`axe finds nothing in cells and providers, ${colorScheme}`, async (t) => {
    const made = await sandbox(t);
    const v = await enter('#/', { colorScheme, bypassCSP: true });
    for (const address of [`#/sandbox/${made.id}/code`, '#/providers']) {
      await v.page.goto(`${HOME}/${address}`);
      await v.page.reload();
      if (address.endsWith('code')) {
        await v.page.getByRole('option', { name: 'python' }).waitFor({ state: 'attached' });
        await run(v.page, 'print(1); 1/0');
        await v.page.getByText('ZeroDivisionError').first().waitFor();
      } else {
        await v.page.locator('tbody td').first().waitFor();
      }
      await v.page.addScriptTag({ path: axePath });
      const found = await v.page.evaluate(() => globalThis.axe.run());
      assert.deepEqual(found.violations.map((x) => [address, x.id, x.nodes.map((n) => n.html)]), []);
    }
    await v.close();
  });
}
