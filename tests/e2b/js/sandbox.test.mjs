// Sandboxes: creating, finding, keeping and ending them.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe } from 'node:test'

import { call, fails, make, Sandbox, sdk, test, until, wait } from './kit.mjs'

describe('sandbox', { concurrency: 4 }, () => {
  test('create keeps metadata, variables and time', async (t) => {
    const begin = Date.now()
    const sandbox = await make(t, {
      metadata: { who: 'tests', 'odd key': 'a=b&c %25 ä' }, envs: { A: '1' }, timeoutMs: 60_000,
    })
    assert.match(sandbox.sandboxId, /^[a-z0-9]+$/)
    const info = await sandbox.getInfo()
    assert.equal(info.sandboxId, sandbox.sandboxId)
    assert.equal(info.templateId, 'base')
    assert.equal(info.state, 'running')
    assert.deepEqual(info.metadata, { who: 'tests', 'odd key': 'a=b&c %25 ä' })
    assert.ok(info.cpuCount >= 1 && info.memoryMB > 0)
    const life = info.endAt - info.startedAt
    assert.ok(life > 58_000 && life < 62_000, `${life}`)
    assert.ok(Math.abs(info.startedAt - begin) < 10_000)
    assert.equal((await sandbox.commands.run('echo $A')).stdout, '1\n')
    assert.equal(await sandbox.isRunning(), true)
  })

  test('a template by its other name, and none that is not there', async (t) => {
    await make(t, {}, 'code-interpreter-v1')
    await make(t, {}, 'default')
    await fails(sdk.SandboxError, Sandbox.create('no-such-template'), /404.*no-such-template/)
  })

  test('a time-out of nothing is refused', async () => {
    const answer = await call('POST', '/v2/sandboxes', { templateID: 'base', timeout: 0 })
    assert.equal(answer.status, 400)
    assert.equal((await answer.json()).code, 400)
  })

  test('kill ends it for everybody', async (t) => {
    const sandbox = await make(t)
    assert.equal(await sandbox.kill(), true)
    assert.equal(await sandbox.isRunning(), false)
    assert.equal(await Sandbox.kill(sandbox.sandboxId), false)
    await fails(sdk.SandboxNotFoundError, Sandbox.connect(sandbox.sandboxId))
    await fails(sdk.SandboxNotFoundError, Sandbox.getInfo(sandbox.sandboxId))
    await fails(sdk.SandboxNotFoundError, Sandbox.setTimeout(sandbox.sandboxId, 1000))
    await fails(sdk.SandboxNotFoundError, sandbox.commands.run('true'))
    await fails(sdk.TimeoutError, sandbox.files.list('/'))
  })

  test('connect gives the same sandbox and only lengthens its life', async (t) => {
    const sandbox = await make(t, { timeoutMs: 100_000 })
    await sandbox.files.write('here.txt', 'here')
    const before = (await sandbox.getInfo()).endAt
    const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 10_000 })
    assert.equal(await again.files.read('here.txt'), 'here')
    const kept = (await sandbox.getInfo()).endAt
    assert.ok(Math.abs(kept - before) < 2000, `${kept - before}`)
    await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 300_000 })
    assert.ok((await sandbox.getInfo()).endAt - before > 150_000)
  })

  test('a life ends when its time is over', async (t) => {
    const sandbox = await make(t, { timeoutMs: 5000 })
    assert.equal(await sandbox.isRunning(), true)
    await until('its end', async () => !(await sandbox.isRunning()), 30_000)
    await fails(sdk.SandboxNotFoundError, sandbox.getInfo())
  })

  test('a life can be made shorter and longer', async (t) => {
    const sandbox = await make(t)
    await sandbox.setTimeout(5000)
    await sandbox.setTimeout(60_000)
    await wait(6000)
    assert.equal(await sandbox.isRunning(), true)
    await sandbox.setTimeout(1000)
    await until('its end', async () => !(await sandbox.isRunning()), 30_000)
  })

  test('list finds by metadata and state, in pages and in order', async (t) => {
    const mark = randomUUID()
    const ids = []
    for (let n = 0; n < 3; n++) {
      ids.push((await make(t, { metadata: { mark, n: `${n} &=%` } })).sandboxId)
    }
    const pager = Sandbox.list({ query: { metadata: { mark } }, limit: 2 })
    assert.equal(pager.hasNext, true)
    const first = await pager.nextItems()
    assert.deepEqual(first.map((s) => s.sandboxId), [ids[2], ids[1]])
    assert.equal(pager.hasNext, true)
    assert.deepEqual((await pager.nextItems()).map((s) => s.sandboxId), [ids[0]])
    assert.equal(pager.hasNext, false)

    const one = await Sandbox.list({ query: { metadata: { mark, n: '1 &=%' } } }).nextItems()
    assert.deepEqual(one.map((s) => s.sandboxId), [ids[1]])
    assert.equal(one[0].metadata.n, '1 &=%')

    await Sandbox.pause(ids[0])
    const list = (...state) => Sandbox.list({ query: { metadata: { mark }, state } }).nextItems()
    const [paused, ...more] = await list('paused')
    assert.deepEqual([paused.sandboxId, paused.state, more.length], [ids[0], 'paused', 0])
    assert.deepEqual((await list('running')).map((s) => s.sandboxId), [ids[2], ids[1]])
    assert.equal((await list('running', 'paused')).length, 3)
  })

  test('metrics tell of now and of no time before', async (t) => {
    const sandbox = await make(t)
    const start = new Date()
    const metrics = await until('a sample', async () => {
      const found = await sandbox.getMetrics()
      return found.length && found
    })
    const last = metrics.at(-1)
    assert.ok(last.memTotal > 0 && last.memUsed > 0 && last.memUsed <= last.memTotal)
    assert.ok(last.cpuCount >= 1 && last.cpuUsedPct >= 0)
    assert.ok(last.diskTotal > 0 && last.diskUsed >= 0)
    assert.ok(Math.abs(last.timestamp - start) < 30_000)
    const hour = 3_600_000
    assert.deepEqual(await sandbox.getMetrics({
      start: new Date(start - hour), end: new Date(start - hour / 2),
    }), [])
  })

  test('what v1 made is a sandbox here too', async (t) => {
    const made = await (await call('POST', '/v1/sandboxes', {})).json()
    t.after(() => call('DELETE', `/v1/sandboxes/${made.id}`))
    const sandbox = await Sandbox.connect(made.id)
    assert.equal((await sandbox.commands.run('echo here')).stdout, 'here\n')
    const mine = await make(t)
    assert.equal((await call('GET', `/v1/sandboxes/${mine.sandboxId}`)).status, 200)
  })
})
