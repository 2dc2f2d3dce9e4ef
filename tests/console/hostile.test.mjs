// What sandboxes, tenants and users may name as they like, on every page that shows it: names, metadata, processes and their titles, ports,
// files, links, errors, logs, audit. Each has a mark of its own, so a place that shows nothing of it is found, too.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { api, control, enter, HOME, PADDOCK_API_KEY, PADDOCK_URL, sandbox, start, stop, until } from './browser.mjs';

before(start);
after(stop);

/** A text that would make an element, run a script, and end whatever it is put into. */
const evil = (mark) => `${mark}'"></td></pre></textarea><img src=x onerror=window.hit=1><script>window.hit=1</script>\u202e`;

/** Waits until all marks are shown, and looks for what they would have made. */
async function shows(v, marks, where) {
  const { page } = v;
  await until(`${marks} on ${where}`, async () => {
    const text = await page.locator('main').evaluate((main) => [main.innerText, ...[...main.querySelectorAll('input, textarea')].map((field) => field.value)].join('\n'));
    return marks.every((mark) => text.includes(mark));
  });
  assert.equal(await page.locator('main script, main img:not(.result), main td td, dialog img').count(), 0, where);
  assert.equal(await page.evaluate(() => window.hit), undefined, where);
  assert.deepEqual(v.faults, [], where);
}

test('hostile texts are text on every page', async (t) => {
  const made = await sandbox(t, { user_id: evil('Owner'), thread_id: evil('Thread'), metadata: { note: evil('Meta') } });
  const base = `/v1/sandboxes/${made.id}`;
  const file = 'F<img src=x onerror=hit=1>.txt';
  for (const [name, text] of [[file, evil('Content')], ['title.py', 'import ctypes, socket, time\nctypes.CDLL(None).prctl(15, b"P<b>title", 0, 0, 0)\ns = socket.create_server(("0.0.0.0", 8123))\ntime.sleep(1000)\n']]) {
    const sent = await fetch(`${PADDOCK_URL}${base}/files?path=${encodeURIComponent(`/workspace/${name}`)}`, { method: 'PUT', headers: { 'X-API-Key': PADDOCK_API_KEY, 'Content-Type': 'application/octet-stream' }, body: text });
    assert.ok(sent.ok, await sent.text());
  }
  await api('POST', `${base}/exec`, { argv: ['sh', '-c', 'ln -s "$0" link; mkdir "$1"', evil('Target'), 'D<script>hit=1</script>'.replaceAll('/', '')] });
  await api('POST', `${base}/processes`, { argv: ['sh', '-c', 'sleep 1000; :', evil('Argument')] });
  await api('POST', `${base}/processes`, { argv: ['python3', '/workspace/title.py'] });

  const v = await enter();
  const { page } = v;
  await shows(v, ['Owner', 'Thread'], 'the list');
  const tabs = {
    files: [file, 'Target', 'D<script>'], processes: ['Argument', 'sleep 1000'], ports: ['8123', 'P<b>title'], history: ['Argument'], about: ['Owner', 'Meta'],
  };
  for (const [tab, marks] of Object.entries(tabs)) {
    await page.goto(`${HOME}/#/sandbox/${made.id}/${tab}`);
    await shows(v, marks, tab);
  }
  await page.goto(`${HOME}/#/sandbox/${made.id}/files`);
  await page.getByRole('button', { name: file, exact: true }).click();
  await shows(v, ['Content'], 'the editor');

  // An error that has what was asked for in its text.
  await page.getByRole('button', { name: 'New folder' }).click();
  await page.getByRole('textbox', { name: 'Name' }).fill(`${file}/Error<img src=x onerror=hit=1>`);
  await page.getByRole('button', { name: 'Make', exact: true }).click();
  await page.locator('dialog .wrong').getByText('onerror=hit=1').waitFor();
  await shows(v, [], 'an error');
  await page.goto(`${HOME}/#/audit`);
  await shows(v, ['Argument'], 'audit');

  // Names of templates and snapshots are words; what a build says is not, nor is a template's title.
  await page.goto(`${HOME}/#/templates`);
  await shows(v, ['A page <b>'], 'templates');
  await v.close();

  const label = evil('Label');
  const admin = await enter('#/keys', { key: await control('role?admin') });
  await admin.page.getByRole('button', { name: 'New key' }).click();
  await admin.page.getByLabel('Label').fill(label);
  await admin.page.getByRole('button', { name: 'Make', exact: true }).click();
  await shows(admin, ['Label'], 'keys');
  await admin.close();
});

test('the log of a build and hostile terminals are text', async (t) => {
  const v = await enter('#/templates');
  const { page } = v;
  await page.getByRole('button', { name: 'Build one' }).click();
  await page.getByLabel('Name', { exact: true }).fill('hostile-log');
  await page.getByLabel('Commands, one in a line').fill(`echo '${evil('Said').replaceAll("'", '')}'; exit 3`);
  await page.getByRole('dialog').getByRole('button', { name: 'Build', exact: true }).click();
  t.after(async () => {
    for (const one of (await api('GET', '/v1/templates')).templates) if (one.name === 'hostile-log') await api('DELETE', `/v1/templates/${one.id}`);
  });
  await page.getByRole('log').getByText('Said').first().waitFor();
  await shows(v, ['Said'], 'the log of a build');
  await v.close();
});
