// A node of Apache Kafka that is formatted first, in one process: its file of settings, then what StorageTool is told.

import java.util.Arrays;
import kafka.Kafka;
import kafka.tools.StorageTool;

public class Node {
    public static void main(String[] args) throws Exception {
        int code = StorageTool.execute(Arrays.copyOfRange(args, 1, args.length), System.out);
        if (code != 0) {
            System.exit(code);
        }
        Kafka.main(new String[] {args[0]});
    }
}
