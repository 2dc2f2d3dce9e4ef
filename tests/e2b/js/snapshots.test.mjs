// Snapshots as templates, and forks.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe } from 'node:test'

import { fails, make, Sandbox, sdk, test } from './kit.mjs'

describe('snapshots', { concurrency: 4 }, () => {
  test('a snapshot is a template until it is deleted', async (t) => {
    const sandbox = await make(t)
    await sandbox.files.write('f', 'then')
    const snapshot = await sandbox.createSnapshot()
    t.after(() => Sandbox.deleteSnapshot(snapshot.snapshotId))
    await sandbox.files.write('f', 'now')
    const copies = [await make(t, {}, snapshot.snapshotId), await make(t, {}, snapshot.snapshotId)]
    await copies[0].files.write('f', 'elsewhere')
    assert.equal(await copies[1].files.read('f'), 'then')
    assert.equal(await sandbox.files.read('f'), 'now')
    const owner = await copies[1].commands.run("stat -c '%U' f; id -un")
    assert.equal(owner.stdout, 'user\nuser\n')

    const of = async () => (await sandbox.listSnapshots().nextItems()).map((s) => s.snapshotId)
    assert.deepEqual(await of(), [snapshot.snapshotId])
    assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
    assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), false)
    assert.deepEqual(await of(), [])
    await fails(sdk.SandboxError, Sandbox.create(snapshot.snapshotId), /404/)
    assert.equal(await copies[1].files.read('f'), 'then')
  })

  test('by name', async (t) => {
    const sandbox = await make(t)
    await sandbox.files.write('f', 'named')
    const name = `tests-${randomUUID().slice(0, 8)}`
    const snapshot = await sandbox.createSnapshot({ name })
    t.after(() => Sandbox.deleteSnapshot(snapshot.snapshotId))
    assert.ok(snapshot.names.some((n) => n.includes(name)), `${snapshot.names}`)
    const copy = await make(t, {}, name)
    assert.equal(await copy.files.read('f'), 'named')
  })

  test('forks have the files and a life of their own', async (t) => {
    const sandbox = await make(t, { envs: { KEPT: 'yes' } })
    await sandbox.files.write('f', 'before')
    const forks = await sandbox.fork({ count: 2, timeoutMs: 60_000 })
    for (const fork of forks) {
      assert.ok(fork instanceof Sandbox, `${fork}`)
      t.after(() => fork.kill())
      assert.notEqual(fork.sandboxId, sandbox.sandboxId)
      assert.equal(await fork.files.read('f'), 'before')
      assert.equal((await fork.commands.run('echo $KEPT')).stdout, 'yes\n')
    }
    assert.equal(new Set(forks.map((f) => f.sandboxId)).size, 2)
    await forks[0].files.write('f', 'after')
    assert.equal(await sandbox.files.read('f'), 'before')
    assert.equal(await forks[1].files.read('f'), 'before')
    await fails(sdk.SandboxNotFoundError, Sandbox.fork('doesnotexist12345678'))
  })
})
