import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Kafka's Java client with its default settings, idempotent by default. Arguments and output are those of lines.py. */
public class FailoverClient {
    private static final int PACE_MS = 100;
    private static final int COMMIT_INTERVAL_MS = 500;
    private static volatile boolean producing = true;
    private static volatile boolean consuming = true;

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0], group = arguments[1], topic = arguments[3];
        int partitions = Integer.parseInt(arguments[2]);
        Thread commands = new Thread(FailoverClient::readCommands);
        commands.setDaemon(true);
        commands.start();
        new Thread(() -> produce(bootstrap, topic, partitions)).start();
        consume(bootstrap, topic, group);
    }

    private static void readCommands() {
        try {
            if (System.in.read() >= 0) producing = false;
            while (System.in.read() >= 0) { }
        } catch (java.io.IOException error) {
            say("error " + error);
        }
        producing = false;
        consuming = false;
    }

    private static void produce(String bootstrap, String topic, int partitions) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        properties.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        KafkaProducer<String, String> producer = new KafkaProducer<>(properties);
        int next = 0;
        for (; producing; next++) {
            int number = next;
            try {
                producer.send(new ProducerRecord<>(topic, number % partitions, null, "" + number), (metadata, error) -> {
                    if (error != null) say("error " + error);
                    else say("ack " + topic + " " + metadata.partition() + " " + metadata.offset() + " " + number);
                });
                Thread.sleep(PACE_MS);
            } catch (Exception error) {
                say("error " + error);
            }
        }
        producer.close();
        say("sent " + topic + " " + next);
    }

    private static void consume(String bootstrap, String topic, String group) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("group.id", group);
        properties.put("auto.offset.reset", "earliest");
        properties.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        properties.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(properties);
        consumer.subscribe(List.of(topic));
        long nextCommit = System.currentTimeMillis() + COMMIT_INTERVAL_MS;
        boolean hasRead = false;
        while (consuming) {
            try {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                    hasRead = true;
                    say("read " + topic + " " + record.partition() + " " + record.offset() + " " + record.value());
                }
                if (hasRead && System.currentTimeMillis() >= nextCommit) {
                    consumer.commitSync();
                    say("commit");
                    hasRead = false;
                    nextCommit = System.currentTimeMillis() + COMMIT_INTERVAL_MS;
                }
            } catch (Exception error) {
                say("error " + error);
            }
        }
        consumer.close();
    }

    private static void say(String line) {
        System.out.println(line.replace('\n', ' '));
    }
}
