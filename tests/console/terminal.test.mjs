// The terminal with programs that ask more of one: vim, top, and one that never stops writing.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { api, enter, sandbox, start, stop, until } from './browser.mjs';

before(start);
after(stop);

const NIGHTLY = Boolean(process.env.PADDOCK_NIGHTLY);
const screenText = (page) => page.locator('.screen').innerText();
const seen = (page, text) => until(`'${text}' on the screen`, async () => (await screenText(page)).includes(text));

async function openTerminal(t) {
  const made = await sandbox(t);
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

const has = async (base, program) => (await api('POST', `${base}/exec`, { command: `command -v ${program} || true` })).stdout !== '';

test('vim: text is typed, moved around in, searched and saved', async (t) => {
  const v = await openTerminal(t);
  const { page } = v;
  if (!await has(v.base, 'vim')) {
    await v.close();
    return t.skip('there is no vim on this host');
  }
  await type(page, 'vim -u NONE -N poem.txt');
  await seen(page, '~');
  await page.keyboard.type('ifirst line');
  await page.keyboard.press('Enter');
  await page.keyboard.type('second wörld line');
  await page.keyboard.press('Escape');
  await page.keyboard.type('gg');
  await page.keyboard.press('ArrowDown');
  await page.keyboard.type('A!');
  await page.keyboard.press('Escape');
  await page.keyboard.type(':%s/first/1st/');
  await page.keyboard.press('Enter');
  await seen(page, '1st line');
  assert.match(await screenText(page), /second wörld line!/);
  await page.keyboard.type(':wq');
  await page.keyboard.press('Enter');
  await seen(page, '$');
  await until('the screen before is back', async () => /vim -u NONE/.test(await screenText(page)) && !/^~/m.test(await screenText(page)));
  assert.equal((await api('POST', `${v.base}/exec`, { command: 'cat poem.txt' })).stdout, '1st line\nsecond wörld line!\n');
  assert.deepEqual(v.faults, []);
  await v.close();
});

test('top: it fills the screen, another size is taken over, and q ends it', async (t) => {
  const v = await openTerminal(t);
  const { page } = v;
  if (!await has(v.base, 'top')) {
    await v.close();
    return t.skip('there is no top on this host');
  }
  await type(page, 'top -d 1');
  await until('its head and a process', async () => /^top - .*\n(.*\n)*\s*PID USER(.*\n)*.*bash/m.test(await screenText(page)));
  const rows = async () => page.locator('.screen > div').count();
  const before = await rows();
  await page.setViewportSize({ width: 1000, height: 500 });
  await until('fewer rows', async () => (await rows()) < before);
  await until('it is drawn anew', async () => /^top - .*\n/.test(await screenText(page)));
  assert.equal((await screenText(page)).split('\n').filter((line) => line.startsWith('top - ')).length, 1);
  await page.keyboard.press('q');
  await until('a prompt', async () => (await screenText(page)).trimEnd().endsWith('$'));
  assert.deepEqual(v.faults, []);
  await v.close();
});

test('a program that never stops: keys are heard, memory does not grow, and the newest is shown', async (t) => {
  const v = await openTerminal(t);
  const { page } = v;
  const client = await v.context.newCDPSession(page);
  const heap = async () => {
    await client.send('HeapProfiler.collectGarbage');
    return (await client.send('Runtime.getHeapUsage')).usedSize;
  };
  const flooded = () => until('it is full of y', async () => (await screenText(page)).split('\n').filter((l) => l.trim() === 'y').length > 10);
  const written = async () => (await api('GET', `${v.base}/processes?observe=true`)).processes.find((p) => p.pty).stdout_bytes;

  await type(page, 'yes');
  await flooded();
  // What scrolls off is kept up to a limit: from there on the page needs no more.
  const some = NIGHTLY ? 200e6 : 8e6;
  let bytes = await written();
  let first = await heap();
  await until('the page has all that it keeps', async () => {
    if ((await written()) < bytes + some / 4) return false;
    const before = first;
    bytes = await written();
    first = await heap();
    return Math.abs(first - before) < 1e6;
  });
  const began = Date.now();
  const end = began + (NIGHTLY ? 30000 : 0);
  for (;;) {
    const now = await written();
    if (now > bytes + some && Date.now() > end) break;
    assert.ok(Date.now() < began + 240000, `only ${now - bytes} bytes`);
    await new Promise((done) => setTimeout(done, 200));
  }
  const last = await heap();
  const pressed = Date.now();
  await page.getByLabel('Terminal input').focus();
  await page.keyboard.press('Control+c');
  await until('the prompt', async () => (await screenText(page)).trimEnd().endsWith('$'));
  t.diagnostic(`${Math.round((await written() - bytes) / 1e6)} MB, heap ${Math.round(first / 1e6)} -> ${Math.round(last / 1e6)} MB, prompt ${Date.now() - pressed} ms after Ctrl-C`);
  assert.ok(last < first + 8e6, `the heap grew from ${first} to ${last}`);

  // Opened anew it is where it was, whatever was written before.
  await page.reload();
  await until('the prompt', async () => (await screenText(page)).trimEnd().endsWith('$'));
  await type(page, 'echo st"il"l-there');
  await seen(page, 'still-there');
  assert.deepEqual(v.faults, []);
  await v.close();
});
