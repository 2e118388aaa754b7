// What a program written for E2B does, run with the SDK whose module is named as the argument.
import assert from 'node:assert/strict'

const sdk = await import(process.argv[2])
const { Volume, Sandbox, VolumeError, VolumeNotFoundError, AuthenticationError, SandboxError, ServiceBusyError } = sdk

const steps = []
const step = (name, run) => steps.push([name, run])
const fails = (promise, type, pattern) =>
  assert.rejects(promise, (e) => {
    assert.ok(e instanceof type, `${e.constructor.name} instead of ${type.name}: ${e.message}`)
    assert.match(e.message, pattern)
    return true
  })

let volume

step('A-016 create, A-018 connect and getInfo, A-017 list', async () => {
  volume = await Volume.create('my-data')
  assert.equal(volume.name, 'my-data')
  assert.equal(volume.token, '')
  const same = await Volume.connect(volume.volumeId)
  assert.equal(same.name, 'my-data')
  const info = await Volume.getInfo(volume.volumeId)
  assert.equal(info.volumeId, volume.volumeId)
  assert.deepEqual((await Volume.list()).map((v) => v.name), ['my-data'])
})

step('A-019 destroy: true, then false', async () => {
  const v = await Volume.create('short')
  assert.equal(await Volume.destroy(v.volumeId), true)
  assert.equal(await Volume.destroy(v.volumeId), false)
  assert.equal(await Volume.destroy('a/b c%'), false)
})

step('errors have the classes that E2B gives them', async () => {
  await fails(Volume.getInfo('unknown'), VolumeNotFoundError, /not found/i)
  await fails(Volume.connect('0197c2b0-0000-7000-8000-000000000000'), VolumeNotFoundError, /not found/i)
  await fails(Volume.create('my-data'), VolumeError, /409: .*already exists/)
  await fails(Volume.create('not a name'), VolumeError, /400: name/)
  await fails(Volume.list({ apiKey: 'e2b_ffff' }), AuthenticationError, /./)
  await fails(Volume.list({ apiKey: process.env.DOWN_KEY }), ServiceBusyError, /./)
  const other = { apiKey: process.env.OTHER_KEY }
  await fails(Volume.getInfo(volume.volumeId, other), VolumeNotFoundError, /not found/i)
  assert.equal(await Volume.destroy(volume.volumeId, other), false)
  assert.deepEqual(await Volume.list(other), [])
})

step('A-063 files are not served, and exists() does not say false', async () => {
  await fails(volume.readFile('/a.txt'), VolumeError, /501/)
  await assert.rejects(volume.exists('/a.txt'))
  await assert.rejects(volume.writeFile('/a.txt', 'x'))
})

step('A-003 A-022 mounts on creation, A-064 shown by getInfo and list', async () => {
  const sbx = await Sandbox.create('base', { volumeMounts: { '/mnt/data': volume } })
  const want = [{ name: 'my-data', path: '/mnt/data' }]
  const brief = (mounts) => mounts.map(({ name, path }) => ({ name, path }))
  assert.deepEqual(brief((await Sandbox.getInfo(sbx.sandboxId)).volumeMounts), want)
  const listed = await Sandbox.list({ query: { state: ['running', 'paused'] } }).nextItems()
  assert.deepEqual(brief(listed.find((s) => s.sandboxId === sbx.sandboxId).volumeMounts), want)

  // a second one is refused, and so is deleting the volume.
  await fails(Sandbox.create('base', { volumeMounts: { '/mnt/data': 'my-data' } }), SandboxError, /409: [^]*in use by sandbox/)
  await fails(Volume.destroy(volume.volumeId), VolumeError, /409: .*in use by sandbox/)

  // a paused sandbox keeps its volume, and gets it back.
  assert.equal(await Sandbox.pause(sbx.sandboxId), true)
  assert.equal(await Sandbox.pause(sbx.sandboxId), false)
  await fails(Volume.destroy(volume.volumeId), VolumeError, /409/)
  await fails(Sandbox.create('base', { volumeMounts: { '/d': volume } }), SandboxError, /409: [^]*paused/)
  await Sandbox.connect(sbx.sandboxId)
  assert.deepEqual(brief((await Sandbox.getInfo(sbx.sandboxId)).volumeMounts), want)

  // forks have volumes of their own.
  const forks = await sbx.fork({ count: 2 })
  const ids = new Set()
  for (const f of forks) {
    assert.ok(f instanceof Sandbox, String(f))
    const [m] = (await Sandbox.getInfo(f.sandboxId)).volumeMounts
    assert.equal(m.path, '/mnt/data')
    ids.add(m.name)
  }
  assert.equal(ids.size, 2)
  assert.ok(!ids.has('my-data'))

  // a sandbox from a snapshot has a new volume, unless another is mounted in its place.
  const snap = await sbx.createSnapshot()
  const snaps = await Sandbox.listSnapshots({ sandboxId: sbx.sandboxId }).nextItems()
  assert.deepEqual(snaps.map((s) => s.snapshotId), [snap.snapshotId])
  const restored = await Sandbox.create(snap.snapshotId)
  const [m] = (await Sandbox.getInfo(restored.sandboxId)).volumeMounts
  assert.equal(m.path, '/mnt/data')
  assert.notEqual(m.name, 'my-data')
  const own = await Volume.create('own')
  const replaced = await Sandbox.create(snap.snapshotId, { volumeMounts: { '/mnt/data': own } })
  assert.deepEqual(brief((await Sandbox.getInfo(replaced.sandboxId)).volumeMounts), [{ name: 'own', path: '/mnt/data' }])

  // killing gives the volume back and keeps it.
  for (const s of [sbx, restored, replaced, ...forks]) assert.equal(await Sandbox.kill(s.sandboxId), true)
  assert.equal(await Sandbox.kill(sbx.sandboxId), false)
  assert.equal((await Volume.getInfo(volume.volumeId)).name, 'my-data')
  assert.equal(await Volume.destroy(volume.volumeId), true)
})

step('bad mounts are refused, and no sandbox starts without one', async () => {
  await fails(Sandbox.create('base', { volumeMounts: { '/mnt': 'nobody', relative: 'own' } }), SandboxError,
    /400: invalid mounts:[^]*nobody[^]*relative/)
  const [held] = [await Sandbox.create('base')]
  assert.deepEqual((await Sandbox.getInfo(held.sandboxId)).volumeMounts, [])
  await Sandbox.kill(held.sandboxId)
})

step('A-128 under a prefix', async () => {
  const prefix = { apiUrl: process.env.E2B_API_URL + '/kruise/api' }
  const v = await Volume.create('prefixed', prefix)
  assert.equal((await Volume.getInfo(v.volumeId, prefix)).name, 'prefixed')
  assert.equal(await Volume.destroy(v.volumeId, prefix), true)
})

for (const [name, run] of steps) {
  await run().catch((e) => {
    console.error(`${process.argv[2]}: ${name}:`, e)
    process.exit(1)
  })
}
process.exit(0)
