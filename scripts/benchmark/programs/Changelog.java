import java.util.Map;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Fills partition 0 of a topic for compaction: records of 100 B to 1 KiB in 64 KiB batches, with random keys. Every run
 *  writes the same records. Arguments: bootstrap topic, MiB to write, number of different keys. */
public class Changelog {
    public static void main(String[] args) throws Exception {
        long left = Long.parseLong(args[2]) << 20;
        int keys = Integer.parseInt(args[3]);
        Map<String, Object> config = Map.of("bootstrap.servers", args[0], "acks", "all", "linger.ms", 5, "batch.size", 65536,
            "key.serializer", ByteArraySerializer.class.getName(), "value.serializer", ByteArraySerializer.class.getName());
        Random random = new Random(1);
        AtomicInteger failed = new AtomicInteger();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config)) {
            while (left > 0) {
                byte[] key = String.format("key-%09d", random.nextInt(keys)).getBytes();
                byte[] value = new byte[100 + random.nextInt(925) - key.length];
                random.nextBytes(value);
                producer.send(new ProducerRecord<>(args[1], 0, key, value), (metadata, error) -> {
                    if (error != null) failed.incrementAndGet();
                });
                left -= key.length + value.length;
            }
        }
        if (failed.get() > 0) throw new IllegalStateException(failed + " records were not acknowledged");
    }
}
