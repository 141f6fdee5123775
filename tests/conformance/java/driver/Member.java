// A consumer in a group: the one thread that touches it polls, and does what else is asked between two polls.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

class Member {
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final List<ObjectNode> records = new ArrayList<>();
    private final ConcurrentLinkedQueue<Runnable> asked = new ConcurrentLinkedQueue<>();
    private final Thread thread;
    private volatile boolean isStopped;

    Member(Properties settings, JsonNode request) {
        consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        List<String> topics = new ArrayList<>();
        request.get("topics").forEach(topic -> topics.add(topic.asText()));
        consumer.subscribe(topics);
        thread = new Thread(this::run);
        thread.start();
    }

    private void run() {
        while (!isStopped) {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(50))) {
                records.add(Driver.tell(record));
            }
            Runnable next;
            while ((next = asked.poll()) != null) {
                next.run();
            }
        }
        consumer.close();
    }

    <T> T call(Function<KafkaConsumer<byte[], byte[]>, T> what) throws Exception {
        CompletableFuture<T> answer = new CompletableFuture<>();
        asked.add(() -> {
            try {
                answer.complete(what.apply(consumer));
            } catch (RuntimeException error) {
                answer.completeExceptionally(error);
            }
        });
        return answer.get(60, TimeUnit.SECONDS);
    }

    void tell(ObjectNode told) throws Exception {
        call(consumer -> {
            ArrayNode assigned = told.putArray("assigned");
            for (TopicPartition place : consumer.assignment()) {
                assigned.addArray().add(place.topic()).add(place.partition());
            }
            told.putArray("records").addAll(records);
            return null;
        });
    }

    void leave() throws InterruptedException {
        isStopped = true;
        thread.join();
    }
}
