// The verbs of Apache Kafka's admin client.

import static org.apache.kafka.clients.admin.AlterConfigOp.OpType.DELETE;
import static org.apache.kafka.clients.admin.AlterConfigOp.OpType.SET;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

class Administration {
    private final Admin admin;

    Administration(Properties settings) {
        admin = Admin.create(settings);
    }

    void run(String verb, JsonNode request, ObjectNode told) throws Exception {
        switch (verb) {
            case "create_topic" -> createTopic(request);
            case "delete_topic" -> admin.deleteTopics(List.of(topic(request))).all().get();
            case "list_topics" -> {
                ArrayNode topics = told.putArray("topics");
                admin.listTopics().names().get().forEach(topics::add);
            }
            case "describe_topic" -> told.put("partitions", admin.describeTopics(List.of(topic(request)))
                .allTopicNames().get().get(topic(request)).partitions().size());
            case "create_partitions" -> admin.createPartitions(
                Map.of(topic(request), NewPartitions.increaseTo(request.get("count").asInt()))).all().get();
            case "describe_configs" -> describeConfigs(request, told);
            case "alter_configs" -> alterConfigs(request);
            case "describe_cluster" -> {
                told.put("controller", admin.describeCluster().controller().get().id());
                ArrayNode brokers = told.putArray("brokers");
                admin.describeCluster().nodes().get().forEach(node -> brokers.add(node.id()));
            }
            case "cluster_id" -> told.put("id", admin.describeCluster().clusterId().get());
            case "delete_records" -> admin.deleteRecords(Map.of(
                place(request), RecordsToDelete.beforeOffset(request.get("before").asLong()))).all().get();
            case "list_offsets" -> listOffsets(request, told);
            default -> runOfGroups(verb, request, told);
        }
    }

    @SuppressWarnings({"deprecation", "removal"}) // listConsumerGroups and state are what both versions have
    private void runOfGroups(String verb, JsonNode request, ObjectNode told) throws Exception {
        switch (verb) {
            case "list_groups" -> {
                ArrayNode groups = told.putArray("groups");
                admin.listConsumerGroups().all().get().forEach(group -> groups.add(group.groupId()));
            }
            case "describe_group" -> {
                var described = admin.describeConsumerGroups(List.of(group(request))).all().get().get(group(request));
                told.put("state", described.state().toString()).put("members", described.members().size());
            }
            case "delete_group" -> admin.deleteConsumerGroups(List.of(group(request))).all().get();
            case "committed" -> {
                ObjectNode offsets = told.putObject("offsets");
                admin.listConsumerGroupOffsets(group(request)).partitionsToOffsetAndMetadata().get().forEach(
                    (place, offset) -> offsets.put(String.valueOf(place.partition()), offset.offset()));
            }
            case "alter_offsets" ->
                admin.alterConsumerGroupOffsets(group(request), Driver.offsets(request)).all().get();
            case "delete_offsets" -> {
                Set<TopicPartition> gone = new HashSet<>();
                request.get("partitions").forEach(one -> gone.add(new TopicPartition(topic(request), one.asInt())));
                admin.deleteConsumerGroupOffsets(group(request), gone).all().get();
            }
            default -> throw new UnsupportedOperationException("the client has no such call");
        }
    }

    private void createTopic(JsonNode request) throws Exception {
        Map<String, String> configs = new HashMap<>();
        request.get("configs").fields().forEachRemaining(field -> configs.put(field.getKey(), field.getValue().asText()));
        NewTopic topic = new NewTopic(topic(request), Optional.of(request.get("count").asInt()), Optional.empty());
        admin.createTopics(List.of(topic.configs(configs))).all().get();
    }

    private void describeConfigs(JsonNode request, ObjectNode told) throws Exception {
        ConfigResource resource = resource(request);
        ObjectNode configs = told.putObject("configs");
        admin.describeConfigs(List.of(resource)).all().get().get(resource).entries()
            .forEach(entry -> configs.put(entry.name(), entry.value()));
    }

    private void alterConfigs(JsonNode request) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        request.get("set").fields().forEachRemaining(field ->
            changes.add(new AlterConfigOp(new ConfigEntry(field.getKey(), field.getValue().asText()), SET)));
        request.get("delete").forEach(name ->
            changes.add(new AlterConfigOp(new ConfigEntry(name.asText(), null), DELETE)));
        admin.incrementalAlterConfigs(Map.of(resource(request), changes)).all().get();
    }

    private void listOffsets(JsonNode request, ObjectNode told) throws Exception {
        OffsetSpec when = switch (Driver.text(request, "at")) {
            case "earliest" -> OffsetSpec.earliest();
            case "latest" -> OffsetSpec.latest();
            default -> OffsetSpec.forTimestamp(request.get("time").asLong());
        };
        boolean isCommitted = Driver.text(request, "isolation", "").equals("read_committed");
        IsolationLevel isolation = isCommitted ? IsolationLevel.READ_COMMITTED : IsolationLevel.READ_UNCOMMITTED;
        told.put("offset", admin.listOffsets(Map.of(place(request), when), new ListOffsetsOptions(isolation))
            .partitionResult(place(request)).get().offset());
    }

    private static ConfigResource resource(JsonNode request) {
        boolean isTopic = Driver.text(request, "kind").equals("topic");
        return new ConfigResource(isTopic ? ConfigResource.Type.TOPIC : ConfigResource.Type.BROKER, Driver.text(request, "name"));
    }

    private static TopicPartition place(JsonNode request) {
        return new TopicPartition(topic(request), request.get("partition").asInt());
    }

    private static String topic(JsonNode request) {
        return Driver.text(request, "topic");
    }

    private static String group(JsonNode request) {
        return Driver.text(request, "group");
    }
}
