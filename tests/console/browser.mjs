// Debian's Chromium for the tests: one browser, a fresh profile for each test, and a watch on what no
// page of the console may do.
import assert from 'node:assert/strict';
import http from 'node:http';
import { createRequire } from 'node:module';
import net from 'node:net';
import path from 'node:path';

const packages = createRequire(path.join(process.env.CONSOLE_JS, 'package.json'));
const { chromium } = packages('playwright-core');

export const axePath = packages.resolve('axe-core/axe.min.js');
export const { PADDOCK_URL, PADDOCK_API_KEY, CONSOLE_CONTROL } = process.env;
/** Under the name that previews are below of. */
export const HOME = PADDOCK_URL.replace('127.0.0.1', 'localhost');
export const PATIENCE = 1000 * Number(process.env.CONSOLE_PATIENCE_S ?? 30);

let browser = null;

export async function start() {
  // Root has no user namespace of its own to sandbox the browser in; it visits nothing but this server.
  browser = await chromium.launch({
    executablePath: process.env.CONSOLE_CHROMIUM, args: ['--no-sandbox', '--disable-dev-shm-usage'],
  });
}

export async function stop() {
  await browser?.close();
}

/** A page in a profile of its own. `visit.faults` has what it complained about: scripts that broke,
 * what the policy kept out, requests that left the server. */
export async function visit(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1200, height: 800 }, ...options });
  context.setDefaultTimeout(PATIENCE);
  const page = await context.newPage();
  const faults = [];
  page.on('pageerror', (error) => faults.push(`script: ${error.message}`));
  page.on('console', (message) => {
    // An answer of 4xx is written there, too; it is the test's to look at.
    if (message.type() === 'error' && !/Failed to load resource/.test(message.text())) faults.push(message.text());
  });
  page.on('request', (request) => {
    const url = new URL(request.url());
    if (!['data:', 'blob:'].includes(url.protocol) && url.port !== new URL(HOME).port) faults.push(`request to ${url}`);
  });
  /** What never came: whoever waits in vain says it. */
  const lost = [];
  page.on('requestfailed', (request) => lost.push(`${request.url()}: ${request.failure()?.errorText}`));
  // Chromium drops what it is loading when the machine gets or loses an interface, as it does whenever others' tests make networks
  // beside these. A page without one of its parts stays empty: people load it again, and so do the tests. The log says it.
  const plain = { goto: page.goto.bind(page), reload: page.reload.bind(page) };
  for (const first of ['goto', 'reload']) {
    page[first] = async (...args) => {
      let step = () => plain[first](...args);
      for (let tries = 1; ; tries++) {
        const before = lost.length;
        const [answer, fault] = await step().then((it) => [it, null], (error) => [null, error]);
        // The page itself asks again for what is not a part of it.
        const dropped = lost.slice(before).filter((it) => it.includes('ERR_NETWORK_CHANGED') && !it.includes('/v1/'));
        if (!fault && !dropped.length) return answer;
        if (fault && (tries === 5 || !/ERR_NETWORK_CHANGED/.test(fault.message))) throw fault;
        assert.ok(tries < 5, `${first}: ${dropped}`);
        console.error(`${first}, once more: ${fault?.message ?? dropped}`);
        if (!fault) step = plain.reload;
      }
    };
  }
  return { context, page, faults, lost, close: () => context.close() };
}

/**
 * A line to the server that can be cut, as a proxy for `visit`: {proxy, cut, mend, close}. Chromium's own way of being offline is
 * no such: it holds back what is on its way, the end of a socket as well, so a page may never hear that it is alone.
 */
export async function line() {
  const sockets = new Set();
  let isCut = false;
  const joined = (client, server) => {
    for (const socket of [client, server]) {
      sockets.add(socket);
      socket.on('error', () => socket.destroy());
      socket.on('close', () => { sockets.delete(socket); client.destroy(); server.destroy(); });
    }
    client.pipe(server).pipe(client);
  };
  const proxy = http.createServer((ask, answer) => {
    const url = new URL(ask.url);
    const on = http.request({ host: '127.0.0.1', port: url.port, method: ask.method, path: url.pathname + url.search, headers: ask.headers, agent: false }, (got) => {
      answer.writeHead(got.statusCode, got.rawHeaders);
      got.pipe(answer);
      got.on('error', () => answer.destroy());
    });
    on.on('error', () => answer.destroy());
    on.on('socket', (socket) => { sockets.add(socket); socket.on('close', () => sockets.delete(socket)); });
    ask.pipe(on);
  });
  proxy.on('connection', (socket) => {
    if (isCut) return void socket.destroy();
    sockets.add(socket);
    socket.on('close', () => sockets.delete(socket));
  });
  // WebSockets ask for a tunnel.
  proxy.on('connect', (ask, client) => {
    const server = net.connect(Number(ask.url.split(':')[1]), '127.0.0.1');
    server.on('connect', () => client.write('HTTP/1.1 200 OK\r\n\r\n'));
    joined(client, server);
  });
  await new Promise((done) => { proxy.listen(0, '127.0.0.1', done); });
  const cut = () => {
    isCut = true;
    for (const socket of sockets) socket.destroy();
  };
  return {
    proxy: { server: `http://127.0.0.1:${proxy.address().port}`, bypass: '<-loopback>' },
    cut, mend: () => { isCut = false; },
    close: () => { cut(); proxy.close(); },
  };
}

/** `visit`, logged in by the key, at an address of the console. */
export async function enter(address = '#/', options = {}) {
  const visited = await visit(options);
  const { page } = visited;
  const state = async () => `faults: ${JSON.stringify(visited.faults)}\nlost: ${JSON.stringify(visited.lost)}\nshown: ${(await page.locator('body').innerText().catch(String)).slice(0, 2000)}`;
  await page.goto(`${HOME}/`);
  try {
    await page.getByLabel('API key').fill(options.key ?? PADDOCK_API_KEY);
    await page.getByRole('button', { name: 'Log in' }).click();
    await page.getByRole('navigation', { name: 'Pages' }).waitFor();
  } catch (error) {
    throw new Error(`${error.message}\n${await state()}`); // whose stack has all of it, as the one of playwright has not
  }
  if (address !== '#/') await visited.page.goto(`${HOME}/${address}`);
  return visited;
}

export async function api(method, where, body, key = PADDOCK_API_KEY) {
  const answer = await fetch(PADDOCK_URL + where, {
    method, headers: { 'X-API-Key': key, ...(body === undefined ? {} : { 'Content-Type': 'application/json' }) },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await answer.text();
  assert.ok(answer.status < 400, `${method} ${where}: ${answer.status} ${text}`);
  return text && answer.headers.get('content-type')?.includes('json') ? JSON.parse(text) : text;
}

/** A sandbox that ends with the test. */
export async function sandbox(t, body = {}) {
  const made = await api('POST', '/v1/sandboxes', body);
  t.after(() => api('DELETE', `/v1/sandboxes/${made.id}`).catch(() => {}));
  return made;
}

/** Waits for a condition, as everything here does. */
export async function until(what, f) {
  const end = Date.now() + PATIENCE;
  for (;;) {
    const found = await f();
    if (found) return found;
    assert.ok(Date.now() < end, `not within ${PATIENCE} ms: ${what}`);
    await new Promise((done) => setTimeout(done, 50));
  }
}

/** What the suite does to the server: `restart` kills it with SIGKILL and starts it again. */
export async function control(order) {
  const answer = await fetch(`${CONSOLE_CONTROL}/${order}`, { method: 'POST' });
  assert.equal(answer.status, 200, order);
  return answer.text();
}
