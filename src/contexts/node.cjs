// The driver of JavaScript and TypeScript contexts, for node 18 and later. Nothing but node's own modules; TypeScript
// needs node's own stripping of types (22.13 and later) or the package typescript.
//
// How this works: docs/contexts.md ("What a driver speaks") has the lines. A shell has put the requests at descriptor 4 and
// copies of 1 and 2 at 5 and 6 before node began, for node cannot move descriptors. Cells are evaluated by node's
// own repl module, which keeps const and let from cell to cell and knows top-level await. A cell is no module: its
// import statements are rewritten to dynamic imports.

'use strict'

const fs = require('fs')
const net = require('net')
const repl = require('repl')
const util = require('util')
const vm = require('vm')
const { PassThrough } = require('stream')
const { Worker } = require('worker_threads')

const EVENT_MAX = 16 << 20
const EXECUTION_MAX = 64 << 20
const TEXT_MAX = 1 << 20
const REMEMBERED = 64
const [EVENTS, REQUESTS, OUTPUT, ERRORS] = [3, 4, 5, 6]

// What the thread that hears interrupts may know: the count of the cell that runs, and of the one whose guard stands; or 0.
// HEARD is its word to a cell whose guard it did not see standing: whoever takes it away acts on it.
const [CELL, GUARDED, HEARD] = [0, 1, 2]
const state = new Int32Array(new SharedArrayBuffer(12))

const SETTLE_MS = 500 // for an interrupt that is on its way

// What code may put something else in the place of. A driver that cannot go on all the same ends, and is started anew.
const { store: storeAtomic, exchange: exchangeAtomic, notify: notifyAtomic, wait: waitAtomic } = Atomics
const { stringify, parse } = JSON
const leave = process.reallyExit.bind(process)

function giveUp (error) {
  try { fs.writeSync(ERRORS, util.inspect(error) + '\n') } catch {}
  leave(70)
}

let cell = null // that runs: { id, sent, truncated, settle }
let seq = 0
let count = 0

// ---- events ----

function writeAll (descriptor, data) {
  for (let done = 0; done < data.length;) {
    try {
      done += fs.writeSync(descriptor, data, done)
    } catch (error) {
      if (error.code === 'EPIPE' || error.code === 'EBADF') return // nobody reads it any more
      if (error.code !== 'EAGAIN') throw error
      waitAtomic(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1) // a child made the pipe non-blocking
    }
  }
}

// JSON in ASCII. A lone surrogate is no character: it is told as text.
function toText (value) {
  return stringify(value)
    .replace(/(?<!\\)((?:\\\\)*)\\u(d[89a-f][0-9a-f]{2})/g, '$1\\\\u$2')
    .replace(/[\u007f-\uffff]/g, c => '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0'))
}

function emit (type, fields) {
  send(type, toText(fields).slice(1, -1))
}

function send (type, body) {
  seq++
  const mark = cell ? Buffer.from(`\x1e${cell.id} ${seq}\x1e`) : ''
  writeAll(OUTPUT, mark)
  writeAll(ERRORS, mark)
  const id = cell ? `,"id":"${cell.id}"` : ''
  writeAll(EVENTS, Buffer.from(`{"type":"${type}","seq":${seq}${id}${body ? ',' + body : ''}}\n`, 'latin1'))
}

// What this process has in memory that is no file's; nothing where the kernel does not say so.
function memory () {
  const kilobytes = attempt(() => Number(/^RssAnon:\s*(\d+) kB$/m.exec(fs.readFileSync('/proc/self/status', 'latin1'))[1]))
  return kilobytes > 0 ? { memory: kilobytes * 1024 } : {}
}

function shorten (text) {
  if (text.length <= TEXT_MAX) return text
  cell.truncated = true
  const half = TEXT_MAX / 2
  return `${text.slice(0, half)}\n... ${text.length - 2 * half} characters left out ...\n${text.slice(-half)}`
}

// Parts that are too much are left out, the largest first.
function sendResult (data, main) {
  if (!cell) return // of a timer, after its cell
  const parts = Object.entries(data).map(([mime, value]) => `${toText(mime)}:${toText(value)}`)
  parts.sort((a, b) => a.length - b.length)
  const size = () => parts.reduce((sum, part) => sum + part.length + 1, 0)
  while (parts.length && (size() > EVENT_MAX - 4096 || size() + cell.sent > EXECUTION_MAX)) {
    parts.pop()
    cell.truncated = true
  }
  if (!parts.length) return
  cell.sent += size()
  send('result', `"main":${main},"data":{${parts.join(',')}}`)
}

