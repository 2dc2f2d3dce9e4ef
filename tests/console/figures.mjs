// Figures of the console, printed, and written to $CONSOLE_FIGURES: `tests/bench/run --only console` runs it. Nothing here fails for a
// number: tests/bench/figures.py has what is aimed for.
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { after, before, test } from 'node:test';

import { api, control, enter, HOME, sandbox, start, stop, until } from './browser.mjs';

const figures = { paint_ms: [], rows_ms: [], filter_ms: [] };

before(start);
after(stop);
after(() => {
  if (process.env.CONSOLE_FIGURES) writeFileSync(process.env.CONSOLE_FIGURES, JSON.stringify(figures));
});

/** Frames from now on: a function that gives how many there were, and the gaps between them in ms, the longest first. */
async function frames(page) {
  await page.evaluate(() => {
    window.gaps = [];
    let last = performance.now();
    const turn = (now) => { window.gaps.push(now - last); last = now; window.counting = requestAnimationFrame(turn); };
    window.counting = requestAnimationFrame(turn);
  });
  return () => page.evaluate(() => {
    cancelAnimationFrame(window.counting);
    return window.gaps.slice(1).sort((a, b) => b - a).map(Math.round);
  });
}

/** Processor time of the page's own thread from now on, in ms: on a busy machine frames say more of the others. */
async function processor(page) {
  const client = await page.context().newCDPSession(page);
  await client.send('Performance.enable', { timeDomain: 'threadTicks' });
  const read = async () => 1000 * (await client.send('Performance.getMetrics')).metrics.find((m) => m.name === 'TaskDuration').value;
  const before = await read();
  return async () => Math.round(await read() - before);
}

/** What the page's own thread did from now on: the processor time of each piece of work in ms, the longest first. No frame has
 * to wait longer for the page than for one of these, however busy the machine is. */
async function pieces(page) {
  const browser = page.context().browser();
  await browser.startTracing(page, { categories: ['devtools.timeline', 'disabled-by-default-devtools.timeline'] });
  return async () => {
    const { traceEvents } = JSON.parse(await browser.stopTracing());
    const at = (e) => `${e.pid} ${e.tid}`;
    const main = new Set(traceEvents.filter((e) => e.name === 'thread_name' && e.args.name === 'CrRendererMain').map(at));
    const list = traceEvents.filter((e) => e.name === 'RunTask' && main.has(at(e))).map((e) => Math.round((e.tdur ?? 0) / 100) / 10);
    assert.ok(list.length > 0, 'no piece of work was seen');
    return list.sort((a, b) => b - a);
  };
}

const seen = (t, what) => t.diagnostic(`figure: ${what}`);

test('the list with ten thousand sandboxes', async (t) => {
  const v = await enter();
  const { page } = v;
  const all = Array.from({ length: 10000 }, (_, i) => ({
    id: `s${String(i).padStart(19, '0')}`, state: i % 10 ? 'running' : 'paused', user_id: `user-${i}`, thread_id: 't', template: 'default', provider: 'jail',
    metadata: {}, limits: { memory_bytes: 1 << 29 }, created_at: new Date(Date.UTC(2026, 0, 2) - 1000 * i).toISOString(), expires_at: '2099-01-01T00:00:00.000Z',
  }));
  const parts = Array.from({ length: 10 }, (_, i) => JSON.stringify({ sandboxes: all.slice(1000 * i, 1000 * (i + 1)), next_cursor: i < 9 ? String(1000 * (i + 1)) : null }));
  await page.route('**/v1/sandboxes?*', (route) => route.fulfill({ contentType: 'application/json', body: parts[Number(new URL(route.request().url()).searchParams.get('cursor') ?? 0) / 1000] }));
  for (let round = 0; round < 5; round++) {
    await page.reload();
    await page.getByText('user-0/t', { exact: true }).waitFor();
    const rows = await page.evaluate(() => performance.now());
    await page.getByText('10000 in all').waitFor();
    const whole = await page.evaluate(() => performance.now());
    const paint = await page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime);
    figures.paint_ms.push(paint);
    figures.rows_ms.push(rows);
    seen(t, `first paint ${Math.round(paint)} ms, first rows ${Math.round(rows)} ms, all 10,000 ${Math.round(whole)} ms`);
  }
  const idle = await frames(page);
  await page.waitForFunction(() => window.gaps.length > 60);
  const still = await idle();
  await page.locator('.scroll').hover();
  const work = await pieces(page);
  const used = await processor(page);
  const count = await frames(page);
  for (let i = 0; i < 100; i++) await page.mouse.wheel(0, 400 + 300 * (i % 7));
  const gaps = await count();
  const longest = await work();
  seen(t, `scrolling: of ${longest.length} pieces of work of the page's thread the longest took ${longest.slice(0, 5).join(', ')} ms of processor`);
  seen(t, `scrolling: 100 turns of the wheel took ${await used()} ms of the page's processor time; ${gaps.length} frames, longest gaps ${gaps.slice(0, 5).join(', ')} ms; without scrolling ${still.slice(0, 3).join(', ')} ms`);
  Object.assign(figures, { scroll_gap_ms: gaps[0], scroll_work_ms: longest[0], still_gap_ms: still[0] });
  for (let round = 0; round < 5; round++) {
    figures.filter_ms.push(await page.evaluate((text) => {
      const field = document.querySelector('.filter');
      const began = performance.now();
      field.value = text;
      field.dispatchEvent(new Event('input'));
      return performance.now() - began;
    }, `state:paused user:user-9${round}`));
  }
  seen(t, `a filter over 10,000: ${figures.filter_ms.map((ms) => ms.toFixed(1)).join(', ')} ms`);
  await v.close();
});

