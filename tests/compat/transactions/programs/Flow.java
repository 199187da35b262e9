import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;

/** Consumes, transforms and produces with Kafka's Java client, as its documentation says. The arguments and the output
 *  are those of stages.py. */
public class Flow {
    private static final int GIVEN_UP = 3;
    private static final BufferedReader IN = new BufferedReader(new InputStreamReader(System.in));
    private static String stopAt = "";

    public static void main(String[] arguments) throws Exception {
        Properties common = new Properties();
        common.put("bootstrap.servers", arguments[0]);
        common.put("client.id", arguments[4]);
        common.put("reconnect.backoff.ms", "20");
        common.put("reconnect.backoff.max.ms", "200");
        common.put("retry.backoff.ms", "20");
        Properties producing = new Properties();
        producing.putAll(common);
        producing.put("transactional.id", arguments[4]);
        producing.put("transaction.timeout.ms", arguments[6]);
        producing.put("linger.ms", "0");
        producing.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        producing.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        Properties consuming = new Properties();
        consuming.putAll(common);
        consuming.put("group.id", arguments[1]);
        consuming.put("isolation.level", "read_committed");
        consuming.put("enable.auto.commit", "false");
        consuming.put("auto.offset.reset", "earliest");
        consuming.put("session.timeout.ms", arguments[5]);
        consuming.put("heartbeat.interval.ms", "200");
        consuming.put("max.poll.records", "20");
        consuming.put("fetch.max.wait.ms", "500");
        consuming.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor");
        consuming.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        consuming.put("value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        KafkaProducer<String, String> producer = new KafkaProducer<>(producing);
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(consuming);
        try {
            producer.initTransactions();
        } catch (KafkaException error) {
            giveUp(error);
        }
        consumer.subscribe(List.of(arguments[2]));
        reach("started");
        while (true) {
            ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
            if (records.isEmpty()) continue;
            try {
                transact(producer, consumer, arguments[3], records);
            } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException error) {
                giveUp(error);
            } catch (KafkaException error) {
                abort(producer, consumer, error);
            }
        }
    }

    private static void transact(KafkaProducer<String, String> producer, KafkaConsumer<String, String> consumer,
            String target, ConsumerRecords<String, String> records) throws Exception {
        ConsumerGroupMetadata member = consumer.groupMetadata();
        producer.beginTransaction();
        System.out.println("took as " + member.generationId() + ":" + ranges(records));
        Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
        List<Future<?>> sent = new ArrayList<>();
        for (ConsumerRecord<String, String> record : records) {
            sent.add(producer.send(new ProducerRecord<>(target, record.partition(), null, "done " + record.value())));
            positions.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
        }
        reach("sent");
        producer.flush();
        reach("produced");
        producer.sendOffsetsToTransaction(positions, member);
        reach("offsets");
        producer.commitTransaction();
        reach("committed");
    }

    private static String ranges(ConsumerRecords<String, String> records) {
        StringBuilder ranges = new StringBuilder();
        for (TopicPartition tp : records.partitions()) {
            List<ConsumerRecord<String, String>> part = records.records(tp);
            ranges.append(" ").append(tp.partition()).append(":").append(part.get(0).offset())
                .append("-").append(part.get(part.size() - 1).offset());
        }
        return ranges.toString();
    }

    /** Aborts the transaction, and seeks to the committed offsets. */
    private static void abort(KafkaProducer<String, String> producer, KafkaConsumer<String, String> consumer, KafkaException why) {
        try {
            producer.abortTransaction();
            Map<TopicPartition, OffsetAndMetadata> found = consumer.committed(consumer.assignment());
            System.out.println("aborted: " + why);
            for (TopicPartition tp : consumer.assignment()) {
                consumer.seek(tp, found.get(tp) == null ? 0 : found.get(tp).offset());
            }
        } catch (KafkaException error) {
            System.out.println("gave up: " + why);
            giveUp(error);
        }
    }

    private static void reach(String stage) throws Exception {
        if (IN.ready()) stopAt = IN.readLine().trim();
        if (stage.equals(stopAt)) {
            System.out.println("stopped " + stage);
            stopAt = "";
            IN.readLine();
        }
        System.out.println(stage);
    }

    private static void giveUp(Throwable why) {
        System.out.println("gave up: " + why);
        Runtime.getRuntime().halt(GIVEN_UP);
    }
}
