// kafkajs behind the verbs of the conformance suite.

import { randomUUID } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import kafkajs from 'kafkajs'
import { Refused, Unsupported, decoded, encoded, serve } from './driver.mjs'
import { addCodecs } from './codecs.mjs'

const { CompressionTypes, ConfigResourceTypes, Kafka, PartitionAssigners, logLevel } = kafkajs
const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD
}
const KINDS = { topic: ConfigResourceTypes.TOPIC, broker: ConfigResourceTypes.BROKER }
const WAIT_MS = 30_000

const version = createRequire(import.meta.url)('kafkajs/package.json').version
const security = JSON.parse(process.argv[3] ?? '{}') // the fields of Login (tests/support/security_profiles.py)
const contentOf = (path) => (path ? readFileSync(path) : undefined)
const kafka = new Kafka({
  brokers: [process.argv[2]],
  ssl: security.ca
    ? { ca: contentOf(security.ca), cert: contentOf(security.certificate), key: contentOf(security.certificate) }
    : undefined,
  sasl: security.mechanism
    ? { mechanism: security.mechanism.toLowerCase(), username: security.user, password: security.password }
    : undefined,
  logLevel: logLevel.NOTHING,
  retry: { initialRetryTime: 50, maxRetryTime: 1000, retries: 10 }
})
const admin = kafka.admin()
const members = new Map()
const producers = new Map()
addCodecs()

// ---- records ---------------------------------------------------------------------------------------------------

function messagesOf(records) {
  return records.map((record) => {
    const headers = {}
    for (const [name, value] of record.headers) {
      if (value === null) throw new Unsupported("a header's value must be bytes")
      headers[name] = [...(headers[name] ?? []), decoded(value)]
    }
    const timestamp = record.timestamp === null ? undefined : String(record.timestamp)
    return { key: decoded(record.key), value: decoded(record.value), headers, partition: record.partition, timestamp }
  })
}

// A send is one batch a partition, and its answer the first offset of each.
async function send(sender, request) {
  const { topic, records, codec, acks } = request
  const sent = await sender.send({
    topic,
    messages: messagesOf(records),
    compression: CODECS[codec ?? 'none'],
    acks: acks === undefined || acks === 'all' ? -1 : Number(acks)
  })
  const next = new Map((sent ?? []).map((one) => [one.partition, Number(one.baseOffset ?? one.offset)]))
  return {
    offsets: records.map(({ partition }) => {
      const offset = next.get(partition) ?? -1
      next.set(partition, offset + 1)
      return offset
    })
  }
}

function tell(partition, message) {
  const headers = []
  for (const [name, values] of Object.entries(message.headers ?? {})) {
    for (const value of Array.isArray(values) ? values : [values]) headers.push([name, encoded(value)])
  }
  return {
    partition,
    offset: Number(message.offset),
    timestamp: Number(message.timestamp),
    key: encoded(message.key),
    value: encoded(message.value),
    headers
  }
}

// There are no consumers without a group: one of its own, which nobody joins again.
async function consume({ topic, count, offset, isolation }) {
  const group = `reader-${randomUUID()}`
  const consumer = kafka.consumer({ groupId: group, readUncommitted: isolation !== 'read_committed' })
  const records = []
  try {
    await consumer.connect()
    await consumer.subscribe({ topics: [topic], fromBeginning: true })
    await new Promise((resolve, reject) => {
      setTimeout(resolve, WAIT_MS).unref()
      consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
      consumer
        .run({
          autoCommit: false,
          eachMessage: async ({ partition, message }) => {
            if (offset !== undefined && Number(message.offset) < offset) return
            if (records.length < count) records.push(tell(partition, message))
            if (records.length === count) resolve()
          }
        })
        .catch(reject)
      if (offset !== undefined) consumer.seek({ topic, partition: 0, offset: String(offset) })
    })
  } finally {
    await consumer.disconnect()
    await admin.deleteGroups([group]).catch(() => undefined) // a reader that never joined has no group
  }
  return { records }
}

