"""Settings of Apache Kafka 4.3 that have no effect here, with type and default.

FORMAT   name TYPE default; TYPE>=lowest<=highest for a number with limits; no default if the setting is unset, '' for an
         empty text. Each name is in one table. Checks of other types are in _CHECKS.
RULES    1. The change that gives a setting an effect moves it to `config_definitions.py`, or to `ssl_definitions.py`.
         2. Values are checked as by Apache Kafka, which may use the data directory later.
"""

from __future__ import annotations

import re

from storage.config.config_def import (
    Check,
    Kind,
    Setting,
    at_least,
    between,
    list_of,
    not_empty_text,
    one_of,
    one_of_any_case,
)

_NO_EFFECT = "Known to Apache Kafka; has no effect in this broker."

_STATIC = """
alter.config.policy.class.name CLASS
alter.log.dirs.replication.quota.window.num INT>=1 11
alter.log.dirs.replication.quota.window.size.seconds INT>=1 1
client.quota.callback.class CLASS
controller.quorum.append.linger.ms INT>=0 25
controller.quorum.fetch.max.bytes INT>=1 1048576
controller.quorum.fetch.snapshot.max.bytes INT>=1 1048576
create.topic.policy.class.name CLASS
delete.records.purgatory.purge.interval.requests INT 1
fetch.purgatory.purge.interval.requests INT 1000
group.coordinator.append.linger.ms INT>=-1 -1
group.coordinator.background.threads INT>=1 2
group.coordinator.threads INT>=1 4
group.share.assignors LIST simple
group.share.delivery.count.limit INT>=2<=10 5
group.share.heartbeat.interval.ms INT>=1 5000
group.share.max.assignment.interval.ms INT>=0 15000
group.share.max.delivery.count.limit INT>=5<=25 10
group.share.max.heartbeat.interval.ms INT>=1 15000
group.share.max.partition.max.record.locks INT>=2000<=10000 4000
group.share.max.record.lock.duration.ms INT>=30000<=3600000 60000
group.share.max.session.timeout.ms INT>=1 60000
group.share.max.share.sessions INT>=1 2000
group.share.max.size INT>=1<=1000 200
group.share.min.assignment.interval.ms INT>=0 0
group.share.min.delivery.count.limit INT>=2<=5 2
group.share.min.heartbeat.interval.ms INT>=1 5000
group.share.min.partition.max.record.locks INT>=100<=2000 100
group.share.min.record.lock.duration.ms INT>=1000<=30000 15000
group.share.min.session.timeout.ms INT>=1 45000
group.share.partition.max.record.locks INT>=100<=10000 2000
group.share.record.lock.duration.ms INT>=1000<=3600000 30000
group.share.session.timeout.ms INT>=1 45000
group.streams.heartbeat.interval.ms INT>=1 5000
group.streams.initial.rebalance.delay.ms INT>=0 3000
group.streams.max.assignment.interval.ms INT>=0 15000
group.streams.max.heartbeat.interval.ms INT>=1 15000
group.streams.max.session.timeout.ms INT>=1 60000
group.streams.max.size INT>=1 2147483647
group.streams.max.standby.replicas INT>=0 2
group.streams.min.assignment.interval.ms INT>=0 0
group.streams.min.heartbeat.interval.ms INT>=1 5000
group.streams.min.session.timeout.ms INT>=1 45000
group.streams.num.standby.replicas INT>=0 0
group.streams.session.timeout.ms INT>=1 45000
kafka.metrics.polling.interval.secs INT>=1 10
kafka.metrics.reporters LIST ''
log.dir.failure.timeout.ms LONG>=1 30000
metrics.num.samples INT>=1 2
metrics.recording.level STRING INFO
metrics.sample.window.ms LONG>=1 30000
num.replica.alter.log.dirs.threads INT
offsets.load.buffer.size INT>=1 5242880
offsets.topic.compression.codec INT 0
principal.builder.class CLASS org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder
producer.purgatory.purge.interval.requests INT 1000
queued.max.requests INT>=1 500
remote.log.manager.copy.quota.window.num INT>=1 11
remote.log.manager.copy.quota.window.size.seconds INT>=1 1
remote.log.manager.fetch.quota.window.num INT>=1 11
remote.log.manager.fetch.quota.window.size.seconds INT>=1 1
remote.log.manager.task.interval.ms LONG>=1 30000
remote.log.manager.thread.pool.size INT>=1 2
remote.log.metadata.custom.metadata.max.bytes INT>=0 128
remote.log.metadata.manager.class.name STRING \
org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager
remote.log.metadata.manager.class.path STRING
remote.log.metadata.manager.impl.prefix STRING rlmm.config.
remote.log.metadata.manager.listener.name STRING
remote.log.reader.max.pending.tasks INT>=1 100
remote.log.storage.manager.class.name STRING
remote.log.storage.manager.class.path STRING
remote.log.storage.manager.impl.prefix STRING rsm.config.
remote.log.storage.system.enable BOOLEAN false
replica.socket.receive.buffer.bytes INT 65536
replication.quota.window.num INT>=1 11
replication.quota.window.size.seconds INT>=1 1
sasl.client.callback.handler.class CLASS
sasl.login.class CLASS
sasl.login.connect.timeout.ms INT
sasl.login.read.timeout.ms INT
sasl.login.retry.backoff.max.ms LONG 10000
sasl.login.retry.backoff.ms LONG 100
sasl.oauthbearer.assertion.algorithm STRING RS256
sasl.oauthbearer.assertion.claim.aud STRING
sasl.oauthbearer.assertion.claim.exp.seconds INT>=0<=86400 300
sasl.oauthbearer.assertion.claim.iss STRING
sasl.oauthbearer.assertion.claim.jti.include BOOLEAN false
sasl.oauthbearer.assertion.claim.nbf.seconds INT>=0<=3600 60
sasl.oauthbearer.assertion.claim.sub STRING
sasl.oauthbearer.assertion.file STRING
sasl.oauthbearer.assertion.private.key.file STRING
sasl.oauthbearer.assertion.private.key.passphrase PASSWORD
sasl.oauthbearer.assertion.template.file STRING
sasl.oauthbearer.client.credentials.client.id STRING
sasl.oauthbearer.client.credentials.client.secret PASSWORD
sasl.oauthbearer.jwt.retriever.class CLASS org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
sasl.oauthbearer.jwt.validator.class CLASS org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
sasl.oauthbearer.scope STRING
sasl.oauthbearer.scope.claim.name STRING scope
security.providers STRING
share.coordinator.append.linger.ms INT>=-1 -1
share.coordinator.load.buffer.size INT>=1 5242880
share.coordinator.snapshot.update.records.per.snapshot INT>=0<=500 500
share.coordinator.state.topic.compression.codec INT 0
share.coordinator.state.topic.min.isr SHORT>=1 2
share.coordinator.state.topic.num.partitions INT>=1 50
share.coordinator.state.topic.replication.factor SHORT>=1 3
share.coordinator.state.topic.segment.bytes INT>=1 104857600
share.coordinator.threads INT>=1 1
share.coordinator.write.timeout.ms INT>=1 5000
share.fetch.purgatory.purge.interval.requests INT 1000
socket.connection.setup.timeout.max.ms LONG 30000
socket.connection.setup.timeout.ms LONG 10000
transaction.state.log.load.buffer.size INT>=1 5242880
transaction.two.phase.commit.enable BOOLEAN false
"""
_INTERNAL = """
controller.performance.always.log.threshold.ms LONG>=0 2000
controller.performance.sample.period.ms LONG>=100 60000
group.share.initialize.retry.interval.ms INT>=1 30000
group.share.persister.class.name STRING org.apache.kafka.server.share.persister.DefaultStatePersister
internal.metadata.delete.delay.millis LONG 60000
internal.metadata.log.segment.bytes INT
internal.metadata.max.batch.size.in.bytes INT 8388608
remote.log.index.file.cache.ttl.ms LONG>=-1 900000
remote.log.manager.task.retry.backoff.max.ms LONG>=1 30000
remote.log.manager.task.retry.backoff.ms LONG>=1 500
remote.log.manager.task.retry.jitter DOUBLE>=0<=0.5 0.2
server.max.startup.time.ms LONG>=0 9223372036854775807
share.coordinator.cold.partition.snapshot.interval.ms INT>=1 300000
share.coordinator.state.topic.prune.interval.ms INT>=1 300000
unstable.api.versions.enable BOOLEAN false
unstable.feature.versions.enable BOOLEAN false
"""
_DYNAMIC = """
background.threads INT>=1 10
config.providers LIST ''
follower.fetch.last.tiered.offset.enable BOOLEAN false
group.coordinator.cached.buffer.max.bytes INT>=524288 1048588
group.share.assignment.interval.ms INT>=0 1000
group.streams.assignment.interval.ms INT>=0 1000
metric.reporters LIST org.apache.kafka.common.metrics.JmxReporter
num.io.threads INT>=1 8
num.network.threads INT>=1 3
num.recovery.threads.per.data.dir INT>=1 2
remote.fetch.max.wait.ms INT>=1 500
remote.list.offsets.request.timeout.ms LONG>=1 30000
remote.log.index.file.cache.total.size.bytes LONG>=1 1073741824
remote.log.manager.copier.thread.pool.size INT>=1 10
remote.log.manager.copy.max.bytes.per.second LONG>=1 9223372036854775807
remote.log.manager.expiration.thread.pool.size INT>=1 10
remote.log.manager.fetch.max.bytes.per.second LONG>=1 9223372036854775807
remote.log.manager.follower.thread.pool.size INT>=1 2
remote.log.reader.threads INT>=1 10
share.coordinator.cached.buffer.max.bytes INT>=524288 1048588
"""
_DYNAMIC_PER_BROKER = """
sasl.jaas.config PASSWORD
sasl.kerberos.kinit.cmd STRING /usr/bin/kinit
sasl.kerberos.min.time.before.relogin LONG 60000
sasl.kerberos.service.name STRING
sasl.kerberos.ticket.renew.jitter DOUBLE 0.05
sasl.kerberos.ticket.renew.window.factor DOUBLE 0.8
sasl.login.refresh.buffer.seconds SHORT 300
sasl.login.refresh.min.period.seconds SHORT 60
sasl.login.refresh.window.factor DOUBLE 0.8
sasl.login.refresh.window.jitter DOUBLE 0.05
ssl.endpoint.identification.algorithm STRING https
ssl.engine.factory.class CLASS
ssl.keymanager.algorithm STRING SunX509
ssl.protocol STRING TLSv1.3
ssl.provider STRING
ssl.secure.random.implementation STRING
ssl.trustmanager.algorithm STRING PKIX
"""


