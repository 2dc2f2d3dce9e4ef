// What is large: a thousand sandboxes, of which some cannot be ended, and a file of 1 GiB.
import assert from 'node:assert/strict';
import { stat } from 'node:fs/promises';
import { after, before, test } from 'node:test';

import { api, enter, sandbox, start, stop } from './browser.mjs';

before(start);
after(stop);

test('a thousand sandboxes: chosen all at once and ended, and what the server refuses is told and stays', async (t) => {
  const made = [];
  t.after(() => Promise.all(made.map((id) => api('DELETE', `/v1/sandboxes/${id}`).catch(() => {}))));
  const one = async (n) => {
    for (let i = 0; i < 250; i++) made.push((await api('POST', '/v1/sandboxes', { user_id: 'many', thread_id: `${n}-${i}`, queue_timeout_s: 300 })).id);
  };
  await Promise.all([0, 1, 2, 3].map(one));
  const v = await enter();
  const { page } = v;
  await page.getByLabel('Filter').fill('user:many');
  await page.getByText(/^1000 of \d+$|^1000 in all$/).waitFor();
  // Three are refused, as a server that has no room refuses; one has ended by itself just before.
  const kept = [made[3], made[500], made[998]];
  await page.route(new RegExp(`/v1/sandboxes/(${kept.join('|')})$`), (route) => (route.request().method() !== 'DELETE' ? route.fallback()
    : route.fulfill({ status: 503, contentType: 'application/json', body: '{"error":{"code":"capacity","message":"no room just now"}}' })));
  await page.locator('tbody input').first().check();
  await page.getByRole('button', { name: 'Select all 1000' }).click();
  await page.getByText('1000 selected').waitFor();
  await page.getByRole('button', { name: 'End...' }).click();
  await page.getByText('End 1000 sandboxes?').waitFor();
  await page.getByRole('button', { name: 'End', exact: true }).click();
  await page.getByText('Ended: 997 of 1000').waitFor({ timeout: 300000 });
  await page.getByRole('alert').filter({ hasText: '3 failed; ' }).waitFor();
  const left = (await api('GET', '/v1/sandboxes?user_id=many&limit=1000')).sandboxes.map((s) => s.id);
  assert.deepEqual(left.sort(), kept.sort());
  assert.deepEqual(v.faults, []);
  await v.close();
});

test('a file of 1 GiB is downloaded by a ticket, and none of it passes through the page', async (t) => {
  const size = 2 ** 30;
  const made = await sandbox(t, { limits: { disk_bytes: 2 * size } });
  await api('POST', `/v1/sandboxes/${made.id}/exec`, { command: `head -c ${size} /dev/zero > large.bin`, timeout_s: 300 });
  const v = await enter(`#/sandbox/${made.id}/files`);
  const { page } = v;
  const client = await v.context.newCDPSession(page);
  const heap = async () => {
    await client.send('HeapProfiler.collectGarbage');
    return (await client.send('Runtime.getHeapUsage')).usedSize;
  };
  await page.getByRole('button', { name: 'Download large.bin' }).waitFor();
  const before = await heap();
  const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Download large.bin' }).click()]);
  let most = 0;
  let done = false;
  const saved = download.path().finally(() => { done = true; });
  for (const end = Date.now() + 400000; !done; most = Math.max(most, await heap())) assert.ok(Date.now() < end, 'it is not here yet');
  assert.equal((await stat(await saved)).size, size);
  t.diagnostic(`heap ${Math.round(before / 1e6)} MB, at most ${Math.round(most / 1e6)} MB`);
  assert.ok(most < before + 16e6, `the heap grew from ${before} to ${most}`);
  assert.deepEqual(v.faults, []);
  await v.close();
});