async function produce(request) {
  const { idempotent, auto_create: isAuto } = request
  const producer = kafka.producer({ idempotent: idempotent ?? false, allowAutoTopicCreation: isAuto ?? false })
  await producer.connect()
  try {
    return await send(producer, request)
  } finally {
    await producer.disconnect()
  }
}

// ---- groups ----------------------------------------------------------------------------------------------------

async function join(request) {
  if (request.protocol === 'consumer') throw new Unsupported('no consumer protocol (KIP-848)')
  if (request.instance !== undefined) throw new Unsupported('no static members')
  if (!['roundrobin', undefined].includes(request.assignor)) throw new Unsupported('its only assignor is round robin')
  const consumer = kafka.consumer({
    groupId: request.group,
    sessionTimeout: request.session_ms ?? 10_000,
    heartbeatInterval: 200,
    metadataMaxAge: request.refresh_ms ?? 300_000,
    readUncommitted: request.isolation !== 'read_committed',
    partitionAssigners: [PartitionAssigners.roundRobin],
    maxWaitTimeInMs: 200
  })
  const member = { consumer, assigned: [], records: [], positions: new Map() }
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    const topics = Object.entries(payload.memberAssignment)
    member.assigned = topics.flatMap(([topic, partitions]) => partitions.map((partition) => [topic, partition]))
  })
  consumer.on(consumer.events.REBALANCING, () => {
    member.assigned = []
  })
  members.set(request.member, member)
  await consumer.connect()
  await consumer.subscribe({ topics: request.topics, fromBeginning: request.reset === 'earliest' })
  await consumer.run({
    autoCommit: request.commit === 'auto',
    autoCommitInterval: 200,
    eachMessage: async ({ topic, partition, message }) => {
      member.records.push(tell(partition, message))
      member.positions.set(`${topic} ${partition}`, { topic, partition, offset: String(Number(message.offset) + 1) })
    }
  })
}

// ---- administration --------------------------------------------------------------------------------------------

async function createTopic({ topic, count, configs }) {
  const configEntries = Object.entries(configs).map(([name, value]) => ({ name, value }))
  const isNew = await admin.createTopics({
    waitForLeaders: false, // it gives up at once where a broker has not heard of the topic yet
    topics: [{ topic, numPartitions: count, replicationFactor: -1, configEntries }]
  })
  if (!isNew) throw new Refused(36, 'createTopics says false: it exists')
}

async function describeConfigs({ kind, name }) {
  const { resources } = await admin.describeConfigs({ includeSynonyms: false, resources: [{ type: KINDS[kind], name }] })
  return { configs: Object.fromEntries(resources[0].configEntries.map((entry) => [entry.configName, entry.configValue])) }
}

// AlterConfigs replaces all that was set, so what is to be deleted is left out.
async function alterConfigs({ kind, name, set }) {
  const configEntries = Object.entries(set).map(([key, value]) => ({ name: key, value }))
  await admin.alterConfigs({ validateOnly: false, resources: [{ type: KINDS[kind], name, configEntries }] })
}

async function listOffsets({ topic, partition, at, time, isolation }) {
  if (isolation === 'read_committed') throw new Unsupported('its offsets always use read_uncommitted')
  const listed = at === 'time' ? await admin.fetchTopicOffsetsByTimestamp(topic, time) : await admin.fetchTopicOffsets(topic)
  const found = listed.find((one) => one.partition === partition)
  return { offset: Number(at === 'earliest' ? found.low : found.offset) }
}

async function committed({ group, topic }) {
  const [found] = await admin.fetchOffsets({ groupId: group, topics: [topic] })
  const isThere = found.partitions.filter((one) => Number(one.offset) >= 0)
  return { offsets: Object.fromEntries(isThere.map((one) => [one.partition, Number(one.offset)])) }
}

const partitionsOf = (offsets) =>
  Object.entries(offsets).map(([partition, offset]) => ({ partition: Number(partition), offset: String(offset) }))

