import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Measures latencies in microseconds; Kafka's own tools round them to milliseconds.
 *  produce: acks=all at a steady rate; end-to-end: one record at a time, produce to poll (as EndToEndLatency does).
 *  Arguments: bootstrap topic produce|end-to-end records rate. Prints one line: p50 p99 p999. */
public class Latency {
    public static void main(String[] args) throws Exception {
        String bootstrap = args[0], topic = args[1];
        int count = Integer.parseInt(args[3]), rate = Integer.parseInt(args[4]);
        long[] micros = new long[count];
        Map<String, Object> config = Map.of("bootstrap.servers", bootstrap, "acks", "all", "linger.ms", 0,
            "key.serializer", ByteArraySerializer.class.getName(), "value.serializer", ByteArraySerializer.class.getName());
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config)) {
            int warm = Math.max(count / 5, 500);
            if (args[2].equals("produce")) {
                produce(producer, topic, new long[warm], rate);
                produce(producer, topic, micros, rate);
            } else {
                endToEnd(producer, bootstrap, topic, new long[warm]);
                endToEnd(producer, bootstrap, topic, micros);
            }
        }
        Arrays.sort(micros);
        System.out.println(micros[count / 2] + " " + micros[(int) (count * 0.99)] + " " + micros[(int) (count * 0.999)]);
    }

    static void produce(KafkaProducer<byte[], byte[]> producer, String topic, long[] micros, int rate) throws Exception {
        AtomicInteger failed = new AtomicInteger();
        long start = System.nanoTime();
        for (int i = 0; i < micros.length; i++) {
            long due = start + i * 1_000_000_000L / rate;
            while (System.nanoTime() < due) Thread.sleep(0, 100_000);
            int slot = i;
            long sent = System.nanoTime();
            producer.send(new ProducerRecord<>(topic, new byte[100]), (metadata, error) -> {
                if (error != null) failed.incrementAndGet();
                micros[slot] = (System.nanoTime() - sent) / 1000;
            });
        }
        producer.flush();
        if (failed.get() > 0) throw new IllegalStateException(failed + " records were not acknowledged");
    }

    static void endToEnd(KafkaProducer<byte[], byte[]> producer, String bootstrap, String topic, long[] micros) throws Exception {
        Map<String, Object> config = Map.of("bootstrap.servers", bootstrap, "fetch.max.wait.ms", 500,
            "key.deserializer", ByteArrayDeserializer.class.getName(), "value.deserializer", ByteArrayDeserializer.class.getName());
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(config)) {
            List<TopicPartition> partitions = producer.partitionsFor(topic).stream()
                .map(info -> new TopicPartition(info.topic(), info.partition())).toList();
            consumer.assign(partitions);
            consumer.seekToEnd(partitions);
            partitions.forEach(consumer::position);
            for (int i = 0; i < micros.length; i++) {
                long sent = System.nanoTime();
                producer.send(new ProducerRecord<>(topic, new byte[100]));
                while (consumer.poll(Duration.ofSeconds(10)).isEmpty()) { }
                micros[i] = (System.nanoTime() - sent) / 1000;
            }
        }
    }
}
