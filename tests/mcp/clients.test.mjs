// The official client of JavaScript, over both ways in. Every test runs twice.
import assert from 'node:assert/strict'
import { createRequire } from 'node:module'
import path from 'node:path'
import { describe, test } from 'node:test'
import { pathToFileURL } from 'node:url'

const packages = createRequire(path.join(process.env.MCP_JS, 'package.json'))
const load = (name) => import(pathToFileURL(packages.resolve(name)).href)
const { Client } = await load('@modelcontextprotocol/sdk/client/index.js')
const { StdioClientTransport } = await load('@modelcontextprotocol/sdk/client/stdio.js')
const { StreamableHTTPClientTransport } = await load(
  '@modelcontextprotocol/sdk/client/streamableHttp.js'
)

const { PADDOCK, PADDOCK_URL, PADDOCK_API_KEY } = process.env
const sleep = (ms) => new Promise((done) => setTimeout(done, ms))

function http(thread) {
  const url = new URL('/mcp' + (thread ? `?thread=${thread}` : ''), PADDOCK_URL)
  return new StreamableHTTPClientTransport(url, {
    requestInit: { headers: { Authorization: `Bearer ${PADDOCK_API_KEY}` } },
  })
}

function stdio(thread) {
  return new StdioClientTransport({
    command: PADDOCK,
    args: ['mcp', ...(thread ? ['--thread', thread] : [])],
    env: { ...process.env, PADDOCK_URL, PADDOCK_API_KEY },
    stderr: 'ignore',
  })
}

async function connect(transport) {
  const client = new Client({ name: 'test', version: '1' })
  client.onerror = (error) => client.errors.push(error)
  client.errors = []
  await client.connect(transport)
  return client
}

async function disconnect(client) {
  if (client.transport?.terminateSession) await client.transport.terminateSession()
  await client.close()
}

async function call(client, name, args = {}, options) {
  const result = await client.callTool({ name, arguments: args }, undefined, options)
  assert.equal(result.isError, false, JSON.stringify(result))
  assert.equal(result.content[0].type, 'text')
  return result.structuredContent
}

