import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataDelta;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataImage;
import org.apache.kafka.coordinator.group.Utils;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;
import org.apache.kafka.coordinator.group.modern.TargetAssignmentBuilder;
import org.apache.kafka.coordinator.group.modern.consumer.ConsumerGroupMember;

/** Kafka's own assignors and topic hashes: a line of results for each line of input, in the format of groups.py. */
public class KafkaAssignors {
    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] fields = line.split("\\|", -1);
            switch (fields[0]) {
                case "hash" -> System.out.println(hash(fields));
                case "time" -> System.out.println(time(Integer.parseInt(fields[1]), Arrays.copyOfRange(fields, 2, fields.length)));
                default -> System.out.println(format(new Group(fields).assign()));
            }
            System.out.flush();
        }
    }

    static Uuid topicId(int index) {
        long part = (index * 37L & 0xff) * 0x0101010101010101L;
        return new Uuid(part, part ^ index);
    }

    static class Group {
        final ConsumerGroupPartitionAssignor assignor;
        final Map<Uuid, Integer> counts = new HashMap<>();
        final Map<String, MemberSubscriptionAndAssignmentImpl> members = new LinkedHashMap<>();
        final Map<Uuid, Map<Integer, String>> inverted = new HashMap<>();
        final Set<Set<Uuid>> subscriptions = new HashSet<>();

        Group(String[] fields) {
            assignor = fields[0].equals("range") ? new RangeAssignor() : new UniformAssignor();
            String[] topics = fields[1].split(",");
            for (int index = 0; index < topics.length; index++) {
                counts.put(topicId(index), Integer.parseInt(topics[index]));
            }
            for (String member : Arrays.copyOfRange(fields, 2, fields.length)) {
                String[] parts = member.split(";", -1);
                Set<Uuid> subscribed = new HashSet<>();
                for (String index : split(parts[2])) subscribed.add(topicId(Integer.parseInt(index)));
                subscriptions.add(subscribed);
                Map<Uuid, Set<Integer>> target = new HashMap<>();
                for (String topic : split(parts[3])) {
                    Uuid id = topicId(Integer.parseInt(topic.split("=")[0]));
                    Set<Integer> partitions = new HashSet<>();
                    for (String partition : topic.split("=")[1].split("\\.")) {
                        partitions.add(Integer.parseInt(partition));
                        inverted.computeIfAbsent(id, key -> new HashMap<>()).put(Integer.parseInt(partition), parts[0]);
                    }
                    target.put(id, partitions);
                }
                Optional<String> instanceId = parts[1].isEmpty() ? Optional.empty() : Optional.of(parts[1]);
                members.put(parts[0], new MemberSubscriptionAndAssignmentImpl(
                    Optional.empty(), instanceId, subscribed, new Assignment(target)));
            }
        }

        SubscriptionType type() {
            return subscriptions.size() == 1 ? SubscriptionType.HOMOGENEOUS : SubscriptionType.HETEROGENEOUS;
        }

        TargetAssignmentBuilder.ConsumerTargetAssignmentBuilder builder() {
            Map<String, ConsumerGroupMember> groupMembers = new LinkedHashMap<>();
            Map<String, Assignment> targets = new HashMap<>();
            members.forEach((name, member) -> {
                List<String> topics = member.subscribedTopicIds().stream().map(Uuid::toString).toList();
                groupMembers.put(name, new ConsumerGroupMember.Builder(name).setSubscribedTopicNames(topics).build());
                targets.put(name, new Assignment(member.partitions()));
            });
            Map<String, Topic> topics = new HashMap<>();
            counts.forEach((id, count) ->
                topics.put(id.toString(), new Topic(id.toString(), id, Collections.nCopies(count, List.of()))));
            return new TargetAssignmentBuilder.ConsumerTargetAssignmentBuilder("group", 2, assignor)
                .withTime(Time.SYSTEM)
                .withMembers(groupMembers)
                .withSubscriptionType(type())
                .withTargetAssignment(targets)
                .withInvertedTargetAssignment(inverted)
                .withMetadataImage(new Image(topics));
        }

        Map<String, MemberAssignment> assign() {
            SubscribedTopicDescriber topics = new SubscribedTopicDescriber() {
                @Override
                public int numPartitions(Uuid id) {
                    return counts.getOrDefault(id, -1);
                }

                @Override
                public Set<String> racksForPartition(Uuid id, int partition) {
                    throw new AssertionError("an assignor asks for racks");
                }
            };
            return assignor.assign(new GroupSpecImpl(members, type(), inverted), topics).members();
        }
    }

    static String[] split(String list) {
        return list.isEmpty() ? new String[0] : list.split(",");
    }

    static String format(Map<String, MemberAssignment> assignment) {
        Map<Uuid, Integer> indexes = new HashMap<>();
        for (int index = 0; index < 256; index++) indexes.put(topicId(index), index);
        List<String> members = new ArrayList<>();
        new TreeMap<>(assignment).forEach((member, target) -> {
            Map<Integer, String> topics = new TreeMap<>();
            target.partitions().forEach((id, partitions) -> topics.put(
                indexes.get(id),
                String.join(".", new TreeSet<>(partitions).stream().map(String::valueOf).toList())));
            List<String> texts = new ArrayList<>();
            topics.forEach((index, partitions) -> texts.add(index + "=" + partitions));
            members.add(member + ";" + String.join(",", texts));
        });
        return String.join("|", members);
    }

    /** The microseconds of the first computation of a target, with its records, and the median of all. */
    static String time(int rounds, String[] fields) {
        Group group = new Group(fields);
        TargetAssignmentBuilder.ConsumerTargetAssignmentBuilder builder = group.builder();
        long[] times = new long[rounds];
        for (int round = 0; round < rounds; round++) {
            long start = System.nanoTime();
            builder.build();
            times[round] = System.nanoTime() - start;
        }
        long first = times[0];
        Arrays.sort(times);
        return first / 1000 + " " + times[rounds / 2] / 1000;
    }

    record Topic(String name, Uuid id, List<List<String>> racks) implements CoordinatorMetadataImage.TopicMetadata {
        @Override
        public int partitionCount() {
            return racks.size();
        }

        @Override
        public List<String> partitionRacks(int partition) {
            return new ArrayList<>(racks.get(partition));
        }
    }

    record Image(Map<String, Topic> topics) implements CoordinatorMetadataImage {
        @Override
        public Set<Uuid> topicIds() {
            return Set.of();
        }

        @Override
        public Set<String> topicNames() {
            return topics.keySet();
        }

        @Override
        public Optional<CoordinatorMetadataImage.TopicMetadata> topicMetadata(String name) {
            return Optional.ofNullable(topics.get(name));
        }

        @Override
        public Optional<CoordinatorMetadataImage.TopicMetadata> topicMetadata(Uuid id) {
            return topicMetadata(id.toString());
        }

        @Override
        public CoordinatorMetadataDelta emptyDelta() {
            return null;
        }

        @Override
        public long version() {
            return 0;
        }

        @Override
        public boolean isEmpty() {
            return false;
        }
    }

    /** Each topic is name;racks of partition,...: the racks of a partition are joined by dots. */
    static String hash(String[] fields) {
        Map<String, Topic> topics = new HashMap<>();
        for (int index = 1; index < fields.length; index++) {
            String[] parts = fields[index].split(";", -1);
            List<List<String>> racks = new ArrayList<>();
            for (String partition : parts[1].split(",", -1)) {
                racks.add(partition.isEmpty() ? Collections.emptyList() : Arrays.asList(partition.split("\\.")));
            }
            topics.put(parts[0], new Topic(parts[0], topicId(index - 1), racks));
        }
        Map<String, Long> hashes = new HashMap<>();
        topics.keySet().forEach(name -> hashes.put(name, Utils.computeTopicHash(name, new Image(topics))));
        return new TreeMap<>(hashes) + " " + Utils.computeGroupHash(hashes);
    }
}
