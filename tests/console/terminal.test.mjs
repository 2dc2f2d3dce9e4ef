// The terminal with programs that ask more of one: vim, top, and one that never stops writing.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { api, enter, HOME, sandbox, start, stop, until } from './browser.mjs';

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

test('what scrolled off is found again, and who only watches types nothing and keeps nothing', async (t) => {
  const v = await openTerminal(t);
  const { page } = v;
  await type(page, 'echo nee"dle"-1; seq 300; echo nee"dle"-2; seq 300; echo en"d"ed');
  await seen(page, 'ended');
  const sought = page.getByLabel('Find in the terminal.');
  await sought.fill('NEEDLE-');
  await page.keyboard.press('Enter');
  await page.locator('.found').getByText('needle-2').waitFor();
  await page.keyboard.press('Enter');
  await page.locator('.found').getByText('needle-1').waitFor();
  await page.keyboard.press('Shift+Enter');
  await page.locator('.found').getByText('needle-2').waitFor();
  await page.keyboard.press('Shift+Enter');
  await page.getByText("'NEEDLE-' is not below").waitFor();

  const watching = page.getByLabel('only watch');
  const attached = page.waitForEvent('websocket', (ws) => ws.url().includes('/attach?'));
  await watching.check();
  assert.match((await attached).url(), /&observe=true/);
  await seen(page, 'ended');
  await type(page, 'echo ty"p"ed');
  assert.ok(!(await screenText(page)).includes('typed'));
  await watching.uncheck();
  await seen(page, 'ended');
  await type(page, 'echo he"a"rd');
  await seen(page, 'heard');
  assert.ok(!(await screenText(page)).includes('typed'));
  assert.deepEqual(v.faults, []);
  await v.close();
});

test('a page that nobody sees lets go of its terminal after a minute, and goes on where it was', async (t) => {
  const made = await sandbox(t);
  const v = await enter();
  const { page } = v;
  await page.clock.install();
  const sockets = [];
  page.on('websocket', (ws) => { if (ws.url().includes('/attach?')) sockets.push(ws); });
  await page.goto(`${HOME}/#/sandbox/${made.id}/terminal`);
  await seen(page, '$');
  await type(page, 'echo fi"r"st; sleep 1; echo lat"e"r');
  await seen(page, 'first');
  const hide = (hidden) => page.evaluate((is) => {
    Object.defineProperty(document, 'hidden', { configurable: true, get: () => is });
    document.dispatchEvent(new Event('visibilitychange'));
  }, hidden);
  const ended = sockets[0].waitForEvent('close');
  await hide(true);
  await page.clock.fastForward(30000);
  await hide(false);
  await page.clock.fastForward(40000);
  assert.equal(sockets[0].isClosed(), false);
  await hide(true);
  await page.clock.fastForward(61000);
  await ended;
  // What is written meanwhile is there when it is looked at again.
  await until('it is written', async () => {
    const [p] = (await api('GET', `/v1/sandboxes/${made.id}/processes?observe=true`)).processes.filter((one) => one.pty);
    const answer = await api('GET', `/v1/sandboxes/${made.id}/processes/${p.process_id}/output?observe=true`);
    return answer.includes('later');
  });
  await hide(false);
  await seen(page, 'later');
  await type(page, 'echo go"e"s-on');
  await seen(page, 'goes-on');
  assert.equal(sockets.length, 2);
  assert.match(sockets[1].url(), /offset=[1-9]/);
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

  const programs = async () => (await api('GET', `${v.base}/processes?tree=true&observe=true`)).tree.map((p) => p.command);

  // What scrolls off is kept up to a limit: once that is full the page needs no more.
  const some = NIGHTLY ? 200e6 : 8e6;
  await type(page, 'seq 20000; echo fu"l"l');
  await seen(page, '\nfull');
  const first = await heap();

  await type(page, 'yes');
  await flooded();
  assert.ok((await programs()).includes('yes'));
  const bytes = await written();
  const began = Date.now();
  const end = began + (NIGHTLY ? 30000 : 0);
  for (;;) {
    const now = await written();
    if (now > bytes + some && Date.now() > end) break;
    assert.ok(Date.now() < began + 240000, `only ${now - bytes} bytes`);
    await new Promise((done) => setTimeout(done, 200));
  }
  const busy = await heap(); // with what is on its way
  const pressed = Date.now();
  await page.getByLabel('Terminal input').focus();
  await page.keyboard.press('Control+c');
  await until('the prompt', async () => (await screenText(page)).trimEnd().endsWith('$'));
  const took = Date.now() - pressed;
  assert.ok(!(await programs()).includes('yes'), 'it has ended, and is not only hidden');
  const last = await heap();
  t.diagnostic(`${Math.round((await written() - bytes) / 1e6)} MB, heap ${Math.round(first / 1e6)} -> ${Math.round(busy / 1e6)} -> ${Math.round(last / 1e6)} MB, prompt ${took} ms after Ctrl-C`);
  assert.ok(last < first + 8e6, `the heap grew from ${first} to ${last}`);

  // Opened anew it is where it was, whatever was written before: it reads the end of that, and not all.
  let read = 0;
  page.on('websocket', (ws) => ws.url().includes('/attach?') && ws.on('framereceived', ({ payload }) => { read += payload.length; }));
  await page.reload();
  await until('the prompt', async () => (await screenText(page)).trimEnd().endsWith('$'));
  t.diagnostic(`${read} bytes until the prompt`);
  assert.ok(read > 0 && read < some / 4, `${read} bytes`);
  await type(page, 'echo st"il"l-there');
  await seen(page, 'still-there');
  assert.deepEqual(v.faults, []);
  await v.close();
});