for (const [name, transport] of Object.entries({ stdio, http })) {
  describe(name, { concurrency: 4 }, () => {
    const session = (title, body) =>
      test(title, async () => {
        const client = await connect(transport())
        try {
          await body(client)
        } finally {
          await disconnect(client)
        }
      })

    session('it says who it is and what it has', async (client) => {
      assert.equal(client.getServerVersion().name, 'paddock')
      assert.deepEqual(Object.keys(client.getServerCapabilities()).sort(), ['resources', 'tools'])
      assert.match(client.getInstructions(), /workspace/)
      const { tools } = await client.listTools()
      assert.equal(tools.length, 13)
      assert.ok(tools.every((t) => t.outputSchema && t.annotations))
      assert.deepEqual((await client.listResources()).resources, [])
      await client.ping()
    })

    // listTools first: then the client checks every result against its schema.
    session('every tool', async (client) => {
      await client.listTools()
      assert.equal((await call(client, 'run_command', { command: 'exit 3' })).exit_code, 3)
      const code = { language: 'javascript', code: 'console.log(6 * 7)' }
      assert.equal((await call(client, 'run_code', code)).stdout, '42\n')
      await call(client, 'write_file', { path: 'a/b.txt', content: 'one\ntwo ü\n' })
      assert.equal((await call(client, 'read_file', { path: 'a/b.txt', first_line: 2 })).content, 'two ü\n')
      await call(client, 'edit_file', { path: 'a/b.txt', old_text: 'two', new_text: '2' })
      assert.equal((await call(client, 'list_files', { depth: 2 })).entries.length, 2)
      const found = await call(client, 'search_files', { pattern: '2 ü' })
      const workspace = (await call(client, 'run_command', { command: 'pwd' })).stdout.trim()
      assert.deepEqual([found.matches[0].path, found.matches[0].line], [`${workspace}/a/b.txt`, 2])
      const { pid } = await call(client, 'start_process', { command: 'cat' })
      let seen = (await call(client, 'check_process', { pid, input: 'hello\n' })).stdout
      for (let i = 0; i < 20 && !seen; i++)
        seen = (await call(client, 'check_process', { pid, wait_s: 1 })).stdout
      assert.equal(seen, 'hello\n')
      // The interpreter of run_code is there, too.
      const processes = (await call(client, 'session_info')).processes
      assert.ok(processes.some((p) => p.pid === pid), JSON.stringify(processes))
      assert.equal((await call(client, 'stop_process', { pid })).running, false)
      assert.match((await call(client, 'preview_port', { port: 8000 })).url, /^http/)
      assert.deepEqual(client.errors, [])
    })

    session('errors', async (client) => {
      const result = await client.callTool({ name: 'read_file', arguments: { path: 'none' } })
      assert.equal(result.isError, true)
      assert.match(result.content[0].text, /none/)
      await assert.rejects(client.callTool({ name: 'nothing', arguments: {} }), { code: -32602 })
      await assert.rejects(client.readResource({ uri: 'file:///none' }), { code: -32002 })
      await assert.rejects(client.listPrompts(), /prompts|-32601/)
    })

    session('resources', async (client) => {
      await call(client, 'run_command', { command: "echo text > 'a b'; printf '\\xff' > bin" })
      const { resources } = await client.listResources()
      assert.deepEqual(resources.map((r) => r.name).sort(), ['a b', 'bin'])
      const uri = resources.find((r) => r.name === 'a b').uri
      assert.equal((await client.readResource({ uri })).contents[0].text, 'text\n')
      const bin = await client.readResource({ uri: 'file:///workspace/bin' })
      assert.equal(bin.contents[0].blob, '/w==')
      assert.equal((await client.listResourceTemplates()).resourceTemplates.length, 1)
    })

    session('progress', async (client) => {
      const steps = []
      // It goes on until two steps were told.
      const command = 'i=0; until [ -e enough ] || [ $i = 600 ]; do i=$((i+1)); echo step $i; sleep 0.1; done'
      const onprogress = (p) => {
        steps.push(p)
        if (steps.length === 2) call(client, 'write_file', { path: 'enough', content: '' })
      }
      await call(client, 'run_command', { command }, { onprogress, timeout: 90_000 })
      assert.ok(steps.length >= 2, JSON.stringify(steps))
      assert.match(steps.at(-1).message, /^step \d+$/)
      assert.ok(steps[1].progress > steps[0].progress)
    })

    session('cancellation', async (client) => {
      const stop = new AbortController()
      const running = call(client, 'run_command', { command: 'sleep 888 & sleep 889' }, { signal: stop.signal })
      const count = { command: "ps -eo args | grep -c '^sleep 88' || true" }
      let there = ''
      for (let i = 0; i < 600 && there !== '2\n'; i++, await sleep(50))
        there = (await call(client, 'run_command', count)).stdout
      assert.equal(there, '2\n')
      stop.abort('enough')
      await assert.rejects(running, /enough/)
      let left = ''
      for (let i = 0; i < 600 && left !== '0\n'; i++, await sleep(50))
        left = (await call(client, 'run_command', count)).stdout
      assert.equal(left, '0\n')
    })

    session('many calls at once', async (client) => {
      const all = Array.from({ length: 60 }, (_, n) =>
        call(client, 'run_command', { command: `echo ${n}` })
      )
      const results = await Promise.all(all)
      results.forEach((r, n) => assert.equal(r.stdout, `${n}\n`))
    })

    test('two clients have a sandbox each, unless they name one', async () => {
      const [a, b] = [await connect(transport()), await connect(transport())]
      await call(a, 'write_file', { path: 'f', content: 'a' })
      assert.equal((await b.callTool({ name: 'read_file', arguments: { path: 'f' } })).isError, true)
      await Promise.all([disconnect(a), disconnect(b)])
      const [c, d] = [await connect(transport(`js-${name}`)), await connect(transport(`js-${name}`))]
      await call(c, 'write_file', { path: 'f', content: 'c' })
      assert.equal((await call(d, 'read_file', { path: 'f' })).content, 'c')
      await Promise.all([disconnect(c), disconnect(d)])
      const later = await connect(transport(`js-${name}`))
      assert.equal((await call(later, 'read_file', { path: 'f' })).content, 'c')
      await disconnect(later)
    })
  })
}

test('http: a session that was ended is not used again', async () => {
  const transport = http()
  const client = await connect(transport)
  const id = transport.sessionId
  assert.match(id, /^[0-9a-f]{32}$/)
  await call(client, 'session_info')
  await transport.terminateSession()
  await client.close()
  const url = new URL('/mcp', PADDOCK_URL)
  const again = new StreamableHTTPClientTransport(url, {
    sessionId: id,
    requestInit: { headers: { Authorization: `Bearer ${PADDOCK_API_KEY}` } },
  })
  const late = new Client({ name: 'test', version: '1' })
  await late.connect(again)
  await assert.rejects(late.callTool({ name: 'session_info', arguments: {} }), /404|ended/)
  await late.close()
})
