import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Commits transactions one by one, each with a number of records of 100 bytes, from several producers concurrently.
 *  Arguments: bootstrap topic id-prefix producers transactions records abort-every (0: none is aborted).
 *  A transactional id is the prefix and the producer's number. `transactions` is the total over all producers. Unless
 *  some are aborted, a fifth as many are committed before, as warm-up, and not measured.
 *  Prints one line: ended transactions per second. */
public class Transactions {
    public static void main(String[] args) throws Exception {
        String bootstrap = args[0], topic = args[1];
        int producers = Integer.parseInt(args[3]), each = Integer.parseInt(args[4]) / producers;
        int records = Integer.parseInt(args[5]), abortEvery = Integer.parseInt(args[6]);
        int warm = abortEvery > 0 ? 0 : each / 5;
        long[] begun = new long[1], ended = new long[1];
        CyclicBarrier start = new CyclicBarrier(producers, () -> begun[0] = System.nanoTime());
        CyclicBarrier end = new CyclicBarrier(producers, () -> ended[0] = System.nanoTime());
        ExecutorService threads = Executors.newFixedThreadPool(producers);
        List<Future<?>> running = new ArrayList<>();
        for (int number = 0; number < producers; number++) {
            String id = args[2] + "-" + number;
            running.add(threads.submit(() -> {
                try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config(bootstrap, id))) {
                    producer.initTransactions();
                    run(producer, topic, warm, records, 0);
                    start.await();
                    run(producer, topic, each, records, abortEvery);
                    end.await();
                }
                return null;
            }));
        }
        threads.shutdown();
        // If a producer fails, the others wait at the barrier forever.
        for (Future<?> one : running) {
            try {
                one.get();
            } catch (Exception error) {
                error.printStackTrace();
                System.exit(1);
            }
        }
        System.out.println(each * producers * 1e9 / (ended[0] - begun[0]));
    }

    static Map<String, Object> config(String bootstrap, String id) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", bootstrap);
        config.put("transactional.id", id);
        config.put("batch.size", 65536);
        config.put("key.serializer", ByteArraySerializer.class.getName());
        config.put("value.serializer", ByteArraySerializer.class.getName());
        return config;
    }

    static void run(KafkaProducer<byte[], byte[]> producer, String topic, int count, int records, int abortEvery) {
        for (int i = 1; i <= count; i++) {
            producer.beginTransaction();
            for (int record = 0; record < records; record++) producer.send(new ProducerRecord<>(topic, new byte[100]));
            // Without a flush an abort drops the records that are not sent yet, and a commit may be sent before the
            // records: the client (4.3.1) first checks whether records are left and then chooses what to send, and the
            // two may belong to different transactions. Seen once in 30,000 transactions as INVALID_TXN_STATE.
            producer.flush();
            if (abortEvery > 0 && i % abortEvery == 0) {
                producer.abortTransaction();
            } else {
                producer.commitTransaction();
            }
        }
    }
}