// ---- values ----

const METHODS = { 'text/html': '_toHtml', 'image/svg+xml': '_toSvg', 'image/png': '_toPng', 'image/jpeg': '_toJpeg' }

function attempt (make) {
  try { return make() } catch { return undefined }
}

// A value by MIME type: what it says of itself (Deno's Jupyter.display, ijavascript's _toHtml), JSON of what is data, and text.
async function bundle (value) {
  const data = {}
  if (value !== null && typeof value === 'object') {
    const own = await attempt(() => value[Symbol.for('Jupyter.display')]?.())
    for (const [mime, item] of Object.entries(own ?? {})) data[mime] = item
    for (const [mime, name] of Object.entries(METHODS)) {
      const item = attempt(() => typeof value[name] === 'function' ? value[name]() : undefined)
      if (typeof item === 'string') data[mime] ??= item
    }
    const prototype = attempt(() => Object.getPrototypeOf(value))
    if (Array.isArray(value) || prototype === Object.prototype || prototype === null) {
      const json = attempt(() => parse(stringify(value)))
      if (json !== undefined) data['application/json'] ??= json
    }
  }
  data['text/plain'] ??= attempt(() => util.inspect(value, { maxStringLength: 2 * TEXT_MAX })) ?? '<a value that cannot be shown>'
  data['text/plain'] = shorten(String(data['text/plain']))
  return data
}

async function display (value) {
  sendResult(await bundle(value), false)
}

// ---- source ----

function findTypescript () {
  const places = ['typescript', '/usr/share/nodejs/typescript', '/usr/lib/node_modules/typescript',
    '/usr/local/lib/node_modules/typescript']
  for (const place of places) {
    const found = attempt(() => require(place))
    if (found) return found
  }
}

// A function that takes the types away; null where there is nothing to do it with.
function makeStripper () {
  const native = require('module').stripTypeScriptTypes
  if (native) return code => native(code, { mode: 'transform' })
  const typescript = findTypescript()
  if (!typescript) return null
  const five = Number(typescript.version.split('.')[0]) >= 5
  const compilerOptions = {
    target: typescript.ScriptTarget.ESNext,
    module: typescript.ModuleKind.ESNext,
    isolatedModules: true,
    // What is imported in one cell may be used in the next one only.
    ...(five ? { verbatimModuleSyntax: true } : { preserveValueImports: true, importsNotUsedAsValues: 2 })
  }
  return code => {
    const { outputText, diagnostics } = typescript.transpileModule(code, { compilerOptions, reportDiagnostics: true })
    const wrong = diagnostics.find(each => each.file && each.category === typescript.DiagnosticCategory.Error)
    if (wrong) throw new SyntaxError(typescript.flattenDiagnosticMessageText(wrong.messageText, '\n'))
    return outputText
  }
}

const IMPORT = /^([ \t]*)import\s+(?:([\w$]+)\s*,?\s*)?(?:\*\s*as\s+([\w$]+)\s*|(\{[^}]*\})\s*)?(?:from\s*)?(['"][^'"\n]+['"])(?:\s*(?:with|assert)\s*\{[^}]*\})?[ \t]*;?/gm
const EXPORT = /^[ \t]*export\s+(?:\{\s*\}\s*;?|(?=(?:const|let|var|function|class|async)\b))/gm

// Statements of modules as a script can have them; the lines stay the same.
function rewriteImports (code) {
  return code.replace(EXPORT, '').replace(IMPORT, (all, indent, name, star, named, from) => {
    const load = `await import(${from})`
    if (!name && !star && !named) return `${indent}${load};`
    const wanted = named ? named.slice(1, -1).split(',').map(s => s.trim()).filter(Boolean).map(s => s.replace(/\s+as\s+/, ': ')) : []
    if (name && !star) wanted.unshift(`default: ${name}`)
    if (!star) return `${indent}const { ${wanted.join(', ')} } = ${load};`
    return `${indent}const ${star} = ${load};${name ? ` const ${name} = ${star}.default;` : ''}`
  })
}

// ---- cells ----

class Interrupt extends Error {
  name = 'Interrupt'
}

class Exit extends Error {
  name = 'ExitStatus'
}

const exit = process.exit.bind(process)
process.exit = code => {
  if (!cell) exit(code)
  const left = new Exit(`exit status ${Number(code ?? process.exitCode ?? 0)}`)
  cell.settle(left)
  throw left
}

