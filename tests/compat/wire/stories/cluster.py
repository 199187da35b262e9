"""The cluster, its log directories, its metadata quorum, reassignments, and what it speaks."""

from tests.compat.wire import entities
from tests.compat.wire.batches import values
from tests.compat.wire.play import Play

LATER = 99


def api_versions(play: Play) -> None:
    name = {"client_software_name": "wire", "client_software_version": "1"}
    play.ask("all", **name)
    if play.version >= 3:
        play.ask("no name", client_software_name="", client_software_version="1")
        play.ask("no version", client_software_name="wire", client_software_version="")
        play.ask("a bad name", client_software_name="-wire", client_software_version="1")
        play.ask("a name with a space", client_software_name="wi re", client_software_version="1")
    if play.version == 0:
        unsupported(play)


def unsupported(play: Play) -> None:
    """What happens to versions that do not exist: the connection closes, but for ApiVersions (KIP-511)."""
    later = entities.encode_frame(entities.request("ApiVersions", 4, {}), 1, "wire")
    play.frame("ApiVersions in a later version", _with_version(later, LATER), "ApiVersions", 0)
    play.frame("ApiVersions in a negative version", _with_version(later, -1), "ApiVersions", 0)
    for api in ("Produce", "Fetch", "Metadata", "CreateTopics", "Heartbeat"):
        version = play.cluster.highest(api)
        frame = entities.encode_frame(entities.request(api, version, {}), 1, "wire")
        for what in (LATER, -1):
            play.frame(f"{api} in version {what}", _with_version(frame, what), api, version)
    frame = bytearray(entities.encode_frame(entities.request("Heartbeat", 0, {}), 1, "wire"))
    for key in (999, -1, 4):
        frame[4:6] = key.to_bytes(2, "big", signed=True)
        play.frame(f"api key {key}", bytes(frame), "Heartbeat", 0)


def _with_version(frame: bytes, version: int) -> bytes:
    return frame[:6] + version.to_bytes(2, "big", signed=True) + frame[8:]


def describe_cluster(play: Play) -> None:
    play.ask("the cluster")
    play.ask("with operations", include_cluster_authorized_operations=True)
    if play.version >= 1:
        play.ask("controllers", endpoint_type=2)
        play.ask("no such endpoint", endpoint_type=3)
    if play.version >= 2:
        play.ask("fenced brokers too", include_fenced_brokers=True)


def describe_log_dirs(play: Play) -> None:
    topic, other = play.topic("t", 2), play.topic("u")
    play.produce(topic, values("a", "b"), values("c"))
    play.produce(other, values("d"))

    def ask(step: str, *topics: tuple[str, list[int]]) -> None:
        play.ask(step, topics=[{"topic": name, "partitions": partitions} for name, partitions in topics])

    ask("a partition", (topic, [0]))
    ask("two partitions", (topic, [0, 1]))
    ask("two topics", (topic, [0]), (other, [0]))
    ask("unknown partition", (topic, [7]))
    ask("unknown topic", (play.name("unknown"), [0]))
    ask("no partitions", (topic, []))
    ask("no topics")
    play.ask_own("all", topics=None)


def list_partition_reassignments(play: Play) -> None:
    topic = play.topic("t", 2)

    def ask(step: str, *topics: tuple[str, list[int]]) -> None:
        rows = [{"name": name, "partition_indexes": partitions} for name, partitions in topics]
        play.ask(step, topics=rows, timeout=10_000)

    play.ask("all", topics=None, timeout=10_000)
    play.ask("no time", topics=None, timeout=0)
    play.ask("negative time", topics=None, timeout=-1)
    ask("no topics")
    ask("a topic", (topic, [0, 1]))
    ask("no partitions", (topic, []))
    ask("unknown partitions", (topic, [7, -1]))
    ask("unknown topic", (play.name("unknown"), [0]))
    ask("invalid topics", ("a b", [0]), ("", [0]))
    ask("a topic twice", (topic, [0]), (topic, [0]))


def describe_quorum(play: Play) -> None:
    """How many metadata changes and elections there were, and where the controller listens, is each broker's own."""
    topic = play.topic("t")
    play.mask("high_watermark", "log_end_offset", "leader_epoch", "port")
    metadata = ("__cluster_metadata", [0])

    def ask(step: str, *topics: tuple[str, list[int]]) -> None:
        rows = [
            {"topic_name": name, "partitions": [{"partition_index": index} for index in partitions]}
            for name, partitions in topics
        ]
        play.ask(step, topics=rows)

    ask("the quorum", metadata)
    ask("no topics")
    ask("no partitions", ("__cluster_metadata", []))
    ask("another partition", ("__cluster_metadata", [1]))
    ask("a negative partition", ("__cluster_metadata", [-1]))
    ask("two partitions", ("__cluster_metadata", [0, 1]))
    ask("the partition twice", ("__cluster_metadata", [0, 0]))
    ask("the topic twice", metadata, metadata)
    ask("another topic too", metadata, (topic, [0]))
    ask("unknown topics", (play.name("unknown"), []), (play.name("other"), [0, 1]))
    ask("an empty name", ("", [0]))
