import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

/** Counts words exactly once, and writes each count as soon as it changes. Arguments: bootstrap, application id, source,
 *  target, session timeout, directory. */
public class WordCount {
    public static void main(String[] arguments) {
        Properties config = new Properties();
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[1]);
        config.put(StreamsConfig.STATE_DIR_CONFIG, arguments[5]);
        config.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        config.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 50);
        config.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        config.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.String().getClass());
        config.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.String().getClass());
        config.put(StreamsConfig.consumerPrefix("session.timeout.ms"), arguments[4]);
        config.put(StreamsConfig.consumerPrefix("heartbeat.interval.ms"), 200);
        config.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        config.put("reconnect.backoff.ms", 20);
        config.put("reconnect.backoff.max.ms", 200);
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(arguments[2])
            .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
            .toStream()
            .mapValues((word, count) -> word + " " + count)
            .to(arguments[3], Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(), config);
        streams.setUncaughtExceptionHandler(error -> {
            System.out.println("failed: " + error);
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.setStateListener((now, before) -> System.out.println(now.name().toLowerCase()));
        streams.start();
        System.out.println("started");
    }
}
