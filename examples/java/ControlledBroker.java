// A test of Kafka's producer with a broker whose requests fail and whose clock moves: docs/testing.md.
// Usage: java -cp 'lib/*' ControlledBroker.java [COMMAND...]; the command is that of kbroker, by default `kbroker`.

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

public class ControlledBroker {
    private static final HttpClient HTTP =
            HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private static String control;

    public static void main(String[] args) throws Exception {
        var command = new ArrayList<>(args.length > 0 ? List.of(args) : List.of("kbroker"));
        command.addAll(List.of("start", "--dev", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"));
        var broker = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.DISCARD).start();
        try {
            var line = Pattern.compile("kbroker ready: bootstrap (\\S+) control (\\S+)")
                    .matcher(String.valueOf(broker.inputReader().readLine()));
            require(line.matches(), "kbroker does not start");
            control = line.group(2);

            post("/topics", "{\"name\": \"orders\", \"config\": {\"retention.ms\": 3600000}}");
            post("/faults", "{\"api\": \"Produce\", \"topic\": \"orders\", \"error\": \"NOT_LEADER_OR_FOLLOWER\","
                    + " \"count\": 2}");

            // The program under test: it retries.
            Map<String, Object> settings = Map.of("bootstrap.servers", line.group(1));
            try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
                producer.send(new ProducerRecord<>("orders", "k", "v")).get();
            }

            require(post("/faults/remove", "{\"number\": 1}").contains("\"hits\": 2"), "not two hits");
            require(post("/consume", "{\"topic\": \"orders\", \"n\": 1}").contains("\"value\": \"v\""), "no record");
            post("/clock/advance", "{\"hours\": 2}");
            require(post("/consume", "{\"topic\": \"orders\"}").equals("{\"records\": []}"), "the record is there");
            System.out.println("passed");
        } finally {
            broker.destroy();
            broker.waitFor();
        }
    }

    private static String post(String path, String fields) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(control + path))
                .header("Content-Type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(fields))
                .build();
        var response = HTTP.send(request, HttpResponse.BodyHandlers.ofString());
        require(response.statusCode() == 200, path + ": " + response.body());
        return response.body();
    }

    private static void require(boolean isTrue, String what) {
        if (!isTrue) {
            throw new AssertionError(what);
        }
    }
}
