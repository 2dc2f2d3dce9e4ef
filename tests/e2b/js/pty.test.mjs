// Terminals.
import assert from 'node:assert/strict'
import { describe } from 'node:test'

import { fails, make, sdk, test, until } from './kit.mjs'

// A terminal and what it showed.
async function open(sandbox, options = {}) {
  const shown = { text: '' }
  const decoder = new TextDecoder()
  const onData = (data) => { shown.text += decoder.decode(data, { stream: true }) }
  const terminal = await sandbox.pty.create({ cols: 80, rows: 24, onData, ...options })
  const type = (text) => sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode(text))
  return { terminal, shown, type }
}

describe('pty', { concurrency: 4 }, () => {
  test('a shell in a terminal, with its variables, directory and size', async (t) => {
    const sandbox = await make(t)
    const { terminal, shown, type } = await open(sandbox, { envs: { ABC: 'x-123' }, cwd: '/tmp' })
    await type('echo "<$ABC|$TERM|$PWD>"; stty size; tty\n')
    await until(`the answers in ${shown.text}`, () =>
      shown.text.includes('<x-123|xterm-256color|/tmp>') && /24 80/.test(shown.text) &&
      shown.text.includes('/dev/pts/'))
    await type('exit 3\n')
    const error = await fails(sdk.CommandExitError, terminal.wait())
    assert.equal(error.exitCode, 3)
  })

  test('resize', async (t) => {
    const sandbox = await make(t)
    const { terminal, shown, type } = await open(sandbox)
    await sandbox.pty.resize(terminal.pid, { cols: 101, rows: 31 })
    await type('stty size; exit\n')
    await terminal.wait()
    assert.match(shown.text, /31 101/)
    await fails(sdk.NotFoundError, sandbox.pty.resize(999999, { cols: 1, rows: 1 }))
  })

  test('keys reach the program: control-C', async (t) => {
    const sandbox = await make(t)
    const { terminal, shown, type } = await open(sandbox)
    await type('sleep 1000; echo code=$?\n')
    await until('the echo of the line', () => shown.text.includes('sleep 1000'))
    await until('the sleep', async () =>
      (await sandbox.commands.run('pgrep -x sleep || true')).stdout !== '')
    await type('\x03')
    await type('echo after-$((1 + 1))\n')
    await until(`the prompt again in ${shown.text}`, () => shown.text.includes('after-2'))
    assert.equal(await sandbox.pty.kill(terminal.pid), true)
  })

  test('kill', async (t) => {
    const sandbox = await make(t)
    const { terminal } = await open(sandbox)
    assert.equal(await sandbox.pty.kill(terminal.pid), true)
    await fails(sdk.CommandExitError, sandbox.commands.run(`kill -0 ${terminal.pid}`))
    assert.equal(await sandbox.pty.kill(terminal.pid), false)
  })

  test('a terminal outlives its client, who can come back', async (t) => {
    const sandbox = await make(t)
    const { terminal, shown, type } = await open(sandbox)
    await type('MARK=kept; echo "<$MARK>"\n')
    await until('the first answer', () => shown.text.includes('<kept>'))
    await terminal.disconnect()
    let text = ''
    const again = await sandbox.pty.connect(terminal.pid, {
      onData: (data) => { text += Buffer.from(data).toString() },
    })
    await type('echo "<$MARK>"; exit\n')
    assert.equal((await again.wait()).exitCode, 0)
    assert.match(text, /<kept>/)
  })
})
