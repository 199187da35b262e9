import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Properties;
import java.util.TreeSet;
import java.util.stream.Collectors;

import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.Stores;

/** An application with the streams protocol. Arguments: bootstrap, application id, kind, directory, configs as key=value.
 *
 *  count: counts the words of the topic words, with a repartition topic and a changelog; counts go to the topic counts.
 *      The word poison ends all instances.
 *  join: joins the topics left and right, whose values go to the topic joined.
 *  Topics have the application id and a dash before their names. A line of input, and what happens:
 *  tasks: prints them; leave: ends it. */
public class Application {
    public static void main(String[] arguments) throws Exception {
        Properties config = new Properties();
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[1]);
        config.put(StreamsConfig.STATE_DIR_CONFIG, arguments[3]);
        config.put(StreamsConfig.GROUP_PROTOCOL_CONFIG, "streams");
        config.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 50);
        config.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        config.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.String().getClass());
        config.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.String().getClass());
        config.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        config.put("reconnect.backoff.ms", 20);
        config.put("reconnect.backoff.max.ms", 200);
        for (int index = 4; index < arguments.length; index++) {
            String[] setting = arguments[index].split("=", 2);
            config.put(setting[0], setting[1]);
        }
        StreamsBuilder builder = new StreamsBuilder();
        String prefix = arguments[1] + "-";
        if (arguments[2].equals("count")) {
            builder.<String, String>stream(prefix + "words")
                .groupBy((key, word) -> word, Grouped.with("by-word", Serdes.String(), Serdes.String()))
                .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                    .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
                .toStream()
                .mapValues((word, count) -> {
                    if (word.equals("poison")) throw new IllegalStateException("poison");
                    return word + " " + count;
                })
                .to(prefix + "counts");
        } else {
            builder.<String, String>stream(prefix + "left")
                .join(
                    builder.<String, String>table(prefix + "right", Materialized.as(Stores.inMemoryKeyValueStore("right"))),
                    (left, right) -> left + " " + right)
                .to(prefix + "joined");
        }
        KafkaStreams streams = new KafkaStreams(builder.build(), config);
        streams.setUncaughtExceptionHandler(error -> {
            Throwable cause = error.getCause() == null ? error : error.getCause();
            System.out.println("failed: " + cause.getClass().getSimpleName() + ": " + cause.getMessage());
            return cause instanceof IllegalStateException
                ? StreamThreadExceptionResponse.SHUTDOWN_APPLICATION : StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.setStateListener((now, before) -> System.out.println(now.name().toLowerCase()));
        streams.start();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            if (line.equals("tasks")) {
                System.out.println("tasks: " + streams.metadataForLocalThreads().stream()
                    .map(thread -> names(thread.activeTasks()) + " " + names(thread.standbyTasks()))
                    .collect(Collectors.joining(" | ")));
            } else if (line.equals("leave")) {
                streams.close(new KafkaStreams.CloseOptions().leaveGroup(true));
            }
        }
    }

    static String names(java.util.Set<org.apache.kafka.streams.TaskMetadata> tasks) {
        return new TreeSet<>(tasks.stream().map(task -> task.taskId().toString()).toList()).toString();
    }
}
