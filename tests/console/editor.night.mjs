// The template `code-server`: VS Code in a sandbox, opened through the console, typed into and saved.
//
// tests/console/install has brought code-server from npm, without its native modules: its own terminal needs one, its
// editor needs none. The sandbox gets it by an archive, in place of a network; a snapshot of that is what the template is used
// with.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync, mkdirSync } from 'node:fs';
import path from 'node:path';
import { Readable } from 'node:stream';
import { after, before, test } from 'node:test';

import { api, enter, PADDOCK_API_KEY, PADDOCK_URL, sandbox, start, stop, until } from './browser.mjs';

before(start);
after(stop);

const EDITOR = path.join(process.env.CONSOLE_JS, '..', 'editor');
const LAUNCH = `#!/bin/sh
at=/home/user/.local/lib/editor/node_modules
exec $at/.node $at/code-server/out/node/entry.js "$@"
`;

async function put(base, where, body, kind = 'files') {
  const answer = await fetch(`${PADDOCK_URL}${base}/${kind}?path=${encodeURIComponent(where)}`, {
    method: 'PUT', headers: { 'X-API-Key': PADDOCK_API_KEY, 'Content-Type': 'application/octet-stream' }, body, duplex: 'half',
  });
  assert.ok(answer.ok, `${where}: ${answer.status} ${await answer.text()}`);
}

test('VS Code is opened from the console, typed into, and what is saved is in the sandbox', async (t) => {
  if (!existsSync(path.join(EDITOR, 'node_modules/.node'))) return t.skip('code-server could not be installed from npm');
  const first = await sandbox(t, { template: 'base', limits: { disk_bytes: 4 * 2 ** 30, files: 200000, memory_bytes: 2 ** 31 } });
  const base = `/v1/sandboxes/${first.id}`;
  await api('POST', `${base}/exec`, { command: 'mkdir -p ~/.local/lib/editor ~/.local/bin' });
  const tar = spawn('tar', ['-C', EDITOR, '-ch', 'node_modules'], { stdio: ['ignore', 'pipe', 'inherit'] });
  t.after(() => tar.kill());
  await put(base, '/home/user/.local/lib/editor', Readable.toWeb(tar.stdout), 'files/archive');
  await put(base, '/home/user/.local/bin/code-server', LAUNCH);
  await api('POST', `${base}/exec`, { command: 'chmod +x ~/.local/bin/code-server; echo "first line" > /workspace/notes.txt' });
  const kept = await api('POST', `${base}/snapshots`, { name: 'editor' });
  t.after(() => api('DELETE', `/v1/snapshots/${kept.id}`).catch(() => {}));

  const made = await sandbox(t, { template: 'code-server', snapshot: 'editor', limits: { disk_bytes: 4 * 2 ** 30, files: 200000 } });
  assert.equal(made.template, 'code-server');
  const v = await enter(`#/sandbox/${made.id}/ports`);
  const [editor] = await Promise.all([v.context.waitForEvent('page'), v.page.getByRole('button', { name: /^Open port 8080/ }).click()]);
  await editor.waitForURL((url) => url.host.startsWith('8080-'));
  assert.match(new URL(editor.url()).host, new RegExp(`^8080-${made.id}\\.localhost:`));
  const file = editor.getByRole('treeitem', { name: /notes\.txt/ });
  await file.waitFor({ timeout: 120000 });
  await file.dblclick();
  await editor.locator('.view-line', { hasText: 'first' }).waitFor();
  await editor.locator('.view-line', { hasText: 'first' }).click();
  await editor.keyboard.press('Control+End');
  await editor.keyboard.type('typed in the browser');
  await editor.locator('.view-line', { hasText: 'typed' }).waitFor();
  await editor.keyboard.press('Control+s');
  const content = async () => (await api('POST', `/v1/sandboxes/${made.id}/exec`, { command: 'cat /workspace/notes.txt' })).stdout;
  await until('it is saved', async () => (await content()) === 'first line\ntyped in the browser');
  mkdirSync(process.env.CONSOLE_PICTURES, { recursive: true });
  await editor.screenshot({ path: path.join(process.env.CONSOLE_PICTURES, 'code-server.png') });

  // The link is all that leads there: revoked, the editor is gone from the browser.
  await v.page.getByRole('button', { name: /^Revoke link/ }).click();
  await v.page.getByRole('dialog').getByRole('button', { name: 'Revoke' }).click();
  await v.page.getByText('× revoked').waitFor();
  await editor.reload();
  await editor.getByText('unauthenticated').waitFor();
  await v.close();
});
