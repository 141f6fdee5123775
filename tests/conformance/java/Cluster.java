// Several nodes of Apache Kafka in one process, and its command-line tools beside them: each argument is a node's file of
// settings. Lines of standard input are those of Tools.java, or "stop N" and "start N" for the N-th node, whose answer is
// "0" when it is done. Nodes that are not formatted yet are, for the cluster that the system property "cluster.id" names.

import java.io.FileReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import kafka.server.KafkaConfig;
import kafka.server.KafkaRaftServer;
import kafka.tools.StorageTool;
import org.apache.kafka.common.utils.Time;

public class Cluster {
    private static final List<KafkaRaftServer> nodes = new ArrayList<>();
    private static String[] files;

    public static void main(String[] args) throws Exception {
        files = args;
        List<CompletableFuture<Void>> starts = new ArrayList<>();
        for (int node = 0; node < files.length; node++) {
            String[] words = {"format", "-t", System.getProperty("cluster.id"), "-c", files[node], "-g"};
            StorageTool.execute(words, new PrintStream(PrintStream.nullOutputStream()));
            nodes.add(null);
            int index = node;
            starts.add(CompletableFuture.runAsync(() -> start(index)));
        }
        starts.forEach(CompletableFuture::join);
        Tools.serve(words -> {
            int index = Integer.parseInt(words[1]);
            if (words[0].equals("start")) {
                start(index);
            } else {
                nodes.get(index).shutdown();
                nodes.get(index).awaitShutdown();
            }
        });
    }

    private static void start(int index) {
        Properties settings = new Properties();
        try (FileReader reader = new FileReader(files[index])) {
            settings.load(reader);
        } catch (java.io.IOException error) {
            throw new RuntimeException(error);
        }
        KafkaRaftServer node = new KafkaRaftServer(KafkaConfig.fromProps(settings, false), Time.SYSTEM);
        node.startup();
        nodes.set(index, node);
    }
}
