import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Apache Kafka's Java clients with many records in one call, since a call from Python for each record is slow.
 *  Records are encoded as partition, offset, timestamp, key, value, headers; integers are big-endian; a size (-1: null)
 *  precedes each key, value and header value. */
public class BulkClients {
    private static final long MAX_STALL_NS = 120_000_000_000L;

    /** Returns all records of these partitions, each from its start to its current end. */
    public byte[] read(Map<String, Object> config, String topic, int partitions) throws IOException {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(bytes);
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> all = new ArrayList<>();
            for (int index = 0; index < partitions; index++) all.add(new TopicPartition(topic, index));
            consumer.assign(all);
            consumer.seekToBeginning(all);
            Map<TopicPartition, Long> ends = consumer.endOffsets(all);
            long deadline = System.nanoTime() + MAX_STALL_NS;
            while (!all.stream().allMatch(tp -> consumer.position(tp) >= ends.get(tp))) {
                if (System.nanoTime() > deadline) throw new IllegalStateException("no more records");
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    deadline = System.nanoTime() + MAX_STALL_NS;
                    if (record.offset() < ends.get(new TopicPartition(topic, record.partition()))) write(out, record);
                }
            }
        }
        return bytes.toByteArray();
    }

    /** Returns the end offset of each of these partitions, 8 bytes each. */
    public byte[] ends(Map<String, Object> config, String topic, int partitions) throws IOException {
        ByteArrayOutputStream offsets = new ByteArrayOutputStream();
        DataOutputStream out = new DataOutputStream(offsets);
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            for (int index = 0; index < partitions; index++) {
                TopicPartition partition = new TopicPartition(topic, index);
                out.writeLong(consumer.endOffsets(List.of(partition)).get(partition));
            }
        }
        return offsets.toByteArray();
    }

    /** Sends the records in order and returns their offsets, 8 bytes each. Fails if one is not acknowledged. */
    public byte[] send(Map<String, Object> config, String topic, byte[] records) throws Exception {
        DataInputStream in = new DataInputStream(new ByteArrayInputStream(records));
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        ByteArrayOutputStream offsets = new ByteArrayOutputStream();
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            while (in.available() > 0) sent.add(producer.send(next(in, topic)));
            producer.flush();
            DataOutputStream out = new DataOutputStream(offsets);
            for (Future<RecordMetadata> future : sent) out.writeLong(future.get().offset());
        }
        return offsets.toByteArray();
    }

    private static ProducerRecord<byte[], byte[]> next(DataInputStream in, String topic) throws IOException {
        int partition = in.readInt();
        in.readLong();
        long timestamp = in.readLong();
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(topic, partition, timestamp, sized(in), sized(in));
        for (int count = in.readInt(); count > 0; count--) record.headers().add(new String(sized(in)), sized(in));
        return record;
    }

    private static void write(DataOutputStream out, ConsumerRecord<byte[], byte[]> record) throws IOException {
        out.writeInt(record.partition());
        out.writeLong(record.offset());
        out.writeLong(record.timestamp());
        sized(out, record.key());
        sized(out, record.value());
        Header[] headers = record.headers().toArray();
        out.writeInt(headers.length);
        for (Header header : headers) {
            sized(out, header.key().getBytes());
            sized(out, header.value());
        }
    }

    private static byte[] sized(DataInputStream in) throws IOException {
        int size = in.readInt();
        return size < 0 ? null : in.readNBytes(size);
    }

    private static void sized(DataOutputStream out, byte[] data) throws IOException {
        out.writeInt(data == null ? -1 : data.length);
        if (data != null) out.write(data);
    }
}
