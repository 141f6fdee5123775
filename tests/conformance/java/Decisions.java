// What Apache Kafka's controller decides: its own classes, without a quorum, sockets or time. Each line of standard input is
//     OFFSET KEY VERSION REQUEST     a request, in base64, where the next record will stand at that offset
//     OFFSET silent BROKER           a session that ended
//     OFFSET balance                 or unclean: what the controller does by itself
// and each answer "ok", the response and the records; or "no", a code and a sentence. Responses, records and sentences are in
// base64. Draws of lots always fall on the first. It is in the package of the classes since they are seen only there.

package org.apache.kafka.controller;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.AbstractMap.SimpleImmutableEntry;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Random;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.message.*;
import org.apache.kafka.common.metadata.*;
import org.apache.kafka.common.protocol.*;
import org.apache.kafka.common.requests.ApiError;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.metadata.BrokerHeartbeatReply;
import org.apache.kafka.metadata.BrokerRegistrationReply;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.metadata.placement.StripedReplicaPlacer;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.timeline.SnapshotRegistry;

public class Decisions {
    private final SnapshotRegistry registry = new SnapshotRegistry(new LogContext());
    private final FeatureControlManager features = new FeatureControlManager.Builder()
        .setSnapshotRegistry(registry)
        .setQuorumFeatures(new QuorumFeatures(1, QuorumFeatures.defaultSupportedFeatureMap(false), List.of(1)))
        .build();
    private final ConfigurationControlManager configs;
    private final ClusterControlManager cluster;
    private final ReplicationControlManager replication;

