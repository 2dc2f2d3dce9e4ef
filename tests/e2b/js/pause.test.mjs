// Pausing, with memory and without, and waking up.
import assert from 'node:assert/strict'
import { describe } from 'node:test'

import { fails, make, Sandbox, sdk, test, until } from './kit.mjs'

describe('pause', { concurrency: 4 }, () => {
  test('with memory: processes go on where they were', async (t) => {
    const sandbox = await make(t, { envs: { KEPT: 'yes' } })
    await sandbox.files.write('f', 'content')
    const command = await sandbox.commands.run('sleep 1000', { background: true })
    assert.equal(await sandbox.pause(), true)
    assert.equal(await sandbox.pause(), false)
    assert.equal((await sandbox.getInfo()).state, 'paused')
    assert.equal(await sandbox.isRunning(), false)
    await fails(sdk.SandboxNotFoundError, sandbox.commands.run('true'))
    await sandbox.connect()
    assert.equal((await sandbox.getInfo()).state, 'running')
    assert.ok((await sandbox.commands.list()).some((p) => p.pid === command.pid))
    assert.equal(await sandbox.files.read('f'), 'content')
    assert.equal((await sandbox.commands.run('echo $KEPT')).stdout, 'yes\n')
    assert.equal(await sandbox.commands.kill(command.pid), true)
  })

  test('without memory: only files stay', async (t) => {
    const sandbox = await make(t, { envs: { KEPT: 'yes' } })
    await sandbox.files.write('f', 'content')
    await sandbox.commands.run('sleep 4720', { background: true })
    assert.equal(await sandbox.pause({ keepMemory: false }), true)
    assert.equal((await sandbox.getInfo()).state, 'paused')
    const again = await Sandbox.connect(sandbox.sandboxId)
    assert.equal(again.sandboxId, sandbox.sandboxId)
    assert.equal(await sandbox.files.read('f'), 'content')
    assert.deepEqual(await sandbox.commands.list(), [])
    assert.equal((await sandbox.commands.run('echo $KEPT; pgrep -x sleep || echo none')).stdout,
      'yes\nnone\n')
  })

  test('a paused sandbox can be killed, and resumed many times', async (t) => {
    const sandbox = await make(t)
    for (let n = 0; n < 3; n++) {
      await sandbox.files.write(`file-${n}`, `${n}`)
      await sandbox.pause({ keepMemory: n % 2 === 0 })
      await sandbox.connect()
    }
    for (let n = 0; n < 3; n++) assert.equal(await sandbox.files.read(`file-${n}`), `${n}`)
    await sandbox.pause()
    assert.equal(await sandbox.kill(), true)
    await fails(sdk.SandboxNotFoundError, sandbox.connect())
    await fails(sdk.SandboxNotFoundError, Sandbox.pause(sandbox.sandboxId))
  })

  test('at the end of its time, if that was asked for', async (t) => {
    const sandbox = await make(t, {
      timeoutMs: 60_000, lifecycle: { onTimeout: 'pause', autoResume: false },
    })
    await sandbox.files.write('f', 'content')
    assert.deepEqual((await sandbox.getInfo()).lifecycle, { onTimeout: 'pause', autoResume: false })
    await sandbox.setTimeout(1000)
    await until('the pause', async () => (await sandbox.getInfo()).state === 'paused', 30_000)
    await fails(sdk.TimeoutError, sandbox.files.read('f'))
    await sandbox.connect({ timeoutMs: 60_000 })
    assert.equal(await sandbox.files.read('f'), 'content')
    assert.ok((await sandbox.getInfo()).endAt - Date.now() > 50_000)
  })

  test('traffic wakes it, if that was asked for', async (t) => {
    const sandbox = await make(t, { lifecycle: { onTimeout: 'pause', autoResume: true } })
    await sandbox.files.write('f', 'content')
    await sandbox.pause()
    assert.equal(await sandbox.files.read('f'), 'content')
    assert.equal((await sandbox.getInfo()).state, 'running')
  })
})