const shell = repl.start({
  input: new PassThrough(), output: new PassThrough(), terminal: false, useGlobal: true, prompt: ''
})

// Errors of timers and callbacks that a cell began: they end it while it waits, and are printed when it is over.
function onError (error) {
  if (cell) cell.settle(error)
  else writeAll(2, Buffer.from(util.inspect(error) + '\n'))
}

shell._domain?.removeAllListeners('error')
shell._domain?.on('error', onError)
process.on('uncaughtException', onError)
process.on('unhandledRejection', onError)

// Interrupts. node's process.on('SIGINT') does not reach a loop, and a guarded script (breakOnSigint), which does, takes
// node's handler away at its begin and at its end: an interrupt that comes just then is lost, or ends the process. But all
// guards of a process share one handler, which stays while one of them stands, and a signal is told to the guard that began
// last. So a thread waits in a guarded script for as long as the driver lives, and hears what comes while no cell's guard
// stands. It tells the main thread which cell was to be interrupted when it waits again, so that none is lost behind one.
// If that cell's guard stands by now (it began after the signal, or below the thread's), the signal is sent once more; if it
// begins just then, the cell finds the thread's word (HEARD) and ends by itself: it may be a loop that takes no messages.
const WATCH = `
  const { parentPort, workerData: state } = require('worker_threads')
  const never = new Int32Array(new SharedArrayBuffer(4))
  let heard = 0
  globalThis.wait = () => { parentPort.postMessage(heard); Atomics.wait(never, 0, 0) }
  const guard = new (require('vm').Script)('wait()')
  for (;;) {
    try { guard.runInThisContext({ breakOnSigint: true }) } catch {}
    heard = Atomics.load(state, ${CELL})
    Atomics.store(state, ${HEARD}, heard)
    if (heard && Atomics.load(state, ${GUARDED}) === heard && Atomics.compareExchange(state, ${HEARD}, heard, 0) === heard) {
      process.kill(process.pid, 'SIGINT')
      Atomics.wait(state, ${GUARDED}, heard)
    }
  }`

let isHeard = false // since the last cell began
let onHeard = null

function hearInterrupt () {
  isHeard = true
  onHeard?.()
}

// An interrupt was sent to the cell before: until it has come, so that it does not hit the next one.
async function settleInterrupt () {
  if (isHeard) return
  await new Promise(resolve => {
    onHeard = resolve
    setTimeout(resolve, SETTLE_MS)
  })
  onHeard = null
}

// Calls back when the thread waits.
function watchInterrupts (onStanding) {
  // Listeners of SIGINT, ours and the code's, are called from here: node must not put its own handler over the guards'.
  for (const event of ['newListener', 'removeListener']) {
    for (const listener of process.rawListeners(event)) {
      process.removeListener(event, listener)
      process.on(event, (name, ...more) => { if (name !== 'SIGINT') listener.call(process, name, ...more) })
    }
  }
  process.on('SIGINT', () => {
    hearInterrupt()
    cell?.settle(new Interrupt('interrupted'))
  })

  // Where node lets us, we keep the handler also for the moment in which the thread is in no guard.
  attempt(() => process.binding('contextify').startSigintWatchdog())
  const resourceLimits = { maxOldGenerationSizeMb: 8, maxYoungGenerationSizeMb: 1, stackSizeMb: 1 }
  const thread = new Worker(WATCH, { eval: true, env: {}, execArgv: [], workerData: state, resourceLimits })
  thread.once('message', () => {
    thread.on('message', heard => {
      hearInterrupt()
      if (cell && heard === count) process.emit('SIGINT', 'SIGINT', 2)
    })
    onStanding()
  })
  thread.unref()
}

// A script that calls what is at RUN, and that an interrupt may break.
const RUN = Symbol('run')
Object.defineProperty(globalThis, Symbol.for('paddock.run'), { value: () => shell[RUN]() })
const guard = new vm.Script("globalThis[Symbol.for('paddock.run')]()")

function evaluate (code) {
  return new Promise((resolve, reject) => {
    const done = (error, value) => {
      if (error !== null && error !== undefined) reject(error)
      else resolve(util.types.isPromise(value) ? value.then(found => [found]) : [value]) // anything else with then() is a value
    }
    shell[RUN] = () => {
      storeAtomic(state, GUARDED, count)
      if (exchangeAtomic(state, HEARD, 0) === count) throw new Interrupt('interrupted')
      shell.eval(code, shell.context, `cell${count}`, done)
    }
    try {
      guard.runInThisContext({ breakOnSigint: true })
    } catch (error) {
      hearInterrupt()
      cell.settle(error) // an interrupt, and the code may have given a promise before it
    } finally {
      storeAtomic(state, GUARDED, 0)
      notifyAtomic(state, GUARDED)
    }
  })
}

