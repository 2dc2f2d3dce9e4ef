// Commands: what they get, what comes back, and how they end.
import assert from 'node:assert/strict'
import { describe } from 'node:test'

import { fails, isThere, make, patience, sdk, test, until } from './kit.mjs'

describe('commands', { concurrency: 4 }, () => {
  test('a result has both streams and the exit code', async (t) => {
    const sandbox = await make(t)
    const seen = { out: '', err: '' }
    const result = await sandbox.commands.run('echo out; echo err >&2', {
      onStdout: (text) => { seen.out += text },
      onStderr: (text) => { seen.err += text },
    })
    assert.equal(result.exitCode, 0)
    assert.equal(result.stdout, 'out\n')
    assert.equal(result.stderr, 'err\n')
    assert.deepEqual(seen, { out: 'out\n', err: 'err\n' })
  })

  test('an exit code other than 0 is a CommandExitError', async (t) => {
    const sandbox = await make(t)
    const error = await fails(sdk.CommandExitError,
      sandbox.commands.run('echo before; echo why >&2; exit 37'))
    assert.equal(error.exitCode, 37)
    assert.equal(error.stdout, 'before\n')
    assert.equal(error.stderr, 'why\n')
    assert.equal(error.error, 'exit status 37')
  })

  test('a command runs as user in its home, as root on demand', async (t) => {
    const sandbox = await make(t)
    const mine = await sandbox.commands.run('id -un; pwd; echo $HOME $USER $LOGNAME')
    assert.equal(mine.stdout, 'user\n/home/user\n/home/user user user\n')
    const root = await sandbox.commands.run('id -u; pwd; echo $HOME', { user: 'root' })
    assert.equal(root.stdout, '0\n/root\n/root\n')
    assert.equal((await sandbox.commands.run('sudo id -u')).stdout, '0\n')
    await fails(sdk.AuthenticationError, sandbox.commands.run('true', { user: 'nobody-here' }))
  })

  test('directory and variables of a command', async (t) => {
    const sandbox = await make(t, { envs: { A: 'of the sandbox', B: 'of the sandbox' } })
    const result = await sandbox.commands.run('pwd; echo "$A, $B, $C"', {
      cwd: '/tmp', envs: { B: 'of the command', C: "it's" },
    })
    assert.equal(result.stdout, "/tmp\nof the sandbox, of the command, it's\n")
    assert.equal((await sandbox.commands.run('echo "$B"')).stdout, 'of the sandbox\n')
    const ids = await sandbox.commands.run('echo $E2B_SANDBOX $E2B_SANDBOX_ID')
    assert.equal(ids.stdout, `true ${sandbox.sandboxId}\n`)
    await fails(sdk.InvalidArgumentError, sandbox.commands.run('pwd', { cwd: '/is/not/there' }),
      /does not exist/)
  })

  test('standard input of a command in the background', async (t) => {
    const sandbox = await make(t)
    const command = await sandbox.commands.run('cat; echo end', { background: true, stdin: true })
    await sandbox.commands.sendStdin(command.pid, 'one\n')
    await command.sendStdin('two ä €\n')
    await until('the echo', () => command.stdout.endsWith('€\n'))
    await sandbox.commands.closeStdin(command.pid)
    const result = await command.wait()
    assert.equal(result.stdout, 'one\ntwo ä €\nend\n')
  })

  test('without stdin a command reads nothing', async (t) => {
    const sandbox = await make(t)
    assert.equal((await sandbox.commands.run('cat; echo end')).stdout, 'end\n')
  })

  test('list shows what runs, as it was started', async (t) => {
    const sandbox = await make(t)
    const command = await sandbox.commands.run('sleep 1000', {
      background: true, cwd: '/tmp', envs: { MARK: 'x' },
    })
    const found = (await sandbox.commands.list()).find((p) => p.pid === command.pid)
    assert.ok(found)
    assert.equal(found.cmd, '/bin/bash')
    assert.deepEqual(found.args, ['-l', '-c', 'sleep 1000'])
    assert.equal(found.envs.MARK, 'x')
    assert.equal(found.cwd, '/tmp')
    assert.equal(await command.kill(), true)
    assert.equal((await sandbox.commands.list()).some((p) => p.pid === command.pid), false)
  })

  test('kill ends it, at once and only once', async (t) => {
    const sandbox = await make(t)
    const command = await sandbox.commands.run('sleep 1000', { background: true })
    const ended = fails(sdk.CommandExitError, command.wait(), /signal: killed/)
    assert.equal(await sandbox.commands.kill(command.pid), true)
    await fails(sdk.CommandExitError, sandbox.commands.run(`kill -0 ${command.pid}`))
    assert.equal((await ended).exitCode, -1)
    assert.equal(await sandbox.commands.kill(command.pid), false)
    assert.equal(await sandbox.commands.kill(999999), false)
  })

  test('a time-out ends the whole tree', async (t) => {
    const sandbox = await make(t)
    const begin = Date.now()
    await fails(sdk.TimeoutError, sandbox.commands.run(
      'sleep 4711 & (setsid sleep 4712 &) ; sleep 4713', { timeoutMs: 1000 }))
    assert.ok(Date.now() - begin < 10_000 * patience)
    for (const word of ['sleep 4711', 'sleep 4712', 'sleep 4713']) {
      await until(`${word} is gone`, async () => !(await isThere(sandbox, word)))
    }
  })

  test('a client that goes away ends nothing, and another one can connect', async (t) => {
    const sandbox = await make(t)
    const command = await sandbox.commands.run(
      'while [ ! -e go ]; do sleep 0.05; done; echo later; exit 5', { background: true })
    await command.disconnect()
    const again = await (await sdk.Sandbox.connect(sandbox.sandboxId)).commands.connect(command.pid)
    assert.equal(again.pid, command.pid)
    const ended = fails(sdk.CommandExitError, again.wait())
    await sandbox.files.write('go', '')
    const error = await ended
    assert.equal(error.exitCode, 5)
    assert.equal(error.stdout, 'later\n')
    await fails(sdk.NotFoundError, sandbox.commands.connect(999999))
  })

  test('10 MB on each stream come back whole', async (t) => {
    const sandbox = await make(t)
    const result = await sandbox.commands.run(
      "head -c 10000000 /dev/zero | tr '\\0' o & head -c 10000000 /dev/zero | tr '\\0' e >&2; wait")
    assert.equal(result.stdout.length, 10_000_000)
    assert.equal(result.stderr.length, 10_000_000)
    assert.ok(/^o+$/.test(result.stdout) && /^e+$/.test(result.stderr))
  })

  test('bytes that are no UTF-8 do not break a stream', async (t) => {
    const sandbox = await make(t)
    const result = await sandbox.commands.run("printf 'a\\377\\376b\\0c'; printf '\\303\\251' >&2")
    assert.ok(result.stdout.startsWith('a') && result.stdout.endsWith('b\0c'), result.stdout)
    assert.equal(result.stderr, 'é')
  })

  test('a sandbox that is killed ends the commands that wait in it', async (t) => {
    const sandbox = await make(t)
    let begin
    const begun = new Promise((done) => { begin = done })
    const waiting = fails(sdk.TimeoutError,
      sandbox.commands.run('echo begun; sleep 1000', { onStdout: begin }))
    await Promise.race([begun, waiting])
    await sandbox.kill()
    await waiting
  })

  test('a command without a limit outlives the default one', async (t) => {
    const sandbox = await make(t)
    const command = await sandbox.commands.run('sleep 2; echo done', {
      background: true, timeoutMs: 0,
    })
    assert.equal((await command.wait()).stdout, 'done\n')
  })
})
