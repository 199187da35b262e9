"""AlterPartitionReassignments, UnregisterBroker, AlterReplicaLogDirs: what a single node does."""

from collections.abc import Sequence

from tests.compat.wire.story import Story, of_api

UNKNOWN_NODE = 999
Targets = dict[int, Sequence[int] | None]


@of_api("AlterPartitionReassignments", "cluster")
def alter_partition_reassignments(story: Story) -> None:
    topic, other = story.create_topic("t", 2), story.create_topic("u")
    node = story.cluster.node[0]

    def request(step: str, *topics: tuple[str, Targets], **fields: object) -> None:
        rows = [
            {
                "name": name,
                "partitions": [{"partition_index": index, "replicas": target} for index, target in targets.items()],
            }
            for name, targets in topics
        ]
        story.request(step, topics=rows, timeout=10_000, **fields)

    request("the same replicas", (topic, {0: [node], 1: [node]}), (other, {0: [node]}))
    request("no topics")
    request("no partitions", (topic, {}))
    request("nothing to cancel", (topic, {0: None}))
    request("no replicas", (topic, {0: []}))
    request("a broker twice", (topic, {0: [node, node]}))
    request("an unknown broker", (topic, {0: [UNKNOWN_NODE]}), (other, {0: [node]}))
    request("an unknown broker too", (topic, {0: [node, UNKNOWN_NODE]}))
    request("a negative broker", (topic, {0: [-1, node]}))
    request("unknown partitions", (topic, {7: [node], -1: None}))
    request("unknown topics", (story.name("unknown"), {0: [node]}), ("a b", {0: None}), ("", {0: []}))
    request("a topic twice", (topic, {0: [node]}), (topic, {0: [node], 1: None}))
    if story.version >= 1:
        request("the same factor", (topic, {0: [node]}), allow_replication_factor_change=False)
        request("an invalid factor", (topic, {0: []}), allow_replication_factor_change=False)
        request("nothing to cancel, the same factor", (topic, {0: None}), allow_replication_factor_change=False)
    for timeout in (0, -1):
        topics = [{"name": topic, "partitions": [{"partition_index": 0, "replicas": [node]}]}]
        story.request(f"timeout {timeout}", topics=topics, timeout=timeout)


@of_api("UnregisterBroker", "cluster")
def unregister_broker(story: Story) -> None:
    for broker in (UNKNOWN_NODE, -1):
        story.request(f"broker {broker}", broker_id=broker)


@of_api("AlterReplicaLogDirs", "cluster")
def alter_replica_log_dirs(story: Story) -> None:
    topic, other = story.create_topic("t", 2), story.create_topic("u")
    long_name = story.create_topic("n".ljust(200, "n"))
    described = story.call("DescribeLogDirs", topics=None)
    (directory,) = (result["log_dir"] for result in described["results"])

    def request(step: str, *dirs: tuple[str, dict[str, list[int]]]) -> None:
        rows = [
            {"path": path, "topics": [{"name": name, "partitions": indexes} for name, indexes in topics.items()]}
            for path, topics in dirs
        ]
        story.request(step, dirs=rows)

    request("the directory of the partition", (directory, {topic: [0]}))
    request("two partitions", (directory, {topic: [0, 1]}))
    request("two topics", (directory, {topic: [1], other: [0]}))
    request("no directories")
    request("no topics", (directory, {}))
    request("no partitions", (directory, {topic: []}))
    request("another directory", ("/nowhere", {topic: [0]}))
    request("a relative directory", ("nowhere", {topic: [0]}))
    request("no name", ("", {topic: [0]}))
    request("an unknown partition", (directory, {topic: [7]}))
    request("an unknown topic", (directory, {story.name("unknown"): [0]}))
    request("an unknown topic in another directory", ("/nowhere", {story.name("unknown"): [0]}))
    request("a name that is too long", (directory, {long_name: [0]}))
