// Produces and consumes ten records with Kafka's Java client.
// Usage: java -cp 'lib/*' ProduceConsume.java [HOST:PORT] [TOPIC]

import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class ProduceConsume {
    public static void main(String[] args) throws Exception {
        String bootstrap = args.length > 0 ? args[0] : "127.0.0.1:9092";
        String topic = args.length > 1 ? args[1] : "examples";

        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < 10; number++) {
                producer.send(new ProducerRecord<>(topic, "key-" + number % 3, "value " + number)).get();
            }
        }

        settings = Map.of(
                "bootstrap.servers", bootstrap,
                "group.id", topic + "-java",
                "auto.offset.reset", "earliest", // where a new group starts
                "enable.auto.commit", "false");
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            for (int count = 0; count < 10; ) {
                for (var record : consumer.poll(Duration.ofSeconds(1))) {
                    System.out.printf("%d:%d %s = %s%n", record.partition(), record.offset(), record.key(), record.value());
                    count++;
                }
            }
            consumer.commitSync();
        }
    }
}