function describe (error) {
  if (error?.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED') error = new Interrupt('interrupted')
  if (error instanceof repl.Recoverable) error = error.err
  const stack = attempt(() => String(error?.stack ?? util.inspect(error))) ?? ''
  const own = stack.split('\n').filter(line => !/\bnode:|\[eval|at new Promise/.test(line)).join('\n')
  return {
    name: shorten(String(attempt(() => error?.name) ?? 'Error')),
    value: shorten(attempt(() => String(error?.message ?? error)) ?? ''),
    traceback: shorten(own)
  }
}

async function runCell (id, request) {
  cell = { id, sent: 0, truncated: false }
  const settled = new Promise((resolve, reject) => { cell.settle = reject }) // by an interrupt, or by an error of a callback
  settled.catch(() => {})
  isHeard = false
  storeAtomic(state, CELL, ++count)
  emit('start', { count })
  const before = {}
  for (const [name, value] of Object.entries(request.env ?? {})) {
    before[name] = process.env[name]
    process.env[name] = value
  }

  let ok = true
  try {
    if (typeof request.code !== 'string') throw new TypeError('code is no text')
    const [value] = await Promise.race([settled, evaluate(rewriteImports(strip(request.code)).trim() + '\n')])
    if (value !== undefined) sendResult(await Promise.race([settled, bundle(value)]), true)
  } catch (error) {
    ok = error instanceof Exit && error.message === 'exit status 0'
    if (!ok) emit('error', describe(error))
  }

  for (const [name, value] of Object.entries(before)) {
    if (value === undefined) delete process.env[name]
    else process.env[name] = value
  }
  storeAtomic(state, CELL, 0)
  emit('end', { ok, ...memory(), ...(cell.truncated ? { truncated: true } : {}) })
  cell = null
}

// ---- requests ----

const seen = []
let line = Promise.resolve() // of requests: one after the other

function crc32 (data) {
  let crc = ~0
  for (const byte of data) {
    crc ^= byte
    for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >>> 1 ^ 0xedb88320 : crc >>> 1
  }
  return ~crc >>> 0
}

// A request that is damaged, or that was seen before, is left out.
function take (text) {
  const words = text.split(' ')
  if (words.length !== 3 || !/^[\w-]{1,64}$/.test(words[0]) || !/^[0-9a-f]{8}$/i.test(words[1])) return
  const data = Buffer.from(words[2], 'base64')
  const request = attempt(() => parse(data))
  if (seen.includes(words[0]) || crc32(data) !== parseInt(words[1], 16) || typeof request !== 'object' || !request) return
  seen.push(words[0])
  if (seen.length > REMEMBERED) seen.shift()
  line = line.then(() => answer(words[0], request))
}

async function answer (id, request) {
  try {
    if (request.op === 'run') return await runCell(id, request)
    if (request.op === 'settle') return await settleInterrupt()
    cell = { id }
    emit('refused', { why: `no op ${util.inspect(request.op)}: there are run and settle` })
    cell = null
  } catch (error) {
    giveUp(error)
  }
}

// What is printed stands before the mark that follows.
for (const [stream, descriptor] of [[process.stdout, 1], [process.stderr, 2]]) {
  stream.write = (data, encoding, done) => {
    writeAll(descriptor, typeof data === 'string' ? Buffer.from(data, typeof encoding === 'string' ? encoding : 'utf8') : data)
    const then = typeof encoding === 'function' ? encoding : done
    if (then) process.nextTick(then)
    return true
  }
}

globalThis.display = display
const strip = language === 'typescript' ? makeStripper() : code => code
if (!strip) exit(127)

let buffer = ''
function takeRequests () {
  const requests = new net.Socket({ fd: REQUESTS, readable: true, writable: false })
  requests.setEncoding('latin1')
  requests.on('data', data => {
    try {
      const lines = (buffer + data).split('\n')
      buffer = lines.pop()
      lines.forEach(take)
    } catch (error) {
      giveUp(error)
    }
  })
  requests.on('end', () => line.then(() => exit(0)))
}

takeRequests()
watchInterrupts(() => emit('ready', { version: process.versions.node, ...memory() }))
