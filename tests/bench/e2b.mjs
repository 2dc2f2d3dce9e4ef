// e2b.mjs [--quick]: how long E2B's own JavaScript SDK waits for a server of ours on loopback, beside
// the same command as a plain subprocess of the same program, taken in turns. Run by tests/bench/run,
// which installs the SDK (tests/e2b/install).
//
//   E2B_API_URL, E2B_SANDBOX_URL, E2B_API_KEY   the server
//   BENCH_OUT                                   where the numbers go, as JSON; optional
import { execFile } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { promisify } from 'node:util'

const { Sandbox } = createRequire(process.env.BENCH_SDK + '/')('e2b')
const quick = process.argv.includes('--quick')
const rounds = quick ? 20 : 200
const bursts = quick ? 1 : 5
const together = 100

const spawn = promisify(execFile)
const now = () => performance.now()

function percentile(times, p) {
  const sorted = [...times].sort((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor((sorted.length * p) / 100))]
}

async function cycle() {
  const start = now()
  const sandbox = await Sandbox.create()
  const created = now()
  const result = await sandbox.commands.run('true')
  const ran = now()
  await sandbox.kill()
  if (result.exitCode !== 0) throw new Error(`exit code ${result.exitCode}`)
  return { create: created - start, run: ran - created, kill: now() - ran, all: now() - start }
}

async function subprocess() {
  const start = now()
  await spawn('/bin/bash', ['-l', '-c', 'true'])
  return now() - start
}

async function burst() {
  const start = now()
  const sandboxes = await Promise.all(
    Array.from({ length: together }, async () => {
      const sandbox = await Sandbox.create()
      await sandbox.commands.run('true')
      return sandbox
    }),
  )
  const took = now() - start
  await Promise.all(sandboxes.map((s) => s.kill()))
  return took
}

const times = { create: [], run: [], kill: [], all: [], subprocess: [] }
for (let i = 0; i < 5; i++) await cycle()
for (let i = 0; i < rounds; i++) {
  const t = await cycle()
  for (const name of Object.keys(t)) times[name].push(t[name])
  times.subprocess.push(await subprocess())
}
const all = []
for (let i = 0; i < bursts; i++) all.push(await burst())

const row = (name, list) =>
  `| ${name} | ${[50, 95, 99].map((p) => percentile(list, p).toFixed(1)).join(' | ')} |`
console.log(`\nE2B's JavaScript SDK, ${rounds} rounds, ms\n`)
console.log('| | p50 | p95 | p99 |\n|---|---|---|---|')
console.log(row('Sandbox.create()', times.create))
console.log(row("first commands.run('true')", times.run))
console.log(row('kill()', times.kill))
console.log(row('all three', times.all))
console.log(row('bash -l -c true as a subprocess', times.subprocess))
console.log(
  `\nall three / subprocess: ${(percentile(times.all, 50) / percentile(times.subprocess, 50)).toFixed(2)}`,
)
console.log(
  `${together} sandboxes at once, each with a first command: best ${Math.min(...all).toFixed(0)} ms, ` +
    `worst ${Math.max(...all).toFixed(0)} ms of ${bursts}`,
)
if (process.env.BENCH_OUT)
  writeFileSync(process.env.BENCH_OUT, JSON.stringify({ times, burst: all }) + '\n')
