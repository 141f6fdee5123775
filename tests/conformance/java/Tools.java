// Apache Kafka's command-line tools in one process. Each line of standard input is a tool's class and its arguments, in
// base64, apart by blanks; each answer is a line: the exit code, standard output and standard error, in base64 likewise.
// What a tool wants done when its process ends is done when it ends. Before the first answer stands a line: "ready".

import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

public class Tools {
    private static class Ended extends Error {
        Ended(int code) {
            super(null, null, false, false);
            if (ended == null) {  // a tool that catches this ends once more, and not as it wanted to
                ended = code;
            }
        }
    }

    private static Integer ended;

    interface Command {
        void run(String[] words);
    }

    public static void main(String[] args) throws Exception {
        serve(words -> {
            throw new IllegalArgumentException(words[0]);
        });
    }

    /** Runs what standard input names: tools, and what has no dot in its name as a command. */
    static void serve(Command command) throws Exception {
        PrintStream out = System.out;
        PrintStream err = System.err;
        Exit.setExitProcedure((code, message) -> {
            if (message != null) {
                System.err.println(message);
            }
            throw new Ended(code);
        });
        Exit.setHaltProcedure((code, message) -> {
            throw new Ended(code);
        });
        List<Runnable> hooks = new ArrayList<>();
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        System.setIn(new ByteArrayInputStream(new byte[0]));
        BufferedReader in = new BufferedReader(new InputStreamReader(
            new FileInputStream(FileDescriptor.in), StandardCharsets.UTF_8));
        out.println("ready");
        out.flush();
        String line;
        while ((line = in.readLine()) != null) {
            String[] words = Arrays.stream(line.split(" ", -1)).map(Tools::decoded).toArray(String[]::new);
            ByteArrayOutputStream told = new ByteArrayOutputStream();
            ByteArrayOutputStream complained = new ByteArrayOutputStream();
            System.setOut(new PrintStream(told, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(complained, true, StandardCharsets.UTF_8));
            int code = words[0].contains(".") ? run(words[0], Arrays.copyOfRange(words, 1, words.length)) : told(command, words);
            hooks.forEach(Runnable::run);
            hooks.clear();
            System.out.flush();
            System.err.flush();
            System.setOut(out);
            System.setErr(err);
            Base64.Encoder encoder = Base64.getEncoder();
            out.println(code + " " + encoder.encodeToString(told.toByteArray())
                + " " + encoder.encodeToString(complained.toByteArray()));
            out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static int told(Command command, String[] words) {
        command.run(words);
        return 0;
    }

    private static int run(String tool, String[] args) {
        ended = null;
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) args);
            return 0;
        } catch (InvocationTargetException wrapped) {
            if (wrapped.getCause() instanceof Ended) {
                return ended;
            }
            System.err.println(wrapped.getCause());
            return 1;
        } catch (ReflectiveOperationException error) {
            System.err.println(error);
            return 1;
        }
    }

    private static String decoded(String word) {
        return new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8);
    }
}