test('a terminal at 10 MB/s', async (t) => {
  const made = await sandbox(t);
  const v = await enter(`#/sandbox/${made.id}/terminal`);
  const { page } = v;
  await until('a prompt', async () => (await page.locator('.screen').innerText()).includes('$'));
  const program = 'import sys,time\nline=("x"*78+"\\r\\n")*1250\nbegan=time.monotonic()\nfor i in range(80):\n    sys.stdout.write(line); sys.stdout.flush()\n    time.sleep(max(0, began+(i+1)*0.01-time.monotonic()))\nprint("took", round(time.monotonic()-began, 2))\n';
  await api('POST', `/v1/sandboxes/${made.id}/exec`, { argv: ['python3', '-c', `open('/workspace/f.py','w').write(${JSON.stringify(program.replace('range(80)', 'range(800)'))})`] });
  await page.getByLabel('Terminal input').focus();
  const work = await pieces(page);
  const used = await processor(page);
  const count = await frames(page);
  await page.keyboard.type('python3 f.py');
  await page.keyboard.press('Enter');
  await until('its end', async () => /took [\d.]+/.test(await page.locator('.screen').innerText()));
  const gaps = await count();
  const longest = await work();
  seen(t, `the terminal: the longest pieces of work of the page's thread took ${longest.slice(0, 5).join(', ')} ms of processor`);
  const took = /took ([\d.]+)/.exec(await page.locator('.screen').innerText())[1];
  const note = await page.locator('.status').innerText();
  Object.assign(figures, { terminal_bytes_per_s: 80e6 / Number(took), terminal_gap_ms: gaps[0], terminal_work_ms: longest[0] });
  seen(t, `80 MB at 10 MB/s wanted, written in ${took} s, ${await used()} ms of the page's processor time; ${gaps.length} frames, longest gaps ${gaps.slice(0, 5).join(', ')} ms; ${note || 'nothing left out'}`);
  await v.close();
});

test('memory of the daemon with a hundred consoles', async (t) => {
  const v = await enter();
  const { page } = v;
  await page.getByText('● live').waitFor();
  const before = Number(await control('memory'));
  await page.evaluate(async () => {
    const proof = `proof.${localStorage.getItem('paddock.proof')}`;
    window.open100 = Array.from({ length: 100 }, () => new WebSocket(`${location.origin.replace(/^http/, 'ws')}/v1/changes`, ['paddock.v1', proof]));
    await Promise.all(window.open100.map((ws) => new Promise((done, failed) => { ws.onopen = done; ws.onclose = failed; })));
  });
  const idle = Number(await control('memory'));
  for (let i = 0; i < 20; i++) {
    const { id } = await api('POST', '/v1/sandboxes', {});
    await api('DELETE', `/v1/sandboxes/${id}`);
  }
  const busy = Number(await control('memory'));
  assert.ok(await page.evaluate(() => window.open100.every((ws) => ws.readyState === WebSocket.OPEN)));
  figures.console_kib = (busy - before) / 100;
  seen(t, `memory of the daemon (Pss): ${before} KB, with 100 consoles ${idle} KB, after 40 changes to each ${busy} KB`);
  await page.goto(`${HOME}/#/overview`);
  await v.close();
});
