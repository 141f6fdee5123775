"""The table of broker settings that this daemon obeys, with Kafka's names, defaults and checks.

RULES    1. What stands here has an effect; names that Apache Kafka 4.3 knows and that have none here stand in
            `unused_settings.py`, so that a `server.properties` made for Kafka starts this broker unchanged.
NOT HERE Reading files and deciding which value wins (`config.py`), topic settings (`storage/log_config.py`).
"""

from __future__ import annotations

from storage.open_files import LEAST
from storage.settings import MAX_INT, Kind, Setting, at_least, between, between_or, one_of

_DEFAULT_OF_TOPICS = "Default for topics that do not say."

BROKER_SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting("add.partitions.to.txn.retry.backoff.max.ms", Kind.INT, "100", at_least(0),
                "How long records wait for the end of their producer's last transaction."),
        Setting("add.partitions.to.txn.retry.backoff.ms", Kind.INT, "20", at_least(1),
                "How often is looked whether it has ended."),
        Setting("advertised.listeners", Kind.LIST, None, None,
                "Addresses that clients are told; unset: the listeners', or where a client came in."),
        Setting("auto.create.topics.enable", Kind.BOOLEAN, "true", None,
                "Whether a Metadata request for an unknown topic creates it."),
        Setting("barnabas.log.max.open.files", Kind.INT, "-1", between_or(LEAST, MAX_INT, -1),
                "Most files of logs, mappings included, that are open at the same time; those used least recently are "
                "closed. -1: half of what the system allows (ulimit -n). Apache Kafka has no such setting."),
        Setting("broker.heartbeat.interval.ms", Kind.INT, "2000", None,
                "How often a broker tells the controller that it lives."),
        Setting("broker.id", Kind.INT, "-1", None, "Old name of node.id."),
        Setting("broker.rack", Kind.STRING, None, None,
                "Rack of this broker, for placement and for reads from the nearest replica."),
        Setting("broker.session.timeout.ms", Kind.INT, "9000", None,
                "Silence after which the controller fences a broker."),
        Setting("compression.gzip.level", Kind.INT, "-1", between_or(1, 9, -1), _DEFAULT_OF_TOPICS),
        Setting("compression.lz4.level", Kind.INT, "9", between(1, 17), _DEFAULT_OF_TOPICS),
        Setting("compression.type", Kind.STRING, "producer",
                one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), _DEFAULT_OF_TOPICS),
        Setting("compression.zstd.level", Kind.INT, "3", between(-131072, 22), _DEFAULT_OF_TOPICS),
        Setting("connections.max.idle.ms", Kind.LONG, "600000", None, "Idle connections are closed after this time."),
        Setting("controller.listener.names", Kind.LIST, None, None, "Listeners of the controller, by name."),
        Setting("controller.quorum.bootstrap.servers", Kind.LIST, "", None,
                "Where controllers can be asked, for a quorum that can change."),
        Setting("controller.quorum.voters", Kind.LIST, "", None,
                "Controllers of a quorum that cannot change, as id@host:port."),
        Setting("cordoned.log.dirs", Kind.LIST, "", None,
                "Log directories that take no new replicas, of log.dirs; * is all of them."),
        Setting("default.replication.factor", Kind.INT, "1", None, "Replicas of a topic that does not say."),
        Setting("delete.topic.enable", Kind.BOOLEAN, "true", None, "Whether topics can be deleted."),
        Setting("fetch.max.bytes", Kind.INT, "57671680", at_least(1024),
                "Most bytes that one fetch response carries."),
        Setting("group.consumer.assignment.interval.ms", Kind.INT, "1000", at_least(0),
                "Shortest time between two assignments of a consumer group."),
        Setting("group.consumer.assignors", Kind.LIST, "uniform,range", one_of("uniform", "range"),
                "Assignors of consumer groups; the first is for members who do not care."),
        Setting("group.consumer.heartbeat.interval.ms", Kind.INT, "5000", at_least(1),
                "How often a member of a consumer group shall be heard of."),
        Setting("group.consumer.max.assignment.interval.ms", Kind.INT, "15000", at_least(0),
                "Longest assignment interval that a group may be given."),
        Setting("group.consumer.max.heartbeat.interval.ms", Kind.INT, "15000", at_least(1),
                "Longest heartbeat interval that a group may be given."),
        Setting("group.consumer.max.session.timeout.ms", Kind.INT, "60000", at_least(1),
                "Longest session timeout that a group may be given."),
        Setting("group.consumer.max.size", Kind.INT, "2147483647", at_least(1), "Most members of one consumer group."),
        Setting("group.consumer.min.assignment.interval.ms", Kind.INT, "0", at_least(0),
                "Shortest assignment interval that a group may be given."),
        Setting("group.consumer.min.heartbeat.interval.ms", Kind.INT, "5000", at_least(1),
                "Shortest heartbeat interval that a group may be given."),
        Setting("group.consumer.min.session.timeout.ms", Kind.INT, "45000", at_least(1),
                "Shortest session timeout that a group may be given."),
        Setting("group.consumer.regex.refresh.interval.ms", Kind.INT, "600000", at_least(10_000),
                "How often the regular expressions of a consumer group are resolved anew."),
        Setting("group.consumer.session.timeout.ms", Kind.INT, "45000", at_least(1),
                "How long a member of a consumer group may be silent."),
        Setting("group.initial.rebalance.delay.ms", Kind.INT, "3000", None,
                "How long the first rebalance of an empty group waits for more members."),
        Setting("group.max.session.timeout.ms", Kind.INT, "1800000", None,
                "Longest session timeout that a group member may ask for."),
        Setting("group.max.size", Kind.INT, "2147483647", at_least(1), "Most members of one group."),
        Setting("group.min.session.timeout.ms", Kind.INT, "6000", None,
                "Shortest session timeout that a group member may ask for."),
        Setting("inter.broker.listener.name", Kind.STRING, None, None, "Listener that brokers use among themselves."),
        Setting("listener.security.protocol.map", Kind.STRING,
                "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT", None,
                "Security protocol of each listener name."),
        Setting("listeners", Kind.LIST, "PLAINTEXT://:9092", None, "Addresses to listen on, as NAME://host:port."),
        Setting("log.cleaner.backoff.ms", Kind.LONG, "15000", at_least(0),
                "How often is looked for something to compact."),
        Setting("log.cleaner.dedupe.buffer.size", Kind.LONG, "134217728", None,
                "Memory for the keys of a compaction, all threads together."),
        Setting("log.cleaner.delete.retention.ms", Kind.LONG, "86400000", at_least(0), _DEFAULT_OF_TOPICS),
        Setting("log.cleaner.enable", Kind.BOOLEAN, "true", None, "Whether topics are compacted at all."),
        Setting("log.cleaner.io.buffer.load.factor", Kind.DOUBLE, "0.9", None,
                "Share of the memory for keys that may be filled."),
        Setting("log.cleaner.io.buffer.size", Kind.INT, "524288", at_least(0),
                "Memory for reading and writing in a compaction, all threads together."),
        Setting("log.cleaner.io.max.bytes.per.second", Kind.DOUBLE, "1.7976931348623157E308", None,
                "Most bytes that compaction reads and writes in a second, all threads together."),
        Setting("log.cleaner.max.compaction.lag.ms", Kind.LONG, "9223372036854775807", at_least(1),
                _DEFAULT_OF_TOPICS),
        Setting("log.cleaner.min.cleanable.ratio", Kind.DOUBLE, "0.5", between(0, 1), _DEFAULT_OF_TOPICS),
        Setting("log.cleaner.min.compaction.lag.ms", Kind.LONG, "0", at_least(0), _DEFAULT_OF_TOPICS),
        Setting("log.cleaner.threads", Kind.INT, "1", at_least(0),
                "Compactions that run at a time, each in a process of its own."),
        Setting("log.cleanup.policy", Kind.LIST, "delete", one_of("compact", "delete"), _DEFAULT_OF_TOPICS),
        Setting("log.dir", Kind.LIST, "/tmp/kafka-logs", None, "Directory of the logs, where log.dirs is not set."),  # noqa: S108
        Setting("log.dirs", Kind.LIST, None, None, "Directories of the logs."),
        Setting("log.flush.interval.messages", Kind.LONG, "9223372036854775807", at_least(1), _DEFAULT_OF_TOPICS),
        Setting("log.flush.interval.ms", Kind.LONG, None, None, _DEFAULT_OF_TOPICS),
        Setting("log.flush.offset.checkpoint.interval.ms", Kind.INT, "60000", at_least(0),
                "How often recovery points are written down."),
        Setting("log.flush.scheduler.interval.ms", Kind.LONG, "9223372036854775807", None,
                "How often logs are looked over for flush.ms."),
        Setting("log.flush.start.offset.checkpoint.interval.ms", Kind.INT, "60000", at_least(0),
                "How often log start offsets are written down."),
        Setting("log.index.interval.bytes", Kind.INT, "4096", at_least(0), _DEFAULT_OF_TOPICS),
        Setting("log.index.size.max.bytes", Kind.INT, "10485760", at_least(4), _DEFAULT_OF_TOPICS),
        Setting("log.local.retention.bytes", Kind.LONG, "-2", at_least(-2), _DEFAULT_OF_TOPICS),
        Setting("log.local.retention.ms", Kind.LONG, "-2", at_least(-2), _DEFAULT_OF_TOPICS),
        Setting("log.message.timestamp.after.max.ms", Kind.LONG, "3600000", at_least(0), _DEFAULT_OF_TOPICS),
        Setting("log.message.timestamp.before.max.ms", Kind.LONG, "9223372036854775807", at_least(0),
                _DEFAULT_OF_TOPICS),
        Setting("log.message.timestamp.type", Kind.STRING, "CreateTime", one_of("CreateTime", "LogAppendTime"),
                _DEFAULT_OF_TOPICS),
        Setting("log.preallocate", Kind.BOOLEAN, "false", None, _DEFAULT_OF_TOPICS),
        Setting("log.retention.bytes", Kind.LONG, "-1", None, _DEFAULT_OF_TOPICS),
        Setting("log.retention.check.interval.ms", Kind.LONG, "300000", at_least(1),
                "How often segments are looked over for retention."),
        Setting("log.retention.hours", Kind.INT, "168", None, _DEFAULT_OF_TOPICS),
        Setting("log.retention.minutes", Kind.INT, None, None, _DEFAULT_OF_TOPICS),
        Setting("log.retention.ms", Kind.LONG, None, None, _DEFAULT_OF_TOPICS),
        Setting("log.roll.hours", Kind.INT, "168", at_least(1), _DEFAULT_OF_TOPICS),
        Setting("log.roll.jitter.hours", Kind.INT, "0", at_least(0), _DEFAULT_OF_TOPICS),
        Setting("log.roll.jitter.ms", Kind.LONG, None, None, _DEFAULT_OF_TOPICS),
        Setting("log.roll.ms", Kind.LONG, None, None, _DEFAULT_OF_TOPICS),
        Setting("log.segment.bytes", Kind.INT, "1073741824", at_least(1048576), _DEFAULT_OF_TOPICS),
        Setting("log.segment.delete.delay.ms", Kind.LONG, "60000", at_least(0), _DEFAULT_OF_TOPICS),
        Setting("max.connections", Kind.INT, "2147483647", at_least(0), "Most connections of this broker."),
        Setting("max.connections.per.ip", Kind.INT, "2147483647", at_least(0), "Most connections from one address."),
        Setting("max.incremental.fetch.session.cache.slots", Kind.INT, "1000", at_least(0),
                "Most incremental fetch sessions kept."),
        Setting("max.request.partition.size.limit", Kind.INT, "2000", at_least(1),
                "Most partitions that one DescribeTopicPartitions response carries."),
        Setting("message.max.bytes", Kind.INT, "1048588", at_least(0), _DEFAULT_OF_TOPICS),
        Setting("metadata.log.dir", Kind.STRING, None, None,
                "Directory of the metadata log; unset: the first of log.dirs."),
        Setting("metadata.log.max.record.bytes.between.snapshots", Kind.LONG, "20971520", at_least(1),
                "After so many bytes of new metadata a snapshot of them all is taken."),
        Setting("metadata.log.max.snapshot.interval.ms", Kind.LONG, "3600000", at_least(0),
                "After this time a snapshot is taken if anything was written; 0: only for its size."),
        Setting("metadata.log.segment.bytes", Kind.INT, "1073741824", at_least(8388608),
                "Largest file of the metadata log."),
        Setting("metadata.log.segment.ms", Kind.LONG, "604800000", at_least(1),
                "Longest time that one file of the metadata log is written to."),
        Setting("metadata.max.retention.bytes", Kind.LONG, "104857600", None,
                "Above this size of the metadata log and its snapshots the oldest go, never the newest snapshot."),
        Setting("metadata.max.retention.ms", Kind.LONG, "604800000", None,
                "After this time a snapshot and the log before the next one go, never the newest snapshot."),
        Setting("min.insync.replicas", Kind.INT, "1", at_least(1), _DEFAULT_OF_TOPICS),
        Setting("node.id", Kind.INT, None, at_least(0), "Number of this node, unique in the cluster."),
        Setting("num.partitions", Kind.INT, "1", at_least(1), "Partitions of a topic that does not say."),
        Setting("offset.metadata.max.bytes", Kind.INT, "4096", None,
                "Longest text that a member may keep beside a committed offset."),
        Setting("offsets.commit.timeout.ms", Kind.INT, "5000", at_least(1),
                "How long an offset commit waits for the replicas."),
        Setting("offsets.retention.check.interval.ms", Kind.LONG, "600000", at_least(1),
                "How often committed offsets are looked over for expiry."),
        Setting("offsets.retention.minutes", Kind.INT, "10080", at_least(1),
                "How long an empty group keeps its committed offsets."),
        Setting("offsets.topic.num.partitions", Kind.INT, "50", at_least(1), "Partitions of __consumer_offsets."),
        Setting("offsets.topic.replication.factor", Kind.SHORT, "3", at_least(1), "Replicas of __consumer_offsets."),
        Setting("offsets.topic.segment.bytes", Kind.INT, "104857600", at_least(1),
                "Segment size of __consumer_offsets."),
        Setting("process.roles", Kind.LIST, None, one_of("broker", "controller"),
                "Roles of this node: broker, controller, or both."),
        Setting("producer.id.expiration.check.interval.ms", Kind.INT, "600000", at_least(1),
                "How often idle producers are looked for."),
        Setting("producer.id.expiration.ms", Kind.INT, "86400000", at_least(1),
                "How long an idle producer's sequence numbers are remembered."),
        Setting("queued.max.request.bytes", Kind.LONG, "-1", None, "Most bytes of requests waiting; -1 is no limit."),
        Setting("replica.high.watermark.checkpoint.interval.ms", Kind.LONG, "5000", None,
                "How often high watermarks are written down."),
        Setting("replica.lag.time.max.ms", Kind.LONG, "30000", None,
                "Time after which a follower that has not caught up leaves the ISR."),
        Setting("socket.listen.backlog.size", Kind.INT, "50", at_least(1),
                "Connections that the kernel keeps waiting to be accepted."),
        Setting("socket.receive.buffer.bytes", Kind.INT, "102400", None,
                "SO_RCVBUF of the sockets; -1 leaves it to the system."),
        Setting("socket.request.max.bytes", Kind.INT, "104857600", at_least(1), "Largest request taken."),
        Setting("socket.send.buffer.bytes", Kind.INT, "102400", None,
                "SO_SNDBUF of the sockets; -1 leaves it to the system."),
        Setting("transaction.abort.timed.out.transaction.cleanup.interval.ms", Kind.INT, "10000", at_least(1),
                "How often transactions are looked for that have been open for too long."),
        Setting("transaction.max.timeout.ms", Kind.INT, "900000", at_least(1),
                "Longest time that a producer may keep a transaction open."),
        Setting("transaction.partition.verification.enable", Kind.BOOLEAN, "true", None,
                "Whether a partition asks if what older producers send is part of a transaction."),
        Setting("transaction.remove.expired.transaction.cleanup.interval.ms", Kind.INT, "3600000", at_least(1),
                "How often idle transactional ids are looked for."),
        Setting("transaction.state.log.min.isr", Kind.INT, "2", at_least(1),
                "Replicas of __transaction_state that must be in sync for writing."),
        Setting("transaction.state.log.num.partitions", Kind.INT, "50", at_least(1),
                "Partitions of __transaction_state."),
        Setting("transaction.state.log.replication.factor", Kind.SHORT, "3", at_least(1),
                "Replicas of __transaction_state."),
        Setting("transaction.state.log.segment.bytes", Kind.INT, "104857600", at_least(1),
                "Segment size of __transaction_state."),
        Setting("transactional.id.expiration.ms", Kind.INT, "604800000", at_least(1),
                "How long an idle transactional id is remembered."),
        Setting("unclean.leader.election.enable", Kind.BOOLEAN, "false", None, _DEFAULT_OF_TOPICS),
    )
}  # fmt: skip

_INTERNAL = """
controller.performance.always.log.threshold.ms
controller.performance.sample.period.ms
group.consumer.regex.refresh.interval.ms
group.share.initialize.retry.interval.ms
group.share.persister.class.name
internal.metadata.delete.delay.millis
internal.metadata.log.segment.bytes
internal.metadata.max.batch.size.in.bytes
log.initial.task.delay.ms
producer.id.expiration.check.interval.ms
remote.log.index.file.cache.ttl.ms
remote.log.manager.task.retry.backoff.max.ms
remote.log.manager.task.retry.backoff.ms
remote.log.manager.task.retry.jitter
server.max.startup.time.ms
share.coordinator.cold.partition.snapshot.interval.ms
share.coordinator.state.topic.prune.interval.ms
unclean.leader.election.interval.ms
unstable.api.versions.enable
unstable.feature.versions.enable
"""

INTERNAL_SETTINGS = frozenset(_INTERNAL.split())
"""Settings that Apache Kafka has and shows to nobody."""
