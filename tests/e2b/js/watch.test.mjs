// Watching directories.
import assert from 'node:assert/strict'
import { describe } from 'node:test'

import { fails, make, sdk, test, until } from './kit.mjs'

describe('watch', { concurrency: 4 }, () => {
  test('tells of what happens in a directory', async (t) => {
    const sandbox = await make(t)
    await sandbox.files.makeDir('w')
    const events = []
    const handle = await sandbox.files.watchDir('w', (e) => { events.push(`${e.type} ${e.name}`) })
    await sandbox.files.write('w/f', '1')
    await sandbox.commands.run('chmod 600 w/f && mv w/f w/g && rm w/g')
    for (const wanted of ['create f', 'write f', 'chmod f', 'rename f', 'create g', 'remove g']) {
      await until(`${wanted} in ${events}`, () => events.includes(wanted))
    }
    await handle.stop()
    await sandbox.files.write('w/after', '1')
    assert.ok(!events.some((e) => e.endsWith('after')))
  })

  test('recursive ones follow into new directories, others do not', async (t) => {
    const sandbox = await make(t)
    await sandbox.files.makeDir('w')
    const deep = []
    const flat = []
    const handles = [
      await sandbox.files.watchDir('w', (e) => { deep.push(`${e.type} ${e.name}`) },
        { recursive: true }),
      await sandbox.files.watchDir('w', (e) => { flat.push(`${e.type} ${e.name}`) }),
    ]
    await sandbox.files.makeDir('w/sub')
    await until('the directory', () => deep.includes('create sub'))
    await sandbox.files.write('w/sub/f', '1')
    await until(`the file in ${deep}`, () => deep.includes('write sub/f'))
    await sandbox.files.write('w/last', '1')
    await until('the last one', () => flat.includes('write last'))
    assert.ok(!flat.some((e) => e.includes('sub/')))
    for (const handle of handles) await handle.stop()
  })

  test('events have the entry on demand', async (t) => {
    const sandbox = await make(t)
    await sandbox.files.makeDir('w')
    const events = []
    const handle = await sandbox.files.watchDir('w', (e) => { events.push(e) },
      { includeEntry: true })
    await sandbox.files.write('w/f', '123')
    const event = await until('the write', () => events.find((e) => e.type === 'write'))
    assert.equal(event.entry.path, '/home/user/w/f')
    assert.equal(event.entry.type, 'file')
    await handle.stop()
  })

  test('what is no directory cannot be watched', async (t) => {
    const sandbox = await make(t)
    await fails(sdk.FileNotFoundError, sandbox.files.watchDir('nothing', () => {}))
    await fails(sdk.SandboxError, sandbox.files.watchDir('/etc/passwd', () => {}))
  })

  test('a watch ends with its sandbox', async (t) => {
    const sandbox = await make(t)
    let ended
    const end = new Promise((done) => { ended = done })
    await sandbox.files.watchDir('.', () => {}, { onExit: ended, timeoutMs: 0 })
    await sandbox.kill()
    assert.ok((await end) instanceof Error)
  })
})
