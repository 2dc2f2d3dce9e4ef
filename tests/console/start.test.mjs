// A page that comes in part only, and pages of a server that is away.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { HOME, start, stop, until, visit } from './browser.mjs';

before(start);
after(stop);

/** The console's page, of which the first `cuts` times only a part comes: what a connection that is lost leaves. */
async function cutPage(v, cuts) {
  const whole = await (await fetch(HOME, { headers: { 'Accept-Encoding': 'gzip' } })).text();
  const headers = Object.fromEntries((await fetch(HOME)).headers);
  const seen = { asked: 0 };
  delete headers['content-length'];
  await v.page.route(`${HOME}/`, (route) => {
    seen.asked++;
    return route.fulfill({ status: 200, headers, body: seen.asked <= cuts ? whole.slice(0, whole.indexOf('<script type=module>') + 5000) : whole });
  });
  return seen;
}

test('a page that came in part is loaded again, and then it is there', async () => {
  const v = await visit();
  const seen = await cutPage(v, 2);
  await v.page.goto(`${HOME}/`);
  await v.page.getByLabel('API key').waitFor();
  assert.equal(seen.asked, 3);
  assert.equal(await v.page.evaluate(() => sessionStorage.length), 0);
  await v.close();
});

test('one that never comes whole says so, and what may help; it does not ask for ever', async () => {
  const v = await visit();
  const seen = await cutPage(v, Infinity);
  await v.page.goto(`${HOME}/`);
  await v.page.getByRole('alert').filter({ hasText: 'did not come whole' }).waitFor();
  assert.equal(seen.asked, 4);
  await new Promise((done) => { setTimeout(done, 500); }); // nothing is to happen
  assert.equal(seen.asked, 4);
  // Whoever loads it again by hand, when the server is well, gets it.
  await v.page.unroute(`${HOME}/`);
  await v.page.reload();
  await v.page.getByLabel('API key').waitFor();
  await v.close();
});

test('all of it is one answer, packed, which is asked for but not sent again', async () => {
  const v = await visit();
  const answers = [];
  v.page.on('response', (answer) => answers.push(answer));
  await v.page.goto(`${HOME}/`);
  await v.page.getByLabel('API key').waitFor();
  assert.deepEqual(answers.map((answer) => new URL(answer.url()).pathname), ['/']);
  assert.equal((await answers[0].allHeaders())['content-encoding'], 'gzip');
  const client = await v.context.newCDPSession(v.page);
  await client.send('Network.enable');
  const sizes = [];
  client.on('Network.loadingFinished', ({ encodedDataLength }) => sizes.push(encodedDataLength));
  await v.page.reload();
  await v.page.getByLabel('API key').waitFor();
  await until('the second answer', () => sizes.length > 0);
  assert.ok(sizes[0] < 4096, `${sizes[0]} bytes came again`);
  assert.deepEqual(v.faults, []);
  await v.close();
});
