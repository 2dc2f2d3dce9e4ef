// Texts that the pages make, without a page.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { test } from 'node:test';

import { printable } from '../../web/el.js';
import { asCurl, asPython, bytes, duration, filterOf } from '../../web/format.js';

test('numbers', () => {
  assert.deepEqual([0, 1023, 1024, 1536, 64 << 20, 5 * 2 ** 30, null].map(bytes), ['0B', '1023B', '1K', '1.5K', '64M', '5G', '-']);
  assert.deepEqual([-1, 0, 61, 3600, 86400, 200000].map(duration), ['0:00', '0:00', '1:01', '1:00:00', '24:00:00', '2 d 7 h']);
});

test('filters', () => {
  const s = { id: 'abc1', state: 'running', user_id: 'Ann', thread_id: '7', template: 'base', provider: 'jail', metadata: { project: 'demo', __proto__x: '1' } };
  for (const fits of ['', 'state:running', 'user:an', 'thread:7 project=demo', 'DEMO', 'abc', 'provider:jail base']) assert.ok(filterOf(fits)(s), fits);
  for (const none of ['state:paused', 'user:bob', 'project=other', 'constructor=x', 'toString=', 'nothing', 'user:ann state:gone']) assert.ok(!filterOf(none)(s), none);
  assert.ok(!filterOf('a=b')({ id: 'x', state: 'gone', metadata: null }));
});

test('what is copied is one call, whatever is in it', () => {
  const body = { user_id: `it's "$(id)" \`id\` \\ \u202e ü`, n: null, b: true };
  const line = asCurl('http://localhost:1', { method: 'POST', path: `/v1/x?p=a'b`, body });
  const words = execFileSync('bash', ['-c', `curl() { printf '%s\\0' "$@"; }; PADDOCK_API_KEY=key; ${line}`], { encoding: 'utf8' }).split('\0');
  assert.deepEqual(words.slice(0, 5), ['-X', 'POST', "http://localhost:1/v1/x?p=a'b", '-H', 'Authorization: Bearer key']);
  assert.deepEqual(JSON.parse(words[words.indexOf('-d') + 1]), body);

  const program = asPython('http://localhost:1', { method: 'PUT', path: '/v1/x', body }).replace(/with urllib[\s\S]*/, 'print(request.data.decode())');
  const said = execFileSync('/usr/bin/python3', ['-c', program], { encoding: 'utf8', env: { PADDOCK_API_KEY: 'key' } });
  assert.deepEqual(JSON.parse(said), body);
});

test('text that cannot be seen is shown', () => {
  assert.equal(printable('a\u202eb\u200bc\u0007d\ufeff'), 'a<202e>b<200b>c<0007>d<feff>');
  assert.equal(printable('plain ü 漢\n\tx'), 'plain ü 漢\n\tx');
});
