"""Apache Kafka's command-line tools print the same for a new node of Barnabas as for one of Apache Kafka.

Other tests cover the console tools (test_java_tools.py), DumpLogSegments (test_dump_log.py) and API versions
(test_admin_answers.py). The tools run in one JVM, except for one that prints at the exit of its process.
"""

from __future__ import annotations

from pathlib import Path

from barnabas import Broker
from broker.config.security_configs import STANDARD_AUTHORIZER
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.kafka_tools import KafkaTools
from tests.support.tool_comparison import ToolRunner, difference, write_json

pytestmark = needs_kafka

# The commands, in order; {dir} holds the files of FILES.
LINES = """
kafka-topics --create --topic t --partitions 3 --config retention.ms=100000 --config cleanup.policy=compact,delete
kafka-topics --create --topic t
kafka-topics --create --topic t --if-not-exists
kafka-topics --create --topic a.b
kafka-topics --create --topic a_b
kafka-topics --create --topic m --replica-assignment 1,1
kafka-topics --create --topic r --replication-factor 2
kafka-topics --create --topic bad --config nope=1
kafka-topics --create --topic x/y
kafka-topics --list
kafka-topics --list --topic .*b
kafka-topics --list --exclude-internal
kafka-topics --describe
kafka-topics --describe --topic none
kafka-topics --describe --topic none --if-exists
kafka-topics --describe --topics-with-overrides
kafka-topics --describe --under-replicated-partitions
kafka-topics --describe --unavailable-partitions
kafka-topics --describe --under-min-isr-partitions
kafka-topics --describe --at-min-isr-partitions
kafka-topics --describe --partition-size-limit-per-response 1
kafka-topics --alter --topic t --partitions 4
kafka-topics --alter --topic t --partitions 2
kafka-topics --alter --topic none --partitions 2
kafka-topics --alter --topic none --partitions 2 --if-exists
kafka-topics --alter --topic m --partitions 3 --replica-assignment 1,1,1
kafka-topics --delete --topic m
kafka-topics --delete --topic m
kafka-topics --delete --topic m --if-exists

kafka-configs --alter --entity-type topics --entity-name t --add-config \
retention.ms=5000,cleanup.policy=[compact,delete]
kafka-configs --describe --entity-type topics --entity-name t
kafka-configs --describe --entity-type topics --entity-name t --all
kafka-configs --alter --entity-type topics --entity-name t --delete-config retention.ms
kafka-configs --describe --entity-type topics
kafka-configs --alter --entity-type topics --entity-name t --delete-config nope
kafka-configs --alter --entity-type topics --entity-name t --add-config nope=1
kafka-configs --alter --entity-type topics --entity-name none --add-config retention.ms=1
kafka-configs --describe --entity-type topics --entity-name none
kafka-configs --alter --entity-type topics --entity-name t --add-config \
leader.replication.throttled.replicas=[0:1,1:1],follower.replication.throttled.replicas=*
kafka-configs --describe --entity-type topics --entity-name t
kafka-configs --alter --entity-type topics --entity-name t --add-config leader.replication.throttled.replicas=x
kafka-configs --alter --entity-type brokers --entity-name 1 --add-config \
log.cleaner.threads=2,leader.replication.throttled.rate=1000,follower.replication.throttled.rate=1000
kafka-configs --describe --entity-type brokers --entity-name 1
kafka-configs --alter --entity-type brokers --entity-default --add-config log.retention.ms=100000
kafka-configs --describe --entity-type brokers --entity-default
kafka-configs --describe --entity-type brokers
kafka-configs --alter --entity-type users --entity-name alice --add-config \
producer_byte_rate=10240,consumer_byte_rate=20480
kafka-configs --alter --entity-type users --entity-default --add-config request_percentage=400
kafka-configs --alter --entity-type users --entity-name alice --entity-type clients --entity-name c --add-config \
controller_mutation_rate=1.5
kafka-configs --alter --entity-type clients --entity-name c --add-config producer_byte_rate=1.5
kafka-configs --alter --entity-type clients --entity-name c --add-config producer_byte_rate=0
kafka-configs --alter --entity-type clients --entity-name c --add-config nope=1
kafka-configs --alter --entity-type clients --entity-default --add-config consumer_byte_rate=1048576000
kafka-configs --alter --entity-type ips --entity-name 127.0.0.9 --add-config connection_creation_rate=1000
kafka-configs --alter --entity-type ips --entity-default --add-config connection_creation_rate=2000
kafka-configs --alter --entity-type ips --entity-name 127.0.0.9 --add-config producer_byte_rate=5
kafka-configs --describe --entity-type users --entity-name alice
kafka-configs --describe --entity-type users --entity-default
kafka-configs --describe --entity-type clients --entity-name c
kafka-configs --describe --entity-type clients
kafka-configs --describe --entity-type users --entity-name alice --entity-type clients --entity-name c
kafka-configs --describe --entity-type ips
kafka-configs --alter --entity-type users --entity-name alice --delete-config consumer_byte_rate
kafka-configs --alter --entity-type users --entity-name alice --delete-config consumer_byte_rate
kafka-configs --describe --entity-type users --entity-name alice
kafka-configs --alter --entity-type clients --entity-default --delete-config consumer_byte_rate
kafka-configs --alter --entity-type ips --entity-default --delete-config connection_creation_rate
kafka-configs --alter --entity-type brokers --entity-name 1 --delete-config \
log.cleaner.threads,leader.replication.throttled.rate,follower.replication.throttled.rate
kafka-configs --alter --entity-type brokers --entity-name 1 --add-config node.id=7
kafka-configs --alter --entity-type broker-loggers --entity-name 1 --add-config root=ERROR
kafka-configs --describe --entity-type broker-loggers --entity-name 1
kafka-configs --alter --entity-type broker-loggers --entity-name 1 --add-config nope=ERROR
kafka-configs --alter --entity-type broker-loggers --entity-name 1 --delete-config root
kafka-configs --alter --entity-type broker-loggers --entity-name 1 --add-config root=INFO
kafka-configs --alter --entity-type groups --entity-name g --add-config consumer.session.timeout.ms=50000
kafka-configs --describe --entity-type groups --entity-name g
kafka-configs --describe --entity-type groups
kafka-configs --alter --entity-type groups --entity-name g --delete-config consumer.session.timeout.ms
kafka-configs --alter --entity-type groups --entity-name g --add-config consumer.session.timeout.ms=1
kafka-configs --alter --entity-type client-metrics --entity-name s --add-config \
metrics=[org.apache.kafka.producer.,x],interval.ms=1000,match=[client_id=a.*,client_software_name=b]
kafka-configs --describe --entity-type client-metrics --entity-name s
kafka-configs --describe --entity-type client-metrics
kafka-configs --alter --entity-type client-metrics --entity-name s --delete-config metrics
kafka-configs --alter --entity-type client-metrics --entity-name s --add-config match=[x=y]
kafka-configs --alter --entity-type users --entity-name u --add-config producer_byte_rate=1000,consumer_byte_rate=2000
kafka-configs --alter --entity-type users --entity-name u --entity-type clients --entity-name c --add-config \
request_percentage=50.5
kafka-configs --alter --entity-type users --entity-default --add-config controller_mutation_rate=3
kafka-configs --alter --entity-type ips --entity-name 1.2.3.4 --add-config connection_creation_rate=7
kafka-configs --describe --entity-type users
kafka-configs --describe --entity-type users --entity-type clients
kafka-configs --describe --entity-type ips
kafka-configs --describe --entity-type clients
kafka-configs --alter --entity-type users --entity-name u --delete-config producer_byte_rate
kafka-configs --alter --entity-type users --entity-name u --add-config nope=1
kafka-configs --alter --entity-type users --entity-name alice --add-config SCRAM-SHA-256=[iterations=4096,password=p]
kafka-configs --describe --entity-type users --entity-name alice
kafka-configs --alter --entity-type users --entity-name alice --delete-config SCRAM-SHA-256
kafka-configs --alter --entity-type users --entity-name bob --delete-config SCRAM-SHA-256
kafka-configs --describe --entity-type users --entity-name alice

kafka-client-metrics --alter --name m1 --metrics org.apache.kafka. --interval 2000 --match client_id=x
kafka-client-metrics --list
kafka-client-metrics --describe
kafka-client-metrics --describe --name m1
kafka-client-metrics --describe --name none
kafka-client-metrics --alter --name m1 --metrics * --interval default
kafka-client-metrics --describe --name m1
kafka-client-metrics --alter --name m1 --interval 1
kafka-client-metrics --delete --name m1
kafka-client-metrics --delete --name none
kafka-client-metrics --list

kafka-features describe
kafka-features version-mapping
kafka-features feature-dependencies --feature eligible.leader.replicas.version=1
kafka-features upgrade --feature group.version=1
kafka-features downgrade --feature group.version=0 --dry-run
kafka-features disable --feature streams.version --dry-run
kafka-features downgrade --release-version 4.0 --dry-run
kafka-features downgrade --metadata 4.0-IV0 --unsafe
kafka-features upgrade --release-version 4.3 --dry-run
kafka-features upgrade --feature nope=1
kafka-features disable --feature streams.version
kafka-features describe

kafka-cluster cluster-id
kafka-cluster list-endpoints --include-fenced-brokers
kafka-cluster unregister --id 9
kafka-metadata-quorum describe --status
kafka-metadata-quorum describe --replication
kafka-metadata-quorum describe --replication --human-readable
kafka-metadata-quorum remove-controller --controller-id 7 --controller-directory-id RERERERERERERERERERERA

kafka-producer-perf-test --topic a.b --num-records 100 --record-size 10 --throughput -1 --command-property \
bootstrap.servers={bootstrap}
kafka-consumer-perf-test --topic a.b --num-records 100 --group pg --timeout 20000
kafka-consumer-perf-test --topic a.b --num-records 100 --group pg2 --timeout 20000
kafka-verifiable-producer --topic a.b --max-messages 7 --value-prefix 1
kafka-verifiable-consumer --topic a.b --max-messages 105 --group-id vc
kafka-verifiable-consumer --topic a.b --max-messages 2 --group-id vc --verbose --enable-autocommit --group-instance-id i \
--assignment-strategy org.apache.kafka.clients.consumer.CooperativeStickyAssignor
kafka-verifiable-consumer --topic a.b --max-messages 5 --group-id vk --verbose --group-protocol consumer
transactional-message-copier --input-topic a.b --output-topic copied --consumer-group cg --transactional-id tx \
--transaction-size 40 --max-messages 107 --input-partition 0
transactional-message-copier --input-topic a.b --output-topic copied --consumer-group cm --transactional-id tx \
--transaction-size 100 --max-messages 107 --input-partition 0 --use-group-metadata --group-mode
kafka-console-consumer --topic copied --partition 0 --offset 105 --max-messages 3 --isolation-level read_committed \
--formatter-property print.offset=true --formatter-property print.epoch=true --timeout-ms 20000
kafka-transactions describe --transactional-id tx
kafka-transactions describe-producers --topic copied --partition 0
kafka-transactions forceTerminateTransaction --transactional-id tx
kafka-transactions describe --transactional-id tx
kafka-e2e-latency --topic a.b --num-records 5 --producer-acks 1 --record-size 16

kafka-leader-election --election-type preferred --all-topic-partitions
kafka-leader-election --election-type unclean --topic t --partition 0
kafka-leader-election --election-type preferred --path-to-json-file {dir}/elect.json
kafka-leader-election --election-type preferred --topic none --partition 0
kafka-reassign-partitions --generate --topics-to-move-json-file {dir}/move.json --broker-list 1
kafka-reassign-partitions --execute --reassignment-json-file {dir}/plan.json --throttle 1000 \
--replica-alter-log-dirs-throttle 5000
kafka-configs --describe --entity-type brokers --entity-name 1
kafka-reassign-partitions --list
kafka-reassign-partitions --verify --reassignment-json-file {dir}/plan.json
kafka-reassign-partitions --cancel --reassignment-json-file {dir}/plan.json
kafka-reassign-partitions --execute --reassignment-json-file {dir}/nowhere.json
kafka-configs --describe --entity-type brokers --entity-name 1
kafka-configs --describe --entity-type topics --entity-name t
kafka-log-dirs --describe --broker-list 1,9

kafka-get-offsets --topic none
kafka-get-offsets --topic t --partitions 0,1 --time 1
kafka-get-offsets --topic t --time earliest-local
kafka-get-offsets --topic t --time latest-tiered
kafka-get-offsets --topic-partitions a_b:0-2,a.b:0 --time -1
kafka-get-offsets --exclude-internal-topics --topic a.*
kafka-delete-records --offset-json-file {dir}/delete.json

kafka-consumer-groups --list
kafka-consumer-groups --describe --group pg --members
kafka-consumer-groups --describe --group pg --state
kafka-consumer-groups --describe --group none
kafka-consumer-groups --reset-offsets --group pg --topic a.b --to-earliest --dry-run
kafka-consumer-groups --reset-offsets --group pg --topic a.b --to-offset 0 --execute
kafka-consumer-groups --delete-offsets --group pg --topic a.b
kafka-consumer-groups --delete --group pg2
kafka-consumer-groups --delete --group pg2
kafka-consumer-groups --list --state
kafka-consumer-groups --list --type
kafka-consumer-groups --describe --group vk --state --verbose
kafka-consumer-groups --reset-offsets --group vc --all-topics --shift-by -5 --execute
kafka-consumer-groups --reset-offsets --group vc --topic a.b:0 --by-duration PT1H --export --dry-run
kafka-consumer-groups --reset-offsets --group vc --topic a.b --to-datetime 2020-01-01T00:00:00.000 --dry-run
kafka-consumer-groups --reset-offsets --group new --topic t --to-offset 99 --execute
kafka-consumer-groups --delete-offsets --group vc --topic none
kafka-consumer-groups --validate-regex [
kafka-groups --list
kafka-groups --list --protocol consumer
kafka-groups --list --share
kafka-groups --list --consumer
kafka-groups --list --group-type classic

kafka-transactions list
kafka-transactions describe-producers --topic a.b --partition 0
kafka-transactions describe --transactional-id none
kafka-transactions find-hanging --broker-id 1
kafka-transactions abort --topic a.b --partition 0 --start-offset 0
kafka-transactions list --transactional-id-pattern x.*
kafka-transactions list --transactional-id-pattern [
kafka-transactions list --duration-filter 1000
kafka-acls --list
kafka-acls --add --allow-principal User:a --operation Read --topic t
kafka-acls --remove --force --topic t
kafka-transactions forceTerminateTransaction --transactional-id none
"""

