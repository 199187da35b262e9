import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import kafka.server.KafkaConfig;

/** Reads lines `name TAB value`; writes for each `ok`, or an exception's class, TAB and message. */
public class KafkaValues {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] parts = line.split("\t", 2);
            Properties properties = new Properties();
            properties.put("process.roles", "broker,controller");
            properties.put("node.id", "1");
            properties.put("controller.quorum.voters", "1@127.0.0.1:9093");
            properties.put("controller.listener.names", "CONTROLLER");
            properties.put("listeners", "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093");
            properties.put(parts[0], parts[1]);
            out.println(outcome(properties));
        }
    }

    private static String outcome(Properties properties) {
        try {
            KafkaConfig.fromProps(properties);
            return "ok";
        } catch (Throwable error) {
            return error.getClass().getSimpleName() + "\t" + String.valueOf(error.getMessage()).replace('\n', ' ');
        }
    }
}
