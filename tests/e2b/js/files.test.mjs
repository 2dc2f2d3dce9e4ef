// Files: by envd's HTTP and RPC calls, and by links that carry a signature.
import assert from 'node:assert/strict'
import { describe } from 'node:test'

import { fails, make, sdk, test } from './kit.mjs'

const bytes = Uint8Array.from({ length: 300_000 }, (_, n) => (n * 7 + (n >> 8)) & 255)

describe('files', { concurrency: 4 }, () => {
  test('write and read text, in the home and elsewhere', async (t) => {
    const sandbox = await make(t)
    const info = await sandbox.files.write('notes/ä b.txt', 'text ä €\n')
    assert.equal(info.path, '/home/user/notes/ä b.txt')
    assert.equal(info.name, 'ä b.txt')
    assert.equal(info.type, 'file')
    assert.equal(await sandbox.files.read('notes/ä b.txt'), 'text ä €\n')
    assert.equal(await sandbox.files.read('/home/user/notes/ä b.txt'), 'text ä €\n')
    const owner = await sandbox.commands.run("stat -c '%U %a' notes notes/*")
    assert.equal(owner.stdout, 'user 755\nuser 644\n')
    await sandbox.files.write('notes/ä b.txt', 'less')
    assert.equal(await sandbox.files.read('notes/ä b.txt'), 'less')
    await sandbox.files.write('empty', '')
    assert.equal(await sandbox.files.read('empty'), '')
  })

  test('bytes, as array, blob and stream, both ways', async (t) => {
    const sandbox = await make(t)
    await sandbox.files.write('a', bytes.buffer)
    await sandbox.files.write('b', new Blob([bytes]))
    await sandbox.files.write('c', new Blob([bytes]).stream())
    for (const name of ['a', 'b', 'c']) {
      assert.deepEqual(await sandbox.files.read(name, { format: 'bytes' }), bytes)
    }
    const blob = await sandbox.files.read('a', { format: 'blob' })
    assert.deepEqual(new Uint8Array(await blob.arrayBuffer()), bytes)
    const parts = []
    for await (const part of await sandbox.files.read('a', { format: 'stream' })) parts.push(part)
    assert.deepEqual(new Uint8Array(Buffer.concat(parts)), bytes)
  })

  test('octet-stream and gzip on the way', async (t) => {
    const sandbox = await make(t)
    await sandbox.files.write('plain', bytes.buffer, { useOctetStream: true })
    await sandbox.files.write('packed', 'z'.repeat(500_000), { gzip: true })
    assert.deepEqual(await sandbox.files.read('plain', { format: 'bytes' }), bytes)
    assert.equal(await sandbox.files.read('packed', { gzip: true }), 'z'.repeat(500_000))
    assert.equal((await sandbox.commands.run('wc -c <packed')).stdout.trim(), '500000')
  })

  test('several files in one call', async (t) => {
    const sandbox = await make(t)
    const infos = await sandbox.files.write([
      { path: 'one', data: '1' }, { path: '/tmp/deep/two', data: '22' },
      { path: 'odd "name"', data: new Blob(['333']) },
    ])
    assert.deepEqual(infos.map((i) => i.path),
      ['/home/user/one', '/tmp/deep/two', '/home/user/odd "name"'])
    assert.equal(await sandbox.files.read('/tmp/deep/two'), '22')
    assert.equal(await sandbox.files.read('odd "name"'), '333')
    assert.deepEqual(await sandbox.files.write([]), [])
  })

  test('as root', async (t) => {
    const sandbox = await make(t)
    const info = await sandbox.files.write('mine', 'x', { user: 'root' })
    assert.equal(info.path, '/root/mine')
    assert.equal((await sandbox.files.getInfo('/root/mine', { user: 'root' })).owner, 'root')
    // Whoever asks reaches everything, as in a sandbox of E2B; what is new belongs to who asked.
    await sandbox.files.makeDir('/srv/made', { user: 'root' })
    await sandbox.files.write('/srv/made/new/f', 'x')
    const owners = await sandbox.commands.run("stat -c '%U' /srv/made{,/new,/new/f}")
    assert.equal(owners.stdout, 'root\nuser\nuser\n')
    assert.equal(await sandbox.files.read('/root/mine'), 'x')
  })

  test('what is not there is a FileNotFoundError', async (t) => {
    const sandbox = await make(t)
    await fails(sdk.FileNotFoundError, sandbox.files.read('nothing'), /does not exist/)
    await fails(sdk.FileNotFoundError, sandbox.files.list('nothing'))
    await fails(sdk.FileNotFoundError, sandbox.files.getInfo('nothing'))
    await fails(sdk.FileNotFoundError, sandbox.files.rename('nothing', 'something'))
    await fails(sdk.InvalidArgumentError, sandbox.files.read('/tmp'))
    await fails(sdk.InvalidArgumentError, sandbox.files.list('/etc/passwd'))
    await sandbox.files.remove('nothing')
  })

  test('list, by depth and sorted', async (t) => {
    const sandbox = await make(t)
    await sandbox.files.write([
      { path: 'd/b/2', data: '' }, { path: 'd/b/1/x', data: '' }, { path: 'd/a', data: 'a' },
    ])
    const names = async (depth) =>
      (await sandbox.files.list('d', depth && { depth })).map((e) => e.path.slice(13))
    assert.deepEqual(await names(), ['a', 'b'])
    assert.deepEqual(await names(2), ['a', 'b', 'b/1', 'b/2'])
    assert.deepEqual(await names(3), ['a', 'b', 'b/1', 'b/1/x', 'b/2'])
    const [a, b] = await sandbox.files.list('d')
    assert.deepEqual([a.type, a.size, b.type], ['file', 1, 'dir'])
    await fails(sdk.InvalidArgumentError, sandbox.files.list('d', { depth: -1 }))
  })

  test('exists, info, directories, rename and remove', async (t) => {
    const sandbox = await make(t)
    assert.equal(await sandbox.files.exists('x'), false)
    assert.equal(await sandbox.files.makeDir('x/y/z'), true)
    assert.equal(await sandbox.files.makeDir('x/y/z'), false)
    assert.equal(await sandbox.files.exists('x/y'), true)
    await sandbox.files.write('x/f', '12345')
    await sandbox.commands.run('chmod 640 x/f; ln -s f x/link')
    const info = await sandbox.files.getInfo('x/f')
    assert.deepEqual([info.name, info.path, info.type, info.size, info.mode, info.permissions,
      info.owner, info.group],
    ['f', '/home/user/x/f', 'file', 5, 0o640, '-rw-r-----', 'user', 'user'])
    assert.ok(Math.abs(info.modifiedTime - Date.now()) < 60_000)
    const link = await sandbox.files.getInfo('x/link')
    assert.deepEqual([link.type, link.symlinkTarget], ['file', '/home/user/x/f'])
    const moved = await sandbox.files.rename('x/f', 'new/place/g')
    assert.equal(moved.path, '/home/user/new/place/g')
    assert.equal(await sandbox.files.exists('x/f'), false)
    assert.equal(await sandbox.files.read('new/place/g'), '12345')
    await sandbox.files.remove('x')
    assert.equal(await sandbox.files.exists('x'), false)
  })

  test('metadata stay with a file until it is written without', async (t) => {
    const sandbox = await make(t)
    const metadata = { author: 'me', purpose: 'a test' }
    const written = await sandbox.files.write('m', 'x', { metadata })
    assert.deepEqual(written.metadata, metadata)
    assert.deepEqual((await sandbox.files.getInfo('m')).metadata, metadata)
    assert.deepEqual((await sandbox.files.rename('m', 'n')).metadata, metadata)
    await sandbox.files.write('n', 'y')
    assert.equal((await sandbox.files.getInfo('n')).metadata, undefined)
  })

  test('a signed link lets one file in or out, for its time', async (t) => {
    const sandbox = await make(t, { secure: true })
    await sandbox.files.write('secret', 'of the sandbox')
    const link = await sandbox.downloadUrl('secret', { useSignatureExpiration: 60_000 })
    assert.equal(await (await fetch(link)).text(), 'of the sandbox')
    assert.equal(await (await fetch(await sandbox.downloadUrl('secret'))).text(), 'of the sandbox')

    const form = new FormData()
    form.append('file', new Blob(['uploaded']), 'other')
    const up = await sandbox.uploadUrl('in.txt', { useSignatureExpiration: 60_000 })
    const answer = await fetch(up, { method: 'POST', body: form })
    assert.deepEqual(await answer.json(),
      [{ path: '/home/user/in.txt', name: 'in.txt', type: 'file' }])
    assert.equal(await sandbox.files.read('in.txt'), 'uploaded')

    const late = await sandbox.downloadUrl('secret', { useSignatureExpiration: -60_000 })
    const refused = async (url, options) => {
      const said = await fetch(url, options)
      assert.equal(said.status, 401, url)
      return (await said.json()).message
    }
    assert.match(await refused(late), /expired/)
    // One for reading does not write, and none is good for another path, user or time.
    assert.match(await refused(link, { method: 'POST', body: form }), /invalid signature/)
    const change = (key, value) => {
      const url = new URL(link)
      url.searchParams.set(key, value)
      return url
    }
    assert.match(await refused(change('path', '/etc/shadow')), /invalid signature/)
    assert.match(await refused(change('username', 'root')), /invalid signature/)
    assert.match(await refused(change('signature_expiration', '4102444800')), /invalid signature/)
    assert.match(await refused(change('signature', 'v1_AAAA')), /invalid signature/)
  })

  test('without the token nothing of envd answers', async (t) => {
    const sandbox = await make(t, { secure: true })
    const address = process.env.E2B_SANDBOX_URL
    const headers = { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': '49983' }
    for (const token of [undefined, 'wrong', `${sandbox.sandboxId}-${'0'.repeat(64)}`]) {
      const sent = token ? { ...headers, 'X-Access-Token': token } : headers
      const file = await fetch(`${address}/files?path=/etc/passwd`, { headers: sent })
      assert.equal(file.status, 401)
      const list = await fetch(`${address}/process.Process/List`, {
        method: 'POST', body: '{}', headers: { ...sent, 'Content-Type': 'application/json' },
      })
      assert.equal(list.status, 401)
    }
    const other = await make(t, { secure: true })
    const link = new URL(await other.downloadUrl('/etc/passwd'))
    const borrowed = await fetch(link, { headers })
    assert.equal(borrowed.status, 401)
    assert.equal((await fetch(`${address}/health`, { headers })).status, 204)
  })

  test('a file of /proc has its content', async (t) => {
    const sandbox = await make(t)
    assert.match(await sandbox.files.read('/proc/self/status'), /^Name:/)
  })
})
