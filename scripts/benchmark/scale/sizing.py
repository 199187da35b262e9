"""What one broker needs: memory, processor time and disk, idle and with topics, connections and members.

Each case has a broker of its own, and measures it once the load is there and has settled. Figures of the processor are
milliseconds per second: 1,000 is one core.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random

from kbroker.client.admin import TopicSpec, create_topics
from kbroker.client.cluster import ClusterClient
from kbroker.client.producer import BlockingProducer
from kbroker.runtime.system import raise_descriptor_limit
from scripts.benchmark.clients import Connection
from scripts.benchmark.frame import (
    add_options,
    is_chosen,
    number,
    parser,
    publish,
    running,
    scratch_directory,
    today,
    write_json,
)
from scripts.benchmark.groups.connections import Connections
from scripts.benchmark.groups.members import ConsumerMember
from scripts.benchmark.peers import Kbroker

HEADING = "| a broker with | resident MiB | processor, ms/s | disk | open files |\n|---|---|---|---|---|"
SETTLE_S, IDLE_S = 5.0, 10.0
# Until the first checkpoints after the last write.
CHECKPOINT_S = 85.0
MANY = 1000
# The interval of heartbeats (group.consumer.heartbeat.interval.ms).
HEARTBEAT_S = 5.0
RECORDS, RECORD_BYTES = 200_000, 100
SAME = (b'{"customer": "c", "amount": 1, ' * 2)[: RECORD_BYTES // 2]
# Codecs of the protocol.
CODECS = {"no": 0, "lz4": 3, "zstd": 4}

Figures = dict[str, float]


def watch(broker: Kbroker, idle: Callable[[], object] = lambda: time.sleep(IDLE_S)) -> Figures:
    """Return the figures of a broker while `idle` runs."""
    before, begin = broker.processor_time().total, time.monotonic()
    idle()
    used_s = broker.processor_time().total - before
    assert broker.process is not None
    return {
        "resident": broker.resident_mib(),
        "processor": 1000 * used_s / (time.monotonic() - begin),
        "disk": float(disk_bytes(broker)),
        "files": float(len(list(Path(f"/proc/{broker.process.pid}/fd").iterdir()))),
    }


def disk_bytes(broker: Kbroker) -> int:
    """Return what the files of the data directory occupy."""
    return sum(path.stat().st_blocks * 512 for path in (broker.directory / "data").rglob("*") if path.is_file())


def client(broker: Kbroker) -> ClusterClient:
    return ClusterClient([("127.0.0.1", broker.port)], client_id="bench")


def nothing(broker: Kbroker, settle_s: float = SETTLE_S) -> Figures:
    time.sleep(settle_s)
    return watch(broker)


def with_topics(topics: int, partitions: int) -> Callable[[Kbroker], Figures]:
    """Return a case with a record in each partition."""

    def measure(broker: Kbroker) -> Figures:
        names = [f"topic-{index}" for index in range(topics)]
        with client(broker) as cluster:
            for name in names:
                create_topics(cluster, {name: TopicSpec(partitions)})
            producer = BlockingProducer(cluster)
            for name in names:
                for partition in range(partitions):
                    producer.add(name, None, b"x" * RECORD_BYTES, partition=partition)
            producer.flush()
        return nothing(broker, CHECKPOINT_S)

    return measure


def with_connections(broker: Kbroker) -> Figures:
    with ExitStack() as stack:
        for _ in range(MANY):
            stack.callback(Connection(broker.port).close)
        return nothing(broker)


def with_members(broker: Kbroker) -> Figures:
    with client(broker) as cluster:
        create_topics(cluster, {"work": TopicSpec(MANY)})
        # The internal topic is created when the coordinator is looked up.
        cluster.find_coordinator("group")
    members = [ConsumerMember("group", "work") for _ in range(MANY)]
    connections = Connections(broker.port)
    connections.run(members, lambda: all(each.is_settled and each.partitions for each in members), HEARTBEAT_S)
    end = time.monotonic() + IDLE_S
    return watch(broker, lambda: connections.run(members, lambda: time.monotonic() > end, HEARTBEAT_S))


def with_records(codec: int) -> Callable[[Kbroker], Figures]:
    """Return a case with records whose values are like JSON: half of each is the same in all, half are digits."""

    def measure(broker: Kbroker) -> Figures:
        before = disk_bytes(broker)
        with client(broker) as cluster:
            create_topics(cluster, {"records": TopicSpec(1)})
            producer = BlockingProducer(cluster, codec=codec)
            random = Random(0)
            for _ in range(RECORDS):
                producer.add("records", None, SAME + random.randbytes(RECORD_BYTES // 4).hex().encode())
            producer.flush()
        figures = nothing(broker)
        return {**figures, "disk": (figures["disk"] - before) / RECORDS}

    return measure


CASES: dict[str, Callable[[Kbroker], Figures]] = {
    "nothing": nothing,
    "10 topics of 10 partitions": with_topics(10, 10),
    "100 topics of 10 partitions": with_topics(100, 10),
    "1,000 topics of 1 partition": with_topics(1000, 1),
    "1,000 connections": with_connections,
    "1,000 members of a group, 1,000 partitions": with_members,
    **{
        f"{RECORDS:,} records of {RECORD_BYTES} bytes, {name} compression": with_records(codec)
        for name, codec in CODECS.items()
    },
}


def row(name: str, figures: Figures) -> str:
    disk = figures["disk"]
    text = f"{disk:.1f} bytes per record" if "records" in name else f"{disk / 1024:,.0f} KiB"
    cells = [name, number(figures["resident"]), number(figures["processor"]), text, f"{figures['files']:,.0f}"]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    options = parser("--sizing", __doc__, 1)
    add_options(options)
    args = options.parse_args()
    raise_descriptor_limit()
    figures: dict[str, Figures] = {}
    with scratch_directory() as base:
        for number_, (name, measure) in enumerate(CASES.items()):
            if is_chosen(name, args.only):
                broker = Kbroker(base / str(number_))
                with running(broker):
                    figures[name] = measure(broker)
                publish(args, "sizing", "--sizing", HEADING, [row(name, figures[name])], today())
    write_json(args, figures=figures)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
