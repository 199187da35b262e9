"""An Apache Kafka and two kbrokers, and a MirrorMaker 2 between them that is killed in the middle of its work.

`queue` and `other` are kbrokers. One process of MirrorMaker runs all three flows, with exactly-once support: each
record arrives once, although the process is killed.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from confluent_kafka import TopicPartition

from tests.compat.mirror.contents import Content, consumer, contents, create_topic, flush, producer, write_all_kinds
from tests.compat.mirror.mirror_maker import PROMPT, PROMPT_WORKER, SHORT_SESSION, MirrorMaker, QuickKafka
from tests.compat.support import BrokerProcess, eventually

PARTITIONS = 3
TOPICS = {
    "records": (PARTITIONS, {"compression.type": "zstd", "retention.ms": "777600000"}),
    "compacted": (1, {"cleanup.policy": "compact", "segment.ms": "300", "min.cleanable.dirty.ratio": "0.01"}),
    "transactions": (2, {}),
    "altered": (1, {"retention.bytes": "5000000"}),
}
# Keys and records of each key in the compacted topic; one key in four is deleted by a tombstone.
KEYS, VERSIONS = 20, 5
SERVER = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.cleaner.backoff.ms": "100",
}
INTERNAL = ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic", "offset.storage", "status.storage")


class Flow(NamedTuple):
    """The names of two clusters, the first of which is mirrored to the second."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}->{self.target}"

    def remote(self, topic: str) -> str:
        """Return the name of a mirrored topic."""
        return f"{self.source}.{topic}"


FLOWS = (Flow("kafka", "queue"), Flow("queue", "kafka"), Flow("queue", "other"))
SOURCES = ("kafka", "queue")


class Server(Protocol):
    @property
    def bootstrap(self) -> str: ...


class World:
    """`java`: a JVM with MirrorMaker's classes."""

    def __init__(self, servers: Mapping[str, Server], directory: Path, java: Any) -> None:
        self._servers = servers
        self._java = java
        self.maker = MirrorMaker(directory, self._properties())

    def bootstrap(self, cluster: str) -> str:
        return self._servers[cluster].bootstrap

    def _properties(self) -> dict[str, str]:
        properties = {
            "clusters": ", ".join(self._servers),
            "emit.heartbeats.enabled": "false",
            "heartbeats.replication.enabled": "false",
            "sync.group.offsets.enabled": "true",
            "dedicated.mode.enable.internal.rest": "true",
            "listeners": "http://127.0.0.1:0",
            "replication.factor": "1",
            "config.storage.replication.factor": "1",
            **{f"{topic}.replication.factor": "1" for topic in INTERNAL},
            **PROMPT,
        }
        worker = {**PROMPT_WORKER, **SHORT_SESSION, "exactly.once.source.support": "enabled"}
        for cluster, server in self._servers.items():
            properties[f"{cluster}.bootstrap.servers"] = server.bootstrap
            properties[f"{cluster}.consumer.isolation.level"] = "read_committed"
            properties |= {f"{cluster}.{name}": value for name, value in worker.items()}
        for flow in FLOWS:
            properties[f"{flow}.enabled"] = "true"
            properties[f"{flow}.topics"] = ", ".join(TOPICS)
            properties[f"{flow}.groups"] = f"{flow.source}-.*"
        return properties

    def fill(self) -> None:
        """Write to both sources, and start MirrorMaker; kill it and start it again while it copies and more is written.

        Returns as soon as everything is written: what MirrorMaker has copied until then is not known.
        """
        for source in SOURCES:
            bootstrap = self.bootstrap(source)
            for topic, (partitions, configs) in TOPICS.items():
                create_topic(bootstrap, topic, partitions, configs)
            write_all_kinds(bootstrap, "records", PARTITIONS, "before", 20)
            _write_versions(bootstrap)
            _write_transactions(bootstrap)
            _commit_middle(bootstrap, f"{source}-half")
        self.maker.start()
        for flow in FLOWS:
            self.wait_for_first(flow)
        for source in SOURCES:
            write_all_kinds(self.bootstrap(source), "records", PARTITIONS, "while it is killed", 200)
        self.maker.kill()
        for server in self._servers.values():
            self._abort_transactions(server.bootstrap)
        self.maker.start()
        for source in SOURCES:
            write_all_kinds(self.bootstrap(source), "records", PARTITIONS, "after", 10)

    def _abort_transactions(self, bootstrap: str) -> None:
        """Abort what the killed process has left open. Its successor waits for that, by default for a minute."""
        with closing(self._java.org.apache.kafka.clients.admin.Admin.create(self._settings(bootstrap))) as admin:
            ids = self._java.java.util.ArrayList()
            for transaction in admin.listTransactions().all().get():
                if transaction.state().toString() == "Ongoing":
                    ids.add(transaction.transactionalId())
            admin.fenceProducers(ids).all().get()

    def _settings(self, bootstrap: str) -> Any:
        settings = self._java.java.util.HashMap()
        settings.put("bootstrap.servers", bootstrap)
        return settings

    def translated_offsets(self, flow: Flow, group: str) -> dict[int, int]:
        """Return what RemoteClusterUtils, which applications use, says about a group at the target, by partition."""
        java = self._java
        offsets = java.org.apache.kafka.connect.mirror.RemoteClusterUtils.translateOffsets(
            self._settings(self.bootstrap(flow.target)), flow.source, group, java.java.time.Duration.ofSeconds(60)
        )
        return {entry.getKey().partition(): int(entry.getValue().offset()) for entry in offsets.entrySet()}

    def wait_for_first(self, flow: Flow) -> None:
        """Wait until the target has some of the records."""

        def has_some() -> bool:
            assert self.maker.is_running(), self.maker.log()[-4000:]
            return any(contents(self.bootstrap(flow.target), flow.remote("records")))

        eventually(has_some, f"first records of {flow}\n{self.maker.log()[-4000:]}", interval=0.2)

    def mirrored(self, flow: Flow, topic: str) -> list[list[Content]]:
        """Return the records of a mirrored topic as soon as there are as many as in the source's; those of the source
        and of the target may differ."""
        expected = list(map(len, contents(self.bootstrap(flow.source), topic)))

        def all_of_them() -> list[list[Content]]:
            found = contents(self.bootstrap(flow.target), flow.remote(topic))
            enough = len(found) == len(expected) and all(len(f) >= e for f, e in zip(found, expected, strict=True))
            return found if enough else []

        return eventually(all_of_them, f"{flow.remote(topic)} with {expected} records", interval=0.2)


