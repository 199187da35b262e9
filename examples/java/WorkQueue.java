// A work queue with Kafka's Java client: ten tasks, one of which fails at first.
// Usage: java -cp 'lib/*' WorkQueue.java [HOST:PORT] [TOPIC]
//
// Any number of workers of the group share the tasks of a partition. A task that is released, or whose worker dies, is
// delivered again.

import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class WorkQueue {
    public static void main(String[] args) throws Exception {
        String bootstrap = args.length > 0 ? args[0] : "127.0.0.1:9092";
        String topic = args.length > 1 ? args[1] : "tasks";

        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < 10; number++) {
                producer.send(new ProducerRecord<>(topic, "task " + number)).get();
            }
        }

        settings = Map.of(
                "bootstrap.servers", bootstrap,
                "group.id", topic + "-workers",
                "share.acknowledgement.mode", "explicit");
        try (var worker = new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            worker.subscribe(List.of(topic));
            for (int done = 0; done < 10; ) {
                for (var task : worker.poll(Duration.ofSeconds(1))) {
                    if (task.value().equals("task 3") && task.deliveryCount().get() == 1) {
                        System.out.println(task.value() + " failed, and will be delivered again");
                        worker.acknowledge(task, AcknowledgeType.RELEASE);
                    } else {
                        System.out.println(task.value() + " done");
                        worker.acknowledge(task);
                        done++;
                    }
                }
                worker.commitSync();
            }
        }
    }
}
