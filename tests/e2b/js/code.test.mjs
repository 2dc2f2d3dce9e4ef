// The code interpreter's own SDK. Cells here need nothing but what every sandbox has.
import assert from 'node:assert/strict'

import { fails, patience, test, until } from './kit.mjs'

// Its errors are of a copy of the SDK that it loads itself.
const { NotFoundError, Sandbox, SandboxError, TimeoutError } = await import(process.env.PADDOCK_E2B_CODE)

// After a request that is refused the SDK leaves its timer (60 s) running, for which the process would wait.
const soon = { requestTimeoutMs: 8_000 * patience }

async function make(t, options = {}) {
  const sandbox = await Sandbox.create({ timeoutMs: 120_000, ...options })
  t.after(() => sandbox.kill())
  return sandbox
}

test('code: variables stay, the last value is the result, output is told apart', async (t) => {
  const sandbox = await make(t)
  await sandbox.runCode('x = 20')
  const done = await sandbox.runCode('import sys\nprint("out"); print("err", file=sys.stderr)\nx + 1')
  assert.equal(done.text, '21')
  assert.equal(done.executionCount, 2)
  assert.deepEqual(done.logs.stdout.join(''), 'out\n')
  assert.deepEqual(done.logs.stderr.join(''), 'err\n')
  assert.equal(done.error, undefined)
})

test('code: an exception is told, and variables stay', async (t) => {
  const sandbox = await make(t)
  const done = await sandbox.runCode('y = 7\nundefined_name')
  assert.equal(done.error.name, 'NameError')
  assert.match(done.error.value, /undefined_name/)
  assert.match(done.error.traceback, /NameError/)
  assert.equal((await sandbox.runCode('y')).text, '7')
})

test('code: callbacks get what was written and shown, in order', async (t) => {
  const sandbox = await make(t)
  const told = []
  const done = await sandbox.runCode(
    `class Picture:
    def _repr_png_(self):
        return b"\\x89PNG\\r\\n\\x1a\\n"
    def _repr_html_(self):
        return "<b>ü\\u2028</b>"
print("before")
Picture()`,
    {
      onStdout: (m) => told.push(['stdout', m.line]),
      onResult: (r) => told.push(['result', r.html]),
    })
  assert.deepEqual(told, [['stdout', 'before\n'], ['result', '<b>ü\u2028</b>']])
  assert.equal(done.results[0].png, Buffer.from('\x89PNG\r\n\x1a\n', 'latin1').toString('base64'))
  assert.equal(done.results[0].isMainResult, true)
})

test('code: contexts are apart, and are listed, restarted and removed', async (t) => {
  const sandbox = await make(t)
  const context = await sandbox.createCodeContext({ cwd: '/tmp' })
  assert.equal(context.language, 'python')
  await sandbox.runCode('z = 1', { context })
  const elsewhere = await sandbox.runCode('z')
  assert.equal(elsewhere.error.name, 'NameError')
  assert.equal((await sandbox.runCode('import os; os.getcwd(), z', { context })).text, "('/tmp', 1)")
  const listed = await sandbox.listCodeContexts()
  assert.equal(listed.at(-1).id, context.id)
  assert.deepEqual(listed.slice(0, 2).map((c) => c.language), ['python', 'javascript'])
  await sandbox.restartCodeContext(context)
  assert.equal((await sandbox.runCode('z', { context })).error.name, 'NameError')
  await sandbox.removeCodeContext(context)
  await fails(NotFoundError, sandbox.runCode('1', { context, ...soon }))
})

test('code: variables of the environment hold for one cell', async (t) => {
  const sandbox = await make(t, { envs: { BOX: 'b' } })
  const code = 'import os; os.getenv("BOX"), os.getenv("ONE")'
  assert.equal((await sandbox.runCode(code, { envs: { ONE: '1' } })).text, "('b', '1')")
  assert.equal((await sandbox.runCode(code)).text, "('b', None)")
})

test('code: a cell whose client leaves is interrupted', async (t) => {
  const sandbox = await make(t)
  await sandbox.runCode('kept = 5')
  const slow = sandbox.runCode('open("begun", "w").close()\nimport time; time.sleep(600)',
    { timeoutMs: 3_000 * patience })
  await fails(TimeoutError, slow)
  assert.ok(await sandbox.files.exists('begun'))
  await until('the context answers', async () => (await sandbox.runCode('kept')).text === '5')
})

test('code: bash and javascript have contexts of their own', async (t) => {
  const sandbox = await make(t)
  await sandbox.runCode('A=1; cd /tmp', { language: 'bash' })
  const bash = await sandbox.runCode('echo $A; pwd', { language: 'bash' })
  assert.equal(bash.logs.stdout.join(''), '1\n/tmp\n')
  await sandbox.runCode('let n = 41', { language: 'js' })
  assert.equal((await sandbox.runCode('n + 1', { language: 'javascript' })).text, '42')
})

test('code: a language that is not there is refused', async (t) => {
  const sandbox = await make(t)
  await fails(SandboxError, sandbox.runCode('1', { language: 'c++', ...soon }), /500/)
})