# With an authorizer and a super user.
ACL_LINES = """
kafka-acls --list
kafka-acls --add --allow-principal User:alice --allow-host 10.0.0.1 --operation Read --operation Describe --topic t
kafka-acls --add --allow-principal User:alice --operation Read --topic t --topic u --resource-pattern-type prefixed
kafka-acls --add --allow-principal User:alice --producer --topic p --transactional-id tx --idempotent
kafka-acls --add --allow-principal User:* --consumer --topic p --group g
kafka-acls --add --deny-principal User:bob --deny-host 10.0.0.2 --operation All --topic *
kafka-acls --add --allow-principal User:alice --operation ClusterAction --operation Alter --cluster
kafka-acls --add --allow-principal User:alice --operation DescribeTokens --user-principal User:carol
kafka-acls --add --allow-principal User:alice --operation Describe --delegation-token T
kafka-acls --add --allow-principal alice --operation Read --topic t
kafka-acls --add --allow-principal User:alice --operation Create --group g
kafka-acls --add --allow-principal User:alice --operation Read --topic t --resource-pattern-type match
kafka-acls --list
kafka-acls --list --topic t
kafka-acls --list --topic tt --resource-pattern-type match
kafka-acls --list --topic t --resource-pattern-type prefixed
kafka-acls --list --principal User:alice --topic p
kafka-acls --list --group g --resource-pattern-type any
kafka-acls --list --cluster
kafka-acls --remove --force --allow-principal User:alice --allow-host 10.0.0.1 --operation Read --topic t
kafka-acls --remove --force --topic p
kafka-acls --remove --force --topic tt --resource-pattern-type match
kafka-acls --remove --force --topic none
kafka-acls --remove --force --allow-principal User:alice --producer --topic p --transactional-id tx
kafka-acls --list
"""

