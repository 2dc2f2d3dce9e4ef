// Ports of sandboxes: over plain HTTP by headers, over TLS by host name. And what of a sandbox's
// network can be asked for.
import assert from 'node:assert/strict'
import { describe } from 'node:test'

import { api, call, fails, make, Sandbox, sdk, test, until } from './kit.mjs'

const tls = process.env.PADDOCK_E2B_TLS_PORT

// Each server has a port of its own: some providers' sandboxes have those of the machine.
let lastPort = 20_000 + (process.pid % 10_000)

// A server in the sandbox that answers with the headers it got; gives the port.
async function serve(sandbox, port = ++lastPort) {
  await sandbox.files.write('server.py', `
from http.server import BaseHTTPRequestHandler, HTTPServer
class Answer(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        body = ('path=%s\\n%s' % (self.path, self.headers)).encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
        self.send_response(201)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body[::-1])
HTTPServer(('127.0.0.1', ${port}), Answer).serve_forever()
`)
  await sandbox.commands.run('python3 server.py', { background: true, timeoutMs: 0 })
  await until('the server in the sandbox', async () => {
    const asked = await sandbox.commands.run(
      `bash -c 'exec 3<>/dev/tcp/127.0.0.1/${port}' 2>/dev/null && echo up || true`)
    return asked.stdout === 'up\n'
  })
  return port
}

const by = (sandbox, port, more = {}) =>
  ({ headers: { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': `${port}`, ...more } })

describe('ports', { concurrency: 4 }, () => {
  test('over plain HTTP, by headers', async (t) => {
    const sandbox = await make(t)
    const port = await serve(sandbox)
    const answer = await fetch(`${api}/some/path?q=1`, by(sandbox, port))
    assert.equal(answer.status, 200)
    assert.match(await answer.text(), /^path=\/some\/path\?q=1\n/)
    const posted = await fetch(`${api}/`, { method: 'POST', body: 'abc', ...by(sandbox, port) })
    assert.deepEqual([posted.status, await posted.text()], [201, 'cba'])
  })

  test('a port that nobody listens on, and a sandbox that is gone', async (t) => {
    const sandbox = await make(t)
    const closed = await fetch(`${api}/`, by(sandbox, 8001))
    assert.equal(closed.status, 502)
    assert.deepEqual(await closed.json(), {
      sandboxId: sandbox.sandboxId, message: 'The sandbox is running but port is not open',
      port: 8001, code: 502,
    })
    await sandbox.kill()
    const gone = await fetch(`${api}/`, by(sandbox, 8001))
    assert.equal(gone.status, 502)
    assert.deepEqual(await gone.json(), {
      sandboxId: sandbox.sandboxId, message: 'The sandbox was not found', code: 502,
    })
  })

  test('over TLS, by the host that the SDK says', { skip: !tls && 'no TLS' }, async (t) => {
    const sandbox = await make(t)
    const port = await serve(sandbox)
    const host = sandbox.getHost(port)
    assert.equal(host, `${port}-${sandbox.sandboxId}.${process.env.PADDOCK_E2B_DOMAIN}:${tls}`)
    const answer = await fetch(`https://${host}/x`)
    assert.equal(answer.status, 200)
    assert.match(await answer.text(), /^path=\/x\n/)
    await sandbox.kill()
    const gone = await fetch(`https://${host}/x`)
    assert.equal(gone.status, 502)
    assert.equal((await gone.json()).message, 'The sandbox was not found')
  })

  test('everything of the SDK by host names over TLS', { skip: !tls && 'no TLS' }, async (t) => {
    const options = { apiUrl: api, domain: `${process.env.PADDOCK_E2B_DOMAIN}:${tls}` }
    const kept = process.env.E2B_SANDBOX_URL
    delete process.env.E2B_SANDBOX_URL
    let sandbox
    try {
      sandbox = await make(t, options)
    } finally {
      process.env.E2B_SANDBOX_URL = kept
    }
    assert.equal((await sandbox.commands.run('echo hello')).stdout, 'hello\n')
    await sandbox.files.write('f', 'content')
    assert.equal(await sandbox.files.read('f'), 'content')
    const link = await sandbox.downloadUrl('f')
    assert.match(link, /^https:\/\/49983-/)
    assert.equal(await (await fetch(link)).text(), 'content')
  })

  test('a private port wants the traffic token', async (t) => {
    const sandbox = await make(t, { network: { allowPublicTraffic: false } })
    const port = await serve(sandbox)
    assert.ok(sandbox.trafficAccessToken)
    const refused = await fetch(`${api}/`, by(sandbox, port))
    assert.equal(refused.status, 403)
    assert.equal((await refused.json()).code, 403)
    const wrong = await fetch(`${api}/`,
      by(sandbox, port, { 'e2b-traffic-access-token': `${sandbox.trafficAccessToken}x` }))
    assert.equal(wrong.status, 403)
    const right = await fetch(`${api}/`,
      by(sandbox, port, { 'e2b-traffic-access-token': sandbox.trafficAccessToken }))
    assert.equal(right.status, 200)
    assert.equal((await make(t)).trafficAccessToken ?? undefined, undefined)
  })

  test('the host that a server in the sandbox sees', async (t) => {
    const sandbox = await make(t, { network: { maskRequestHost: 'example.test:${PORT}' } })
    const port = await serve(sandbox)
    const answer = await fetch(`${api}/`, by(sandbox, port))
    assert.match(await answer.text(), new RegExp(`^host: example\\.test:${port}\\r?$`, 'im'))
  })
})

describe('network', { concurrency: 4 }, () => {
  test('there is none, and asking for less is no error', async (t) => {
    const sandbox = await make(t, { network: { denyOut: ({ allTraffic }) => [allTraffic] } })
    await fails(sdk.CommandExitError,
      sandbox.commands.run("bash -c 'exec 3<>/dev/tcp/192.0.2.1/80'", { timeoutMs: 10_000 }))
    assert.equal((await sandbox.getInfo()).allowInternetAccess, false)
    await make(t, { allowInternetAccess: false })
    await make(t, { allowInternetAccess: true })
    await sandbox.updateNetwork({ denyOut: ['192.0.2.0/24'] })
  })

  test('asking for what there is not is refused with the reason', async () => {
    for (const network of [{ allowOut: ['192.0.2.1'], denyOut: ['0.0.0.0/0'] },
      { egressProxy: { address: '192.0.2.1:1080' } }]) {
      await fails(sdk.SandboxError, Sandbox.create('base', { network }), /^400: .*network/)
    }
    const iam = await call('POST', '/v2/sandboxes', { templateID: 'base', iam: { tokens: [] } })
    assert.equal(iam.status, 400)
    const mounts = await call('POST', '/v2/sandboxes',
      { templateID: 'base', volumeMounts: [{ name: 'v', path: '/v' }] })
    assert.equal(mounts.status, 400)
    assert.match((await mounts.json()).message, /volume/i)
  })
})