const verbs = {
  hello: async () => ({ version }),
  reset: async () => {
    for (const { consumer } of members.values()) await consumer.disconnect()
    for (const { producer } of producers.values()) await producer.disconnect()
    members.clear()
    producers.clear()
  },
  create_topic: createTopic,
  delete_topic: async ({ topic }) => admin.deleteTopics({ topics: [topic] }),
  list_topics: async () => ({ topics: await admin.listTopics() }),
  describe_topic: async ({ topic }) => {
    const { topics } = await admin.fetchTopicMetadata({ topics: [topic] })
    return { partitions: topics[0].partitions.length }
  },
  create_partitions: async ({ topic, count }) => {
    await admin.createPartitions({ topicPartitions: [{ topic, count }] })
  },
  describe_configs: describeConfigs,
  alter_configs: alterConfigs,
  describe_cluster: async () => {
    const { brokers, controller } = await admin.describeCluster()
    return { controller, brokers: brokers.map((broker) => broker.nodeId) }
  },
  cluster_id: async () => ({ id: (await admin.describeCluster()).clusterId }),
  delete_records: async ({ topic, partition, before }) => {
    await admin.fetchTopicOffsets(topic) // deleteTopicRecords knows no leader of a topic that was not asked for before
    await admin.deleteTopicRecords({ topic, partitions: [{ partition, offset: String(before) }] })
  },
  list_offsets: listOffsets,
  list_groups: async () => ({ groups: (await admin.listGroups()).groups.map((group) => group.groupId) }),
  describe_group: async ({ group }) => {
    const { groups } = await admin.describeGroups([group])
    return { state: groups[0].state, members: groups[0].members.length }
  },
  delete_group: async ({ group }) => {
    await admin.deleteGroups([group])
  },
  committed,
  alter_offsets: async ({ group, topic, offsets }) =>
    admin.setOffsets({ groupId: group, topic, partitions: partitionsOf(offsets) }),
  produce,
  consume,
  join,
  member: async ({ member }) => {
    const { assigned, records } = members.get(member)
    return { assigned, records }
  },
  commit: async ({ member }) => {
    const { consumer, positions } = members.get(member)
    await consumer.commitOffsets([...positions.values()])
  },
  leave: async ({ member }) => {
    await members.get(member).consumer.disconnect()
    members.delete(member)
  },
  open: async ({ producer: name, transactional_id: transactionalId, timeout_ms: transactionTimeout, codec }) => {
    const producer = kafka.producer({ transactionalId, transactionTimeout, idempotent: true, maxInFlightRequests: 1 })
    producers.set(name, { producer, codec })
    await producer.connect()
  },
  begin: async ({ producer }) => {
    const one = producers.get(producer)
    one.transaction = await one.producer.transaction()
  },
  send: async (request) => {
    const { transaction, codec } = producers.get(request.producer)
    return send(transaction, { ...request, codec })
  },
  send_offsets: async ({ producer, group, topic, offsets }) =>
    producers.get(producer).transaction.sendOffsets({
      consumerGroupId: group,
      topics: [{ topic, partitions: partitionsOf(offsets) }]
    }),
  commit_transaction: async ({ producer }) => producers.get(producer).transaction.commit(),
  abort_transaction: async ({ producer }) => producers.get(producer).transaction.abort()
}

const firstOf = (error) => error.errors?.[0] ?? error.groups?.[0]?.error ?? error.partitions?.[0]?.error

// The broker's code may lie some causes deep.
function refusalOf(error) {
  for (let at = error; at; at = at.cause ?? at.originalError ?? firstOf(at)) {
    const code = at.code ?? at.errorCode
    if (typeof code === 'number') return { code, message: at.message }
  }
  if (error.name === 'KafkaJSSASLAuthenticationError') return { code: 'authentication', message: error.message }
  if (/certificate/.test(error.message)) return { code: 'certificate', message: error.message }
  return { code: error.name, message: error.message }
}

await serve(verbs, () => admin.connect(), refusalOf)