def _write_versions(bootstrap: str) -> None:
    sender = producer(bootstrap)
    for version in range(VERSIONS):
        for key in range(KEYS):
            value = None if version == VERSIONS - 1 and key % 4 == 0 else f"{key} version {version}".encode()
            sender.produce("compacted", value, key=f"key {key}".encode())
        flush(sender)


def _write_transactions(bootstrap: str) -> None:
    """Write committed and aborted transactions; the last one of each partition is an aborted one."""
    sender = producer(bootstrap, transactional_id="writer")
    sender.init_transactions()
    for number in range(6):
        sender.begin_transaction()
        for partition in range(2):
            for record in range(5):
                kind = "aborted" if number % 2 else "committed"
                sender.produce("transactions", f"{kind} {number} {record}".encode(), partition=partition)
        if number % 2:
            flush(sender)
            sender.abort_transaction()
        else:
            sender.commit_transaction()


def _commit_middle(bootstrap: str, group: str) -> None:
    """Commit for a group what is half way through the present records."""
    reader = consumer(bootstrap, group)
    middle = []
    for partition in range(PARTITIONS):
        _, end = reader.get_watermark_offsets(TopicPartition("records", partition), timeout=60)
        middle.append(TopicPartition("records", partition, end // 2))
    reader.commit(offsets=middle, asynchronous=False)
    reader.close()


@contextmanager
def running_world(kafka: QuickKafka, directory: Path, java: Any) -> Iterator[World]:
    """`kafka`: a running Apache Kafka whose topics and groups have other names."""
    brokers = {}
    for name in ("queue", "other"):
        (directory / name).mkdir(parents=True)
        brokers[name] = BrokerProcess(directory / name, SERVER)
    world: World | None = None
    try:
        for broker in brokers.values():
            broker.launch()
        for name, broker in brokers.items():
            eventually(broker.ready, f"{name} is ready", interval=0.02)
        world = World({"kafka": kafka, **brokers}, directory / "mirror-maker", java)
        world.fill()
        yield world
    finally:
        if world is not None:
            world.maker.kill()
        for broker in brokers.values():
            broker.end()


def keyed(records: list[Content]) -> dict[bytes | None, bytes | None]:
    """Return the latest value of each key, without those of which it is a tombstone."""
    latest = {record.key: record.value for record in records}
    return {key: value for key, value in latest.items() if value is not None}
