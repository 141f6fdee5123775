// Apache Kafka's Java clients behind the verbs of the conformance suite: lines of JSON in and out.
// The format and the verbs: ../../suite/steps.py. It compiles against kafka-clients 3.9 and 4.3.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.SslAuthenticationException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.AppInfoParser;

public class Driver {
    static final ObjectMapper JSON = new ObjectMapper();
    static final Duration WAIT = Duration.ofSeconds(30);

    private final String bootstrap;
    private final Administration administration;
    private final Map<String, Member> members = new HashMap<>();
    private final Map<String, KafkaProducer<byte[], byte[]>> producers = new HashMap<>();

    private final JsonNode security; // the fields of Login (tests/support/security_profiles.py)

    Driver(String bootstrap, JsonNode security) {
        this.bootstrap = bootstrap;
        this.security = security;
        this.administration = new Administration(settings());
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // what libraries print is no answer
        Driver driver = new Driver(args[0], args.length > 1 ? JSON.readTree(args[1]) : JSON.createObjectNode());
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = in.readLine()) != null) {
            out.println(driver.answer(JSON.readTree(line)));
            out.flush();
        }
        driver.reset();
        System.exit(0);
    }

    private ObjectNode answer(JsonNode request) throws Exception {
        ObjectNode answer = JSON.createObjectNode();
        ObjectNode told = JSON.createObjectNode();
        try {
            run(request.get("verb").asText(), request, told);
            answer.set("told", told);
        } catch (UnsupportedOperationException reason) {
            answer.put("unsupported", reason.getMessage());
        } catch (Exception thrown) {
            Throwable error = thrown instanceof ExecutionException ? thrown.getCause() : thrown;
            Errors known = Errors.forException(error);
            if (error instanceof SslAuthenticationException) {
                answer.put("refused", "certificate");
            } else if (known == Errors.UNKNOWN_SERVER_ERROR) {
                answer.put("refused", error.getClass().getSimpleName());
            } else {
                answer.put("refused", known.code());
            }
            answer.put("message", String.valueOf(error.getMessage()));
        }
        return answer;
    }

    private void run(String verb, JsonNode request, ObjectNode told) throws Exception {
        switch (verb) {
            case "hello" -> told.put("version", AppInfoParser.getVersion());
            case "reset" -> reset();
            case "produce" -> produce(request, told);
            case "consume" -> consume(request, told);
            case "join" -> members.put(text(request, "member"), new Member(joining(request), request));
            case "member" -> member(request).tell(told);
            case "commit" -> member(request).call(consumer -> {
                consumer.commitSync();
                return null;
            });
            case "leave" -> members.remove(text(request, "member")).leave();
            case "open" -> open(request);
            case "begin" -> producer(request).beginTransaction();
            case "send" -> send(producer(request), request, told);
            case "send_offsets" -> {
                ConsumerGroupMetadata group = member(request).call(KafkaConsumer::groupMetadata);
                producer(request).sendOffsetsToTransaction(offsets(request), group);
            }
            case "commit_transaction" -> producer(request).commitTransaction();
            case "abort_transaction" -> producer(request).abortTransaction();
            default -> administration.run(verb, request, told);
        }
    }

    private void reset() throws Exception {
        for (Member member : members.values()) {
            member.leave();
        }
        producers.values().forEach(producer -> producer.close(Duration.ofSeconds(1)));
        members.clear();
        producers.clear();
    }

    private Member member(JsonNode request) {
        return members.get(text(request, "member"));
    }

    private KafkaProducer<byte[], byte[]> producer(JsonNode request) {
        return producers.get(text(request, "producer"));
    }

    private Properties settings() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        String mechanism = text(security, "mechanism", "");
        if (!security.isEmpty()) {
            settings.put("security.protocol", text(security, "protocol"));
        }
        if (!mechanism.isEmpty()) {
            String module = mechanism.equals("PLAIN") ? "plain.PlainLoginModule" : "scram.ScramLoginModule";
            settings.put("sasl.mechanism", mechanism);
            settings.put("sasl.jaas.config", String.format(
                "org.apache.kafka.common.security.%s required username=\"%s\" password=\"%s\";",
                module, text(security, "user"), text(security, "password")));
        }
        putPem(settings, "ssl.truststore", text(security, "ca", ""));
        putPem(settings, "ssl.keystore", text(security, "certificate", ""));
        return settings;
    }

    private static void putPem(Properties settings, String store, String path) {
        if (!path.isEmpty()) {
            settings.put(store + ".type", "PEM");
            settings.put(store + ".location", path);
        }
    }

    // ---- records -------------------------------------------------------------------------------------------

    private void produce(JsonNode request, ObjectNode told) throws Exception {
        Properties settings = settings();
        settings.put("compression.type", text(request, "codec", "none"));
        settings.put("acks", text(request, "acks", "all"));
        settings.put("enable.idempotence", request.path("idempotent").asBoolean());
        settings.put("max.request.size", 2_000_000);
        settings.put("linger.ms", 5);
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            send(producer, request, told);
        }
    }

    private static void send(KafkaProducer<byte[], byte[]> producer, JsonNode request, ObjectNode told) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode record : request.get("records")) {
            RecordHeaders headers = new RecordHeaders();
            for (JsonNode header : record.get("headers")) {
                headers.add(header.get(0).asText(), bytes(header.get(1)));
            }
            Long timestamp = record.get("timestamp").isNull() ? null : record.get("timestamp").asLong();
            sent.add(producer.send(new ProducerRecord<>(
                text(request, "topic"), record.get("partition").asInt(), timestamp,
                bytes(record.get("key")), bytes(record.get("value")), headers)));
        }
        producer.flush();
        ArrayNode offsets = told.putArray("offsets");
        for (Future<RecordMetadata> one : sent) {
            offsets.add(one.get().offset());
        }
    }

    private void consume(JsonNode request, ObjectNode told) throws Exception {
        Properties settings = settings();
        settings.put("isolation.level", text(request, "isolation", "read_uncommitted"));
        settings.put("enable.auto.commit", false);
        ArrayNode records = told.putArray("records");
        int count = request.get("count").asInt();
        settings.put("max.poll.records", count);
        try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> places = new ArrayList<>();
            request.get("partitions").forEach(one -> places.add(new TopicPartition(text(request, "topic"), one.asInt())));
            consumer.assign(places);
            if (request.has("offset")) {
                places.forEach(place -> consumer.seek(place, request.get("offset").asLong()));
            } else {
                consumer.seekToBeginning(places);
            }
            long deadline = System.nanoTime() + WAIT.toNanos();
            while (records.size() < count && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    if (records.size() < count) {
                        records.add(tell(record));
                    }
                }
            }
        }
    }

    static ObjectNode tell(ConsumerRecord<byte[], byte[]> record) {
        ObjectNode told = JSON.createObjectNode();
        told.put("partition", record.partition()).put("offset", record.offset()).put("timestamp", record.timestamp());
        told.put("key", record.key()).put("value", record.value());
        ArrayNode headers = told.putArray("headers");
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(header.value());
        }
        return told;
    }

    // ---- groups and transactions ---------------------------------------------------------------------------

    private Properties joining(JsonNode request) {
        Properties settings = settings();
        String protocol = text(request, "protocol", "classic");
        settings.put("group.id", text(request, "group"));
        settings.put("group.protocol", protocol);
        settings.put("auto.offset.reset", text(request, "reset"));
        settings.put("enable.auto.commit", text(request, "commit").equals("auto"));
        settings.put("auto.commit.interval.ms", 200);
        settings.put("isolation.level", text(request, "isolation", "read_uncommitted"));
        settings.put("metadata.max.age.ms", request.path("refresh_ms").asInt(300_000));
        if (request.has("instance")) {
            settings.put("group.instance.id", text(request, "instance"));
        }
        if (protocol.equals("classic")) {
            String assignor = switch (text(request, "assignor", "range")) {
                case "range" -> "RangeAssignor";
                case "roundrobin" -> "RoundRobinAssignor";
                case "sticky" -> "StickyAssignor";
                default -> "CooperativeStickyAssignor";
            };
            settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer." + assignor);
            settings.put("session.timeout.ms", request.path("session_ms").asInt(10_000));
            settings.put("heartbeat.interval.ms", 200);
        }
        return settings;
    }

    private void open(JsonNode request) {
        Properties settings = settings();
        settings.put("transactional.id", text(request, "transactional_id"));
        settings.put("transaction.timeout.ms", request.get("timeout_ms").asInt());
        settings.put("compression.type", text(request, "codec", "none"));
        var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        producers.put(text(request, "producer"), producer);
        producer.initTransactions();
    }

    // ---- arguments -----------------------------------------------------------------------------------------

    static String text(JsonNode request, String name) {
        return request.get(name).asText();
    }

    static String text(JsonNode request, String name, String otherwise) {
        return request.path(name).asText(otherwise);
    }

    static byte[] bytes(JsonNode field) throws Exception {
        return field.isNull() ? null : field.binaryValue();
    }

    static Map<TopicPartition, OffsetAndMetadata> offsets(JsonNode request) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        request.get("offsets").fields().forEachRemaining(field -> offsets.put(
            new TopicPartition(text(request, "topic"), Integer.parseInt(field.getKey())),
            new OffsetAndMetadata(field.getValue().asLong())));
        return offsets;
    }
}
