import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** A producer with acks=all that sends records of 100 bytes at a steady rate, and a consumer that reads them all.
 *  One process measures several windows of time, so that each has warm clients. Arguments: bootstrap topic rate.
 *  Prints "ready" after WARM_UP_S. Each line "begin" of standard input begins a window. "end" prints its latencies in
 *  microseconds, of acknowledgements and from send to poll: p50 p99 p50 p99. Ends with the standard input. */
public class Foreground {
    static final int WARM_UP_S = 5;
    static final Latencies ACKNOWLEDGED = new Latencies(), END_TO_END = new Latencies();
    static volatile boolean stopping;

    static class Latencies {
        private long[] micros = new long[1 << 16];
        private int count;

        synchronized void add(long sentNanos) {
            if (count == micros.length) micros = Arrays.copyOf(micros, 2 * count);
            micros[count++] = (System.nanoTime() - sentNanos) / 1000;
        }

        synchronized void clear() {
            count = 0;
        }

        synchronized String percentiles() {
            if (count == 0) throw new IllegalStateException("no record in the window");
            long[] sorted = Arrays.copyOf(micros, count);
            Arrays.sort(sorted);
            return sorted[count / 2] + " " + sorted[(int) (count * 0.99)];
        }
    }

    public static void main(String[] args) throws Exception {
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> fail(error));
        Thread consumer = new Thread(() -> consume(args[0], args[1]));
        consumer.start();
        Thread producer = new Thread(() -> produce(args[0], args[1], Integer.parseInt(args[2])));
        producer.start();
        Thread.sleep(WARM_UP_S * 1000);
        System.out.println("ready");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String command; (command = commands.readLine()) != null; ) {
            if (command.equals("begin")) {
                ACKNOWLEDGED.clear();
                END_TO_END.clear();
            } else {
                System.out.println(ACKNOWLEDGED.percentiles() + " " + END_TO_END.percentiles());
            }
        }
        stopping = true;
        producer.join();
        consumer.join();
    }

    /** End the process: the figures would lack the records that failed, and the other threads would go on. */
    static void fail(Throwable error) {
        error.printStackTrace();
        Runtime.getRuntime().halt(1);
    }

    static void produce(String bootstrap, String topic, int rate) {
        Map<String, Object> config = Map.of("bootstrap.servers", bootstrap, "acks", "all", "linger.ms", 0,
            "key.serializer", ByteArraySerializer.class.getName(), "value.serializer", ByteArraySerializer.class.getName());
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config)) {
            long start = System.nanoTime();
            for (long number = 0; !stopping; number++) {
                long due = start + number * 1_000_000_000L / rate;
                while (System.nanoTime() < due) Thread.sleep(0, 100_000);
                long sent = System.nanoTime();
                byte[] value = ByteBuffer.allocate(100).putLong(sent).array();
                producer.send(new ProducerRecord<>(topic, value), (metadata, error) -> {
                    if (error != null) fail(error);
                    ACKNOWLEDGED.add(sent);
                });
            }
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    static void consume(String bootstrap, String topic) {
        Map<String, Object> config = Map.of("bootstrap.servers", bootstrap,
            "key.deserializer", ByteArrayDeserializer.class.getName(), "value.deserializer", ByteArrayDeserializer.class.getName());
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(config)) {
            List<TopicPartition> partitions = consumer.partitionsFor(topic).stream()
                .map(info -> new TopicPartition(info.topic(), info.partition())).toList();
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            while (!stopping) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    END_TO_END.add(ByteBuffer.wrap(record.value()).getLong());
                }
            }
        }
    }
}
