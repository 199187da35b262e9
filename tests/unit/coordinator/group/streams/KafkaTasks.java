import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataDelta;
import org.apache.kafka.coordinator.common.runtime.CoordinatorMetadataImage;
import org.apache.kafka.coordinator.group.generated.StreamsGroupTopologyValueJsonConverter;
import org.apache.kafka.coordinator.group.streams.MemberState;
import org.apache.kafka.coordinator.group.streams.MemberTaskOffsets;
import org.apache.kafka.coordinator.group.streams.StreamsGroupMember;
import org.apache.kafka.coordinator.group.streams.StreamsTopology;
import org.apache.kafka.coordinator.group.streams.TargetAssignmentBuilder;
import org.apache.kafka.coordinator.group.streams.TasksTupleWithEpochs;
import org.apache.kafka.coordinator.group.streams.assignor.StickyTaskAssignor;
import org.apache.kafka.coordinator.group.streams.topics.ConfiguredInternalTopic;
import org.apache.kafka.coordinator.group.streams.topics.ConfiguredSubtopology;
import org.apache.kafka.coordinator.group.streams.topics.ConfiguredTopology;
import org.apache.kafka.coordinator.group.streams.topics.InternalTopicManager;
import org.slf4j.helpers.NOPLogger;

/** Kafka's own assignor of tasks and configuration of topologies: a line of JSON for each line of JSON. */
public class KafkaTasks {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JsonNode request = JSON.readTree(line);
            Object result = request.has("topology") ? configure(request) : assign(request);
            System.out.println(JSON.writeValueAsString(result));
            System.out.flush();
        }
    }

    static <T> T convert(JsonNode node, TypeReference<T> type) {
        return JSON.convertValue(node, type);
    }

    static Map<String, Set<Integer>> tasks(JsonNode member, String role) {
        Map<String, Set<Integer>> tasks = convert(member.get(role), new TypeReference<TreeMap<String, Set<Integer>>>() { });
        return tasks == null ? Map.of() : tasks;
    }

    static Map<String, Map<Integer, Long>> offsets(JsonNode member, String name) {
        Map<String, Map<Integer, Long>> offsets =
            convert(member.get(name), new TypeReference<TreeMap<String, Map<Integer, Long>>>() { });
        return offsets == null ? Map.of() : offsets;
    }

    static Object assign(JsonNode group) throws Exception {
        Map<String, StreamsGroupMember> members = new LinkedHashMap<>();
        Map<String, MemberTaskOffsets> taskOffsets = new HashMap<>();
        group.get("members").properties().forEach(entry -> {
            JsonNode member = entry.getValue();
            Map<String, Map<Integer, Integer>> active = new HashMap<>();
            tasks(member, "active").forEach((id, partitions) -> active.put(id, new HashMap<>()));
            tasks(member, "active").forEach((id, partitions) -> partitions.forEach(each -> active.get(id).put(each, 1)));
            members.put(entry.getKey(), new StreamsGroupMember(
                entry.getKey(), 1, 1, MemberState.STABLE, Optional.empty(), Optional.empty(), "client", "host", 1000, 1,
                member.get("process").asText(), Optional.empty(), Map.of(),
                new TasksTupleWithEpochs(active, tasks(member, "standby"), Map.of()), TasksTupleWithEpochs.EMPTY));
            taskOffsets.put(entry.getKey(), new MemberTaskOffsets(offsets(member, "offsets"), Map.of()));
        });
        TreeMap<String, ConfiguredSubtopology> subtopologies = new TreeMap<>();
        group.get("subtopologies").properties().forEach(entry -> {
            int count = entry.getValue().get(0).asInt();
            ConfiguredInternalTopic changelog = new ConfiguredInternalTopic("changelog", count, Optional.empty(), Map.of());
            subtopologies.put(entry.getKey(), new ConfiguredSubtopology(
                count, Set.of("source"), Map.of(), Set.of(),
                entry.getValue().get(1).asInt() == 0 ? Map.of() : Map.of("changelog", changelog)));
        });
        Map<String, Object> result = new TreeMap<>();
        new TargetAssignmentBuilder(
                "group", 2, new StickyTaskAssignor(), Map.of("num.standby.replicas", group.get("standbys").asText()))
            .withTime(Time.SYSTEM)
            .withMembers(members)
            .withTaskOffsets(taskOffsets)
            .withTargetAssignment(Map.of())
            .withTopology(new ConfiguredTopology(1, 1L, Optional.of(subtopologies), Map.of(), Optional.empty()))
            .build().targetAssignment().forEach((name, target) ->
                result.put(name, List.of(sorted(target.activeTasks()), sorted(target.standbyTasks()))));
        return result;
    }

    static Map<String, Set<Integer>> sorted(Map<String, Set<Integer>> tasks) {
        Map<String, Set<Integer>> sorted = new TreeMap<>();
        tasks.forEach((id, partitions) -> sorted.put(id, new TreeSet<>(partitions)));
        return sorted;
    }

    static Object configure(JsonNode request) {
        StreamsTopology topology = StreamsTopology.fromRecord(
            StreamsGroupTopologyValueJsonConverter.read(request.get("topology"), (short) 0));
        Map<String, Topic> topics = new HashMap<>();
        request.get("topics").properties().forEach(entry ->
            topics.put(entry.getKey(), new Topic(entry.getKey(), Uuid.ZERO_UUID, entry.getValue().asInt())));
        ConfiguredTopology configured;
        Map<String, Object> result = new TreeMap<>();
        try {
            configured = InternalTopicManager.configureTopics(
                NOPLogger.NOP_LOGGER, "group", "member", 1, topology, new Image(topics), Time.SYSTEM);
        } catch (RuntimeException e) {
            result.put("error", e.toString());
            return result;
        }
        configured.topicConfigurationException().ifPresent(e ->
            result.put("status", List.of(e.status().code(), e.getMessage())));
        configured.subtopologies().ifPresent(subtopologies -> {
            Map<String, Object> tasks = new TreeMap<>();
            subtopologies.forEach((id, subtopology) -> tasks.put(id, subtopology.numberOfTasks()));
            result.put("tasks", tasks);
        });
        Map<String, Object> created = new TreeMap<>();
        configured.internalTopicsToBeCreated().forEach((name, topic) -> {
            Map<String, String> configs = new TreeMap<>();
            topic.configs().forEach(config -> configs.put(config.name(), config.value()));
            created.put(name, List.of(topic.numPartitions(), topic.replicationFactor(), configs));
        });
        result.put("create", created);
        result.put("required", new TreeSet<>(topology.requiredTopics()));
        return result;
    }

    record Topic(String name, Uuid id, int partitionCount) implements CoordinatorMetadataImage.TopicMetadata {
        @Override
        public List<String> partitionRacks(int partition) {
            return List.of();
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
            return Optional.empty();
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
}
