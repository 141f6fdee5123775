// Apache Kafka's Java consumer, driven by lines on standard input; each command is answered by lines and a full stop.
//
//   open KEY=VALUE ...                     a new consumer
//   assign TOPIC:PARTITION:OFFSET ...      read these, each from its offset on
//   seek TOPIC:PARTITION:OFFSET            go on elsewhere
//   pause TOPIC:PARTITION ...              resume TOPIC:PARTITION ...
//   poll MILLISECONDS                      one line for each record: TOPIC PARTITION OFFSET VALUE-IN-BASE64
//   close
//
// What goes wrong is answered by a line that begins with an exclamation mark.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class Reader {
    private static KafkaConsumer<byte[], byte[]> consumer;

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = in.readLine()) != null) {
            StringBuilder answer = new StringBuilder();
            try {
                List<String> words = new ArrayList<>(Arrays.asList(line.split(" ")));
                run(words.remove(0), words, answer);
            } catch (Exception error) {
                answer.append("! ").append(error.toString().replace('\n', ' ')).append('\n');
            }
            System.out.print(answer.append(".\n"));
            System.out.flush();
        }
        close();
    }

    private static void run(String command, List<String> words, StringBuilder answer) {
        switch (command) {
            case "open" -> open(words);
            case "assign" -> {
                consumer.assign(words.stream().map(Reader::partition).toList());
                words.forEach(Reader::seek);
            }
            case "seek" -> words.forEach(Reader::seek);
            case "pause" -> consumer.pause(words.stream().map(Reader::partition).toList());
            case "resume" -> consumer.resume(words.stream().map(Reader::partition).toList());
            case "poll" -> {
                Duration limit = Duration.ofMillis(Long.parseLong(words.get(0)));
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(limit)) {
                    String value = Base64.getEncoder().encodeToString(record.value());
                    answer.append("%s %d %d %s\n".formatted(record.topic(), record.partition(), record.offset(), value));
                }
            }
            case "close" -> close();
            default -> throw new IllegalArgumentException("no such command: " + command);
        }
    }

    private static void open(List<String> words) {
        close();
        Properties settings = new Properties();
        for (String word : words) {
            String[] pair = word.split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private static void close() {
        if (consumer != null) {
            consumer.close();
            consumer = null;
        }
    }

    private static TopicPartition partition(String word) {
        String[] parts = word.split(":");
        return new TopicPartition(parts[0], Integer.parseInt(parts[1]));
    }

    private static void seek(String word) {
        consumer.seek(partition(word), Long.parseLong(word.split(":")[2]));
    }
}
