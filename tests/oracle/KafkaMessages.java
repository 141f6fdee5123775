import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;

/**
 * Reads messages with Apache Kafka's own classes, for tests: one question and one answer a line.
 *
 * question  class name, version, base64 of the bytes
 * answer    "ok", base64 of what Kafka writes for what it read, bytes left over, JSON of what it read; or "no" and why
 */
public class KafkaMessages {
    private static final Map<String, Class<?>> CLASSES = new HashMap<>();

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String answer;
            try {
                String[] words = line.split(" ", -1);
                answer = answer(words[0], Short.parseShort(words[1]), Base64.getDecoder().decode(words[2]));
            } catch (Exception | OutOfMemoryError e) {
                Throwable reason = e instanceof InvocationTargetException ? e.getCause() : e;
                answer = "no " + reason.toString().replace('\n', ' ');
            }
            out.print(answer + "\n");
            out.flush();
        }
    }

    private static String answer(String name, short version, byte[] bytes) throws Exception {
        ByteBuffer buffer = ByteBuffer.wrap(bytes);
        Message message = (Message) load(name).getDeclaredConstructor().newInstance();
        message.read(new ByteBufferAccessor(buffer), version);
        ByteBuffer written = MessageUtil.toByteBufferAccessor(message, version).buffer();
        byte[] result = new byte[written.remaining()];
        written.get(result);
        String encoded = Base64.getEncoder().encodeToString(result);
        return "ok " + encoded + " " + buffer.remaining() + " " + json(message, version);
    }

    private static Class<?> load(String name) throws ClassNotFoundException {
        Class<?> known = CLASSES.get(name);
        if (known == null) {
            known = Class.forName(name);
            CLASSES.put(name, known);
        }
        return known;
    }

    private static JsonNode json(Message message, short version) throws Exception {
        Class<?> converter = load(message.getClass().getName() + "JsonConverter");
        return (JsonNode) converter.getMethod("write", message.getClass(), short.class).invoke(null, message, version);
    }
}
