"""The cluster, its log directories, and what it speaks."""

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
