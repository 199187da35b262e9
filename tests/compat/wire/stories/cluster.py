"""ApiVersions, DescribeCluster, DescribeLogDirs, ListPartitionReassignments, DescribeQuorum, ElectLeaders."""

from tests.compat.wire import kio_messages
from tests.compat.wire.batches import values
from tests.compat.wire.story import Story, of_api

LATER = 99


@of_api("ApiVersions", "cluster")
def api_versions(story: Story) -> None:
    name = {"client_software_name": "wire", "client_software_version": "1"}
    story.request("all", **name)
    if story.version >= 3:
        story.request("no name", client_software_name="", client_software_version="1")
        story.request("no version", client_software_name="wire", client_software_version="")
        story.request("a bad name", client_software_name="-wire", client_software_version="1")
        story.request("a name with a space", client_software_name="wi re", client_software_version="1")
    if story.version >= 5:
        node_id, cluster_id = story.cluster.node[0], story.cluster.cluster_id
        for title, cluster, node in (
            ("its cluster and node", cluster_id, node_id),
            ("its cluster", cluster_id, -1),
            ("another cluster", "another", node_id),
            ("an empty cluster id", "", -1),
            ("another node", cluster_id, node_id + 1),
            ("a negative node", None, -2),
        ):
            fields = story.try_call("ApiVersions", **name, cluster_id=cluster, node_id=node)
            story.record(title, error_code=fields["error_code"])
        story.request("another cluster and no name", client_software_name="", cluster_id="another", node_id=node_id)
    if story.version == 0:
        unsupported(story)


def unsupported(story: Story) -> None:
    """Send unknown versions: the broker closes the connection, except for ApiVersions (KIP-511)."""
    later = kio_messages.encode_request_frame(kio_messages.request("ApiVersions", 4, {}), 1, "wire")
    story.request_frame("ApiVersions in a later version", _with_version(later, LATER), "ApiVersions", 0)
    story.request_frame("ApiVersions in a negative version", _with_version(later, -1), "ApiVersions", 0)
    for api in ("Produce", "Fetch", "Metadata", "CreateTopics", "Heartbeat"):
        version = story.cluster.highest(api)
        frame = kio_messages.encode_request_frame(kio_messages.request(api, version, {}), 1, "wire")
        for unknown in (LATER, -1):
            story.request_frame(f"{api} in version {unknown}", _with_version(frame, unknown), api, version)
    frame = bytearray(kio_messages.encode_request_frame(kio_messages.request("Heartbeat", 0, {}), 1, "wire"))
    for key in (999, -1, 4):
        frame[4:6] = key.to_bytes(2, "big", signed=True)
        story.request_frame(f"api key {key}", bytes(frame), "Heartbeat", 0)


def _with_version(frame: bytes, version: int) -> bytes:
    return frame[:6] + version.to_bytes(2, "big", signed=True) + frame[8:]


@of_api("DescribeCluster", "cluster")
def describe_cluster(story: Story) -> None:
    story.request("the cluster")
    story.request("with operations", include_cluster_authorized_operations=True)
    if story.version >= 1:
        story.request("controllers", endpoint_type=2)
        story.request("no such endpoint", endpoint_type=3)
    if story.version >= 2:
        story.request("fenced brokers too", include_fenced_brokers=True)


@of_api("DescribeLogDirs", "cluster")
def describe_log_dirs(story: Story) -> None:
    topic, other = story.create_topic("t", 2), story.create_topic("u")
    story.produce(topic, values("a", "b"), values("c"))
    story.produce(other, values("d"))

    def request(step: str, *topics: tuple[str, list[int]]) -> None:
        story.request(step, topics=[{"topic": name, "partitions": partitions} for name, partitions in topics])

    request("a partition", (topic, [0]))
    request("two partitions", (topic, [0, 1]))
    request("two topics", (topic, [0]), (other, [0]))
    request("unknown partition", (topic, [7]))
    request("unknown topic", (story.name("unknown"), [0]))
    request("no partitions", (topic, []))
    request("no topics")
    story.request_own("all", topics=None)


@of_api("ListPartitionReassignments", "cluster")
def list_partition_reassignments(story: Story) -> None:
    topic = story.create_topic("t", 2)

    def request(step: str, *topics: tuple[str, list[int]]) -> None:
        rows = [{"name": name, "partition_indexes": partitions} for name, partitions in topics]
        story.request(step, topics=rows, timeout=10_000)

    story.request("all", topics=None, timeout=10_000)
    story.request("no time", topics=None, timeout=0)
    story.request("negative time", topics=None, timeout=-1)
    request("no topics")
    request("a topic", (topic, [0, 1]))
    request("no partitions", (topic, []))
    request("unknown partitions", (topic, [7, -1]))
    request("unknown topic", (story.name("unknown"), [0]))
    request("invalid topics", ("a b", [0]), ("", [0]))
    request("a topic twice", (topic, [0]), (topic, [0]))


@of_api("DescribeQuorum", "cluster")
def describe_quorum(story: Story) -> None:
    """Offsets, epochs and the port of the controller differ between brokers."""
    topic = story.create_topic("t")
    story.mask("high_watermark", "log_end_offset", "leader_epoch", "port")
    metadata = ("__cluster_metadata", [0])

    def request(step: str, *topics: tuple[str, list[int]]) -> None:
        rows = [
            {"topic_name": name, "partitions": [{"partition_index": index} for index in partitions]}
            for name, partitions in topics
        ]
        story.request(step, topics=rows)

    request("the quorum", metadata)
    request("no topics")
    request("no partitions", ("__cluster_metadata", []))
    request("another partition", ("__cluster_metadata", [1]))
    request("a negative partition", ("__cluster_metadata", [-1]))
    request("two partitions", ("__cluster_metadata", [0, 1]))
    request("the partition twice", ("__cluster_metadata", [0, 0]))
    request("the topic twice", metadata, metadata)
    request("another topic too", metadata, (topic, [0]))
    request("unknown topics", (story.name("unknown"), []), (story.name("other"), [0, 1]))
    request("an empty name", ("", [0]))


PREFERRED, UNCLEAN = 0, 1


@of_api("ElectLeaders", "cluster")
def elect_leaders(story: Story) -> None:
    topic, other = story.create_topic("t", 2), story.create_topic("u")

    def request(step: str, *topics: tuple[str, list[int]]) -> None:
        rows = [{"topic": name, "partitions": partitions} for name, partitions in topics]
        for election_type in (PREFERRED, UNCLEAN, 2, -1)[: 4 if story.version >= 1 else 1]:
            fields = {"election_type": election_type} if story.version >= 1 else {}
            story.request(f"{step}, type {election_type}", topic_partitions=rows, timeout=10_000, **fields)

    request("partitions", (topic, [1, 0]), (other, [0]))
    request("no topics")
    request("no partitions", (topic, []))
    request("an unknown partition", (topic, [2, -1, 0]))
    request("an unknown topic", (story.name("unknown"), [0]), (topic, [0]))
    request("a partition twice", (topic, [0, 0]))
    story.request_own("all partitions", topic_partitions=None, timeout=10_000)
