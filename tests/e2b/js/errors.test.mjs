// Errors are those of the SDK's own classes.
import assert from 'node:assert/strict'
import { describe } from 'node:test'

import { api, call, fails, make, Sandbox, sdk, test } from './kit.mjs'

describe('errors', { concurrency: 4 }, () => {
  test('a wrong key is an AuthenticationError', async () => {
    await fails(sdk.AuthenticationError, Sandbox.create('base', { apiKey: 'e2b_00ff' }))
    await fails(sdk.AuthenticationError,
      Sandbox.list({ apiKey: 'e2b_00ff' }).nextItems())
    const answer = await fetch(`${api}/v2/sandboxes`)
    assert.equal(answer.status, 401)
    assert.equal((await answer.json()).code, 401)
  })

  test('what is not there is a SandboxNotFoundError, or false', async () => {
    const id = 'abcdefghij0123456789'
    await fails(sdk.SandboxNotFoundError, Sandbox.connect(id))
    await fails(sdk.SandboxNotFoundError, Sandbox.getInfo(id))
    assert.equal(await Sandbox.kill(id), false)
    const answer = await call('GET', `/sandboxes/${id}`)
    assert.equal(answer.status, 404)
    assert.equal((await answer.json()).code, 404)
  })

  test('a rate limit is a RateLimitError', async () => {
    const options = {
      apiUrl: process.env.PADDOCK_E2B_LIMITED_URL, apiKey: process.env.PADDOCK_E2B_LIMITED_KEY,
      retries: 0,
    }
    const asked = Array.from({ length: 4 }, () => Sandbox.list(options).nextItems())
    const ended = await Promise.allSettled(asked)
    const refused = ended.filter((e) => e.status === 'rejected').map((e) => e.reason)
    assert.ok(refused.length >= 1)
    for (const error of refused) assert.ok(error instanceof sdk.RateLimitError, error.stack)
  })

  test('a full disk is a NotEnoughSpaceError', async (t) => {
    const made = await (await call('POST', '/v1/sandboxes',
      { limits: { disk_bytes: 16 * 1024 * 1024 } })).json()
    t.after(() => call('DELETE', `/v1/sandboxes/${made.id}`))
    const sandbox = await Sandbox.connect(made.id)
    await sandbox.files.write('small', 'fits')
    const large = new Uint8Array(24 * 1024 * 1024).fill(120)
    await fails(sdk.NotEnoughSpaceError, sandbox.files.write('large', large.buffer))
    await sandbox.files.write('small', 'fits still')
  })

  test('a request that takes too long is a TimeoutError', async (t) => {
    const sandbox = await make(t)
    await fails(sdk.TimeoutError, sandbox.commands.run('sleep 100', { timeoutMs: 300 }))
    assert.equal((await sandbox.commands.run('echo still here')).stdout, 'still here\n')
  })

  test('wrong arguments are refused with their name', async () => {
    for (const [body, name] of [
      [{}, 'templateID'], [{ templateID: 7 }, 'templateID'],
      [{ templateID: 'base', timeout: 'x' }, 'timeout'],
      [{ templateID: 'base', metadata: { a: 1 } }, 'metadata'],
    ]) {
      const answer = await call('POST', '/v2/sandboxes', body)
      assert.equal(answer.status, 400, JSON.stringify(body))
      assert.match((await answer.json()).message, new RegExp(name, 'i'))
    }
    const broken = await fetch(`${api}/v2/sandboxes`, {
      method: 'POST', body: '{', headers: {
        'X-API-Key': process.env.E2B_API_KEY, 'Content-Type': 'application/json',
      },
    })
    assert.equal(broken.status, 400)
  })

  test('what the server does not have says so', async () => {
    await fails(Error, sdk.Template.build(sdk.Template().fromBaseImage(), 'tests-none'),
      /no image 'e2bdev\/base'/)
    const volumes = await call('GET', '/volumes')
    assert.ok([400, 404, 501].includes(volumes.status))
    assert.match((await volumes.json()).message, /volume/i)
  })
})