    private Decisions(String clusterId, int minIsr, Map<String, Short> levels) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("min.insync.replicas", String.valueOf(minIsr));
        levels.forEach((name, level) ->
            features.replay(new FeatureLevelRecord().setName(name).setFeatureLevel(level)));
        configs = new ConfigurationControlManager.Builder()
            .setSnapshotRegistry(registry)
            .setKafkaConfigSchema(kafka.server.KafkaRaftServer.configSchema())
            .setStaticConfig(settings)
            .setNodeId(1)
            .setFeatureControl(features)
            .build();
        cluster = new ClusterControlManager.Builder()
            .setSnapshotRegistry(registry)
            .setClusterId(clusterId)
            .setFeatureControlManager(features)
            .setReplicaPlacer(new StripedReplicaPlacer(new Random() {
                @Override
                public int nextInt(int bound) {
                    return 0;
                }
            }))
            .setBrokerShutdownHandler(this::shutDown)
            .build();
        replication = new ReplicationControlManager.Builder()
            .setSnapshotRegistry(registry)
            .setConfigurationControl(configs)
            .setClusterControl(cluster)
            .setFeatureControl(features)
            .build();
        cluster.activate();
    }

    private void shutDown(int broker, boolean isClean, List<ApiMessageAndVersion> records) {
        replication.handleBrokerShutdown(broker, isClean, records);
    }

    /** Arguments: cluster id, min.insync.replicas, and feature=level. */
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Decisions decisions = null;
        for (String line; (line = in.readLine()) != null; System.out.flush()) {
            String[] words = line.split(" ");
            if (words[0].equals("begin")) {
                Map<String, Short> levels = new HashMap<>();
                for (int i = 3; i < words.length; i++) {
                    levels.put(words[i].split("=")[0], Short.valueOf(words[i].split("=")[1]));
                }
                decisions = new Decisions(words[1], Integer.parseInt(words[2]), levels);
                System.out.println("ok");
                continue;
            }
            try {
                System.out.println("ok " + decisions.decide(Long.parseLong(words[0]), words));
            } catch (Exception error) {
                ApiError known = ApiError.fromThrowable(error);
                if (known.error() == Errors.UNKNOWN_SERVER_ERROR) {
                    error.printStackTrace();
                }
                System.out.println("no " + known.error().code() + " " + encoded(
                    ByteBuffer.wrap(String.valueOf(known.messageWithFallback()).getBytes(StandardCharsets.UTF_8))));
            }
        }
    }

    private String decide(long offset, String[] words) {
        short version = words.length == 4 ? Short.parseShort(words[2]) : 0;
        ControllerResult<?> result;
        ApiMessage response = null;
        switch (words[1]) {
            case "silent":
                int broker = Integer.parseInt(words[2]);
                List<ApiMessageAndVersion> records = new java.util.ArrayList<>();
                replication.handleBrokerFenced(broker, records);
                cluster.heartbeatManager().fence(broker);
                result = ControllerResult.of(records, null);
                break;
            case "balance":
                result = replication.maybeBalancePartitionLeaders();
                break;
            case "unclean":
                result = replication.maybeElectUncleanLeaders();
                break;
            default:
                ApiMessage request = ApiMessageType.fromApiKey(Short.parseShort(words[1])).newRequest();
                request.read(new ByteBufferAccessor(ByteBuffer.wrap(Base64.getDecoder().decode(words[3]))), version);
                result = decide(request, offset, version);
                response = response(result.response());
        }
        for (ApiMessageAndVersion record : result.records()) {
            replay(record.message(), offset++);
        }
        if (response instanceof BrokerHeartbeatResponseData && leaving != null) {
            cluster.heartbeatManager().maybeUpdateControlledShutdownOffset(leaving, offset - 1);
            leaving = null;
        }
        StringBuilder answer = new StringBuilder();
        answer.append(response == null ? "-" : encoded(MessageUtil.toByteBufferAccessor(response, version).buffer()));
        for (ApiMessageAndVersion record : result.records()) {
            ObjectSerializationCache cache = new ObjectSerializationCache();
            ByteBuffer buffer = ByteBuffer.allocate(MetadataRecordSerde.INSTANCE.recordSize(record, cache));
            MetadataRecordSerde.INSTANCE.write(record, cache, new ByteBufferAccessor(buffer));
            answer.append(' ').append(encoded(buffer.flip()));
        }
        return answer.toString();
    }

    private Integer leaving;

    private ControllerResult<?> decide(ApiMessage message, long offset, short version) {
        ControllerRequestContext context = new ControllerRequestContext(
            new RequestHeaderData().setRequestApiVersion(version), KafkaPrincipal.ANONYMOUS, OptionalLong.empty());
        if (message instanceof BrokerRegistrationRequestData) {
            return cluster.registerBroker((BrokerRegistrationRequestData) message, offset,
                features.finalizedFeatures(Long.MAX_VALUE), true);
        } else if (message instanceof BrokerHeartbeatRequestData) {
            BrokerHeartbeatRequestData request = (BrokerHeartbeatRequestData) message;
            cluster.checkBrokerEpoch(request.brokerId(), request.brokerEpoch());
            ControllerResult<BrokerHeartbeatReply> result = replication.processBrokerHeartbeat(
                request, cluster.registerBrokerRecordOffset(request.brokerId()).getAsLong());
            leaving = result.response().inControlledShutdown() ? request.brokerId() : null;
            return result;
        } else if (message instanceof CreateTopicsRequestData) {
            CreateTopicsRequestData request = (CreateTopicsRequestData) message;
            Set<String> names = request.topics().stream().map(topic -> topic.name()).collect(Collectors.toSet());
            return replication.createTopics(context, request, names, false);
        } else if (message instanceof CreatePartitionsRequestData) {
            ControllerResult<List<CreatePartitionsResponseData.CreatePartitionsTopicResult>> result =
                replication.createPartitions(
                    context, List.copyOf(((CreatePartitionsRequestData) message).topics()));
            return ControllerResult.of(result.records(),
                new CreatePartitionsResponseData().setResults(result.response()));
        } else if (message instanceof AlterPartitionRequestData) {
            return replication.alterPartition(context, (AlterPartitionRequestData) message);
        } else if (message instanceof AlterPartitionReassignmentsRequestData) {
            return replication.alterPartitionReassignments((AlterPartitionReassignmentsRequestData) message);
        } else if (message instanceof ListPartitionReassignmentsRequestData) {
            return ControllerResult.of(List.of(), replication.listPartitionReassignments(
                ((ListPartitionReassignmentsRequestData) message).topics(), Long.MAX_VALUE));
        } else if (message instanceof ElectLeadersRequestData) {
            return replication.electLeaders((ElectLeadersRequestData) message);
        } else if (message instanceof AssignReplicasToDirsRequestData) {
            return replication.handleAssignReplicasToDirs((AssignReplicasToDirsRequestData) message);
        } else if (message instanceof UnregisterBrokerRequestData) {
            ControllerResult<Void> result =
                replication.unregisterBroker(((UnregisterBrokerRequestData) message).brokerId());
            return ControllerResult.of(result.records(), new UnregisterBrokerResponseData().setErrorMessage(null));
        } else if (message instanceof IncrementalAlterConfigsRequestData) {
            return alterConfigs((IncrementalAlterConfigsRequestData) message);
        }
        throw new IllegalArgumentException(message.getClass().getSimpleName());
    }

    private ControllerResult<?> alterConfigs(IncrementalAlterConfigsRequestData request) {
        Map<ConfigResource, Map<String, Map.Entry<OpType, String>>> changes = new HashMap<>();
        request.resources().forEach(resource -> {
            Map<String, Map.Entry<OpType, String>> ofResource = new HashMap<>();
            resource.configs().forEach(config -> ofResource.put(config.name(),
                new SimpleImmutableEntry<>(OpType.forId(config.configOperation()), config.value())));
            changes.put(new ConfigResource(
                ConfigResource.Type.forId(resource.resourceType()), resource.resourceName()), ofResource);
        });
        ControllerResult<Map<ConfigResource, ApiError>> result =
            configs.incrementalAlterConfigs(changes, false, false);
        IncrementalAlterConfigsResponseData response = new IncrementalAlterConfigsResponseData();
        result.response().forEach((resource, error) -> response.responses().add(
            new IncrementalAlterConfigsResponseData.AlterConfigsResourceResponse()
                .setResourceType(resource.type().id()).setResourceName(resource.name())
                .setErrorCode(error.error().code()).setErrorMessage(error.message())));
        return ControllerResult.of(result.records(), response);
    }

    private static ApiMessage response(Object reply) {
        if (reply instanceof BrokerRegistrationReply) {
            return new BrokerRegistrationResponseData().setBrokerEpoch(((BrokerRegistrationReply) reply).epoch());
        } else if (reply instanceof BrokerHeartbeatReply) {
            BrokerHeartbeatReply heard = (BrokerHeartbeatReply) reply;
            return new BrokerHeartbeatResponseData().setIsCaughtUp(heard.isCaughtUp())
                .setIsFenced(heard.isFenced()).setShouldShutDown(heard.shouldShutDown());
        }
        return (ApiMessage) reply;
    }

    private void replay(ApiMessage record, long offset) {
        if (record instanceof RegisterBrokerRecord) {
            cluster.replay((RegisterBrokerRecord) record, offset);
        } else if (record instanceof UnregisterBrokerRecord) {
            cluster.replay((UnregisterBrokerRecord) record);
        } else if (record instanceof BrokerRegistrationChangeRecord) {
            cluster.replay((BrokerRegistrationChangeRecord) record);
        } else if (record instanceof TopicRecord) {
            replication.replay((TopicRecord) record);
        } else if (record instanceof PartitionRecord) {
            replication.replay((PartitionRecord) record);
        } else if (record instanceof PartitionChangeRecord) {
            replication.replay((PartitionChangeRecord) record);
        } else if (record instanceof ClearElrRecord) {
            replication.replay((ClearElrRecord) record);
        } else if (record instanceof ConfigRecord) {
            configs.replay((ConfigRecord) record);
        } else {
            throw new IllegalArgumentException(record.getClass().getSimpleName());
        }
    }

    private static String encoded(ByteBuffer bytes) {
        byte[] copy = new byte[bytes.remaining()];
        bytes.duplicate().get(copy);
        return Base64.getEncoder().encodeToString(copy);
    }
}