_TYPE = re.compile(r"([A-Z]+)(?:>=(-?\d+))?(?:<=([\d.]+))?")
_CHECKS = {
    "group.share.assignors": list_of(may_be_empty=False),
    "remote.log.metadata.manager.class.name": not_empty_text,
    "remote.log.metadata.manager.impl.prefix": not_empty_text,
    "remote.log.metadata.manager.listener.name": not_empty_text,
    "remote.log.storage.manager.class.name": not_empty_text,
    "remote.log.storage.manager.impl.prefix": not_empty_text,
    "sasl.oauthbearer.assertion.algorithm": one_of_any_case("ES256", "RS256"),
    "ssl.client.auth": one_of("required", "requested", "none"),
}


def settings_of(rows: str, documentation: str = _NO_EFFECT) -> dict[str, Setting]:
    """The settings of a table, by name."""
    settings = {}
    for row in rows.strip().splitlines():
        name, type_, *default = row.split(" ", 2)
        match = _TYPE.fullmatch(type_)
        assert match is not None, row
        text = default[0].replace("''", "") if default else None
        check = _CHECKS.get(name) or _limits(match[2], match[3])
        settings[name] = Setting(name, Kind[match[1]], text, check, documentation)
    return settings


def _limits(lowest: str | None, highest: str | None) -> Check | None:
    if lowest is None:
        return None
    if highest is None:
        return at_least(int(lowest))
    return between(int(lowest), float(highest) if "." in highest else int(highest))


INTERNAL = settings_of(_INTERNAL)
"""Not described to clients."""
DYNAMIC = settings_of(_DYNAMIC)
"""Dynamic, for one broker and for all brokers."""
DYNAMIC_PER_BROKER = settings_of(_DYNAMIC_PER_BROKER)
"""Dynamic, for one broker only."""
IGNORED = settings_of(_STATIC) | INTERNAL | DYNAMIC | DYNAMIC_PER_BROKER
"""All of them, by name."""
