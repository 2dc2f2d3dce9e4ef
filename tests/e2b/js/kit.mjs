// What the tests share: the SDK under test, sandboxes that end with their test, and waiting.
import assert from 'node:assert/strict'
import { test as nodeTest } from 'node:test'

export const sdk = await import(process.env.PADDOCK_E2B_SDK)
export const { Sandbox } = sdk
export const api = process.env.E2B_API_URL

// What the provider cannot do, {TITLE: why}, of tests/backends/cannot.toml.
const cannot = JSON.parse(process.env.PADDOCK_TEST_CANNOT ?? '{}')

// node's test(title, [options], body); left out with its reason where the provider cannot do it.
export function test(title, ...rest) {
  const body = rest.pop()
  const skip = cannot[title] ?? rest[0]?.skip ?? false
  return nodeTest(title, { ...rest[0], skip }, body)
}

// A new sandbox for the test `t`.
export async function make(t, options = {}, template = 'base') {
  const sandbox = await Sandbox.create(template, { timeoutMs: 120_000, ...options })
  t.after(() => sandbox.kill())
  return sandbox
}

// How much longer than on an idle machine something may take.
export const patience = Number(process.env.PADDOCK_TEST_PATIENCE ?? 1)

export const wait = (ms) => new Promise((done) => setTimeout(done, ms))

// Asks until the answer is true, and gives it.
export async function until(what, ask, limitMs = 15_000) {
  const end = Date.now() + limitMs * patience
  for (;;) {
    const answer = await ask()
    if (answer) return answer
    assert.ok(Date.now() < end, `in vain waited for: ${what}`)
    await wait(50)
  }
}

// A call of the control plane that the SDK has no method for.
export function call(method, path, body, headers = {}) {
  return fetch(`${api}${path}`, {
    method,
    headers: {
      'X-API-Key': process.env.E2B_API_KEY,
      ...(body === undefined ? {} : { 'Content-Type': 'application/json' }),
      ...headers,
    },
    body: body === undefined ? undefined : JSON.stringify(body),
  })
}

// A promise that was rejected with an error of this class; gives the error.
export async function fails(kind, promise, text) {
  let error
  try {
    await promise
  } catch (e) {
    error = e
  }
  assert.ok(error, 'no error came')
  assert.ok(error instanceof kind, `not a ${kind.name}: ${error?.stack}`)
  if (text) assert.match(error.message, text)
  return error
}

// Has the sandbox's user a process whose command line has this word? The pattern does not match the
// command that looks.
export async function isThere(sandbox, word) {
  const found = await sandbox.commands.run(
    `pgrep -u "$(id -u)" -f '[${word[0]}]${word.slice(1)}' || true`)
  return found.stdout.trim() !== ''
}