FILES = {
    "move.json": {"version": 1, "topics": [{"topic": "t"}]},
    "plan.json": {"version": 1, "partitions": [
        {"topic": "t", "partition": 0, "replicas": [1]},
        {"topic": "t", "partition": 1, "replicas": [1], "log_dirs": ["any"]}]},
    "nowhere.json": {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [9]}]},
    "elect.json": {"partitions": [{"topic": "t", "partition": index} for index in (0, 1)]},
    "delete.json": {"version": 1, "partitions": [
        {"topic": "a.b", "partition": 0, "offset": -1}, {"topic": "t", "partition": 9, "offset": 1},
        {"topic": "a.b", "partition": 0, "offset": 99}]},
}  # fmt: skip


def test_every_tool_prints_what_it_prints_with_kafka(tmp_path: Path) -> None:
    """Word for word, except for MASKS."""
    folder = write_json(tmp_path, FILES)
    settings = {"group.initial.rebalance.delay.ms": "0"}
    kafka, broker = ApacheKafka(data_dir=tmp_path / "kafka"), Broker(data_dir=tmp_path / "ours", settings=settings)
    with kafka, broker, KafkaTools() as tools:
        theirs = ToolRunner(tools, kafka.bootstrap, tmp_path / "kafka", folder)
        ours = ToolRunner(tools, broker.bootstrap, tmp_path / "ours", folder)
        different = [difference(line, theirs, ours) for line in filter(None, LINES.splitlines())]
    assert not any(different), "\n".join(filter(None, different))


def test_kafka_acls_prints_what_it_prints_with_kafka(tmp_path: Path) -> None:
    """With an authorizer."""
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
    kafka = ApacheKafka(settings, data_dir=tmp_path / "kafka")
    broker = Broker(data_dir=tmp_path / "ours", settings=settings)
    with kafka, broker, KafkaTools() as tools:
        theirs = ToolRunner(tools, kafka.bootstrap, tmp_path / "kafka", tmp_path)
        ours = ToolRunner(tools, broker.bootstrap, tmp_path / "ours", tmp_path)
        different = [difference(line, theirs, ours) for line in filter(None, ACL_LINES.splitlines())]
    assert not any(different), "\n".join(filter(None, different))
