import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import kafka.server.KafkaConfig;

/** Lines `name TAB value` in; for each a line out: `ok`, or an exception's class, TAB and message. */
public class KafkaValues {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] parts = line.split("\t", 2);
            Properties given = new Properties();
            given.put("process.roles", "broker,controller");
            given.put("node.id", "1");
            given.put("controller.quorum.voters", "1@127.0.0.1:9093");
            given.put("controller.listener.names", "CONTROLLER");
            given.put("listeners", "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093");
            given.put(parts[0], parts[1]);
            out.println(answer(given));
        }
    }

    private static String answer(Properties given) {
        try {
            KafkaConfig.fromProps(given);
            return "ok";
        } catch (Throwable wrong) {
            return wrong.getClass().getSimpleName() + "\t" + String.valueOf(wrong.getMessage()).replace('\n', ' ');
        }
    }
}
