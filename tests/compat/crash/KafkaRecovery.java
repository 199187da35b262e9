import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.TreeMap;
import java.util.zip.CRC32;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.FetchDataInfo;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogOffsetsListener;
import org.apache.kafka.storage.internals.log.OffsetResultHolder;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Opens log directories as Kafka does at startup.
 *
 * Input: lines `directory TAB recovery point TAB log start offset TAB clean TAB timestamps, separated by commas TAB
 * index.interval.bytes TAB current time`. Output: a line of JSON for each: start and end of the log, its producers and
 * epochs, the result of a fetch at each offset (base offset of the first batch, size, CRC-32), the offset of each
 * timestamp; or `error`.
 */
public class KafkaRecovery {
    private static final int FETCH_BYTES = 1 << 20;
    private static final int MAX_READS = 100;

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        BrokerTopicStats stats = new BrokerTopicStats(false);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(open(line.split("\t", -1), scheduler, stats));
        }
        scheduler.shutdown();
        System.exit(0);
    }

    private static String open(String[] fields, KafkaScheduler scheduler, BrokerTopicStats stats) {
        Properties configs = new Properties();
        configs.put("segment.index.bytes", "4096");
        configs.put("index.interval.bytes", fields[5]);
        try {
            UnifiedLog log = UnifiedLog.create(new File(fields[0]), new LogConfig(configs), Long.parseLong(fields[2]),
                Long.parseLong(fields[1]), scheduler, stats, at(Long.parseLong(fields[6])), 300_000,
                new ProducerStateManagerConfig(86_400_000, false), 600_000, new LogDirFailureChannel(5),
                Boolean.parseBoolean(fields[3]), Optional.empty(), new java.util.concurrent.ConcurrentHashMap<>(), false,
                LogOffsetsListener.NO_OP_OFFSETS_LISTENER);
            String result = describe(log, fields[4]);
            log.close();
            return result;
        } catch (Throwable error) {
            return "{\"error\": " + quoted(error) + "}";
        }
    }

    /** A clock that does not move, so that no producer expires. */
    private static Time at(long now) {
        return (Time) Proxy.newProxyInstance(Time.class.getClassLoader(), new Class<?>[] {Time.class},
            (self, method, arguments) -> method.getName().equals("milliseconds") ? now : method.invoke(Time.SYSTEM, arguments));
    }

    private static String describe(UnifiedLog log, String timestamps) {
        List<String> producers = new ArrayList<>();
        for (Map.Entry<Long, Integer> entry : new TreeMap<>(log.activeProducersWithLastSequence()).entrySet()) {
            producers.add("[" + entry.getKey() + ", " + entry.getValue() + "]");
        }
        List<String> epochs = new ArrayList<>();
        log.leaderEpochCache().epochEntries().forEach(entry -> epochs.add("[" + entry.epoch() + ", " + entry.startOffset() + "]"));
        List<String> reads = new ArrayList<>();
        for (long offset = log.logStartOffset(); offset < Math.min(log.logEndOffset(), log.logStartOffset() + MAX_READS); offset++) {
            reads.add(read(log, offset));
        }
        List<String> times = new ArrayList<>();
        for (String timestamp : timestamps.isEmpty() ? new String[0] : timestamps.split(",")) {
            times.add(lookup(log, Long.parseLong(timestamp)));
        }
        return "{\"start\": " + log.logStartOffset() + ", \"end\": " + log.logEndOffset() + ", \"producers\": "
            + producers + ", \"epochs\": " + epochs + ", \"reads\": " + reads + ", \"times\": " + times + "}";
    }

    private static String read(UnifiedLog log, long offset) {
        try {
            FetchDataInfo result = log.read(offset, FETCH_BYTES, FetchIsolation.LOG_END, true);
            if (!(result.records instanceof FileRecords)) {
                return "[null, 0, 0]";
            }
            FileRecords records = (FileRecords) result.records;
            ByteBuffer data = ByteBuffer.allocate(records.sizeInBytes());
            records.readInto(data, 0);
            CRC32 crc = new CRC32();
            crc.update(data.array(), 0, data.limit());
            return "[" + (data.limit() >= 8 ? data.getLong(0) : "null") + ", " + data.limit() + ", " + crc.getValue() + "]";
        } catch (Throwable error) {
            return quoted(error);
        }
    }

    private static String lookup(UnifiedLog log, long timestamp) {
        try {
            OffsetResultHolder result = log.fetchOffsetByTimestamp(timestamp, Optional.empty());
            return result.timestampAndOffsetOpt().map(entry -> String.valueOf(entry.offset)).orElse("null");
        } catch (Throwable error) {
            return quoted(error);
        }
    }

    private static String quoted(Throwable error) {
        String text = error.getClass().getSimpleName() + ": " + error.getMessage();
        return "\"" + text.replace("\\", "\\\\").replace("\"", "\\\"").replace('\n', ' ') + "\"";
    }
}
