import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import kafka.server.KafkaConfig;

/**
 * Whether Apache Kafka accepts the settings of a node, for tests: one node and one answer a line.
 *
 * question  name=value, separated by tabs
 * answer    empty, or the message of the error
 */
public class BrokerConfigs {
    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Properties settings = new Properties();
            for (String setting : line.split("\t")) {
                String[] parts = setting.split("=", 2);
                settings.put(parts[0], parts[1]);
            }
            out.println(answer(settings));
            out.flush();
        }
    }

    private static String answer(Properties settings) {
        try {
            KafkaConfig.fromProps(settings, false);
            return "";
        } catch (RuntimeException error) {
            return error.getMessage().replace("requirement failed: ", "").replace('\n', ' ');
        }
    }
}
