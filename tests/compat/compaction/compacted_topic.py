"""A compacted topic under test: written, rolled until it is compacted, read by the Java consumer."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from tests.compat.compaction.bulk_clients import BulkClients, Record
from tests.compat.compaction.expected import check_sound, shown, superseded
from tests.compat.support import DEADLINE_S, BrokerProcess, eventually

# Segments roll 100 ms after their first record, and the smallest dirty ratio is enough.
PROMPT_COMPACTION = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.001"}
HOUR_MS = 3_600_000
ROLL_KEY = b"roll"


def now_ms() -> int:
    return int(time.time() * 1000)


def alter(admin: AdminClient, kind: str, name: str, configs: Mapping[str, str | None]) -> None:
    """Set configs of a topic or a broker; None deletes one."""
    entries = [
        ConfigEntry(
            key, value or "", incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        )
        for key, value in configs.items()
    ]
    resource = ConfigResource(ResourceType[kind.upper()], name, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)


class CompactedTopic:
    """A topic of the broker at `bootstrap`."""

    def __init__(self, bootstrap: str, clients: BulkClients, name: str, partitions: int) -> None:
        self.bootstrap = bootstrap
        self.clients = clients
        self.name = name
        self.partitions = partitions
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
        self._roller = Producer({"bootstrap.servers": bootstrap, "log_level": 2, "reconnect.backoff.max.ms": 100})

    @classmethod
    def created(
        cls, bootstrap: str, clients: BulkClients, name: str, partitions: int, configs: Mapping[str, str] | None = None
    ) -> "CompactedTopic":
        topic = cls(bootstrap, clients, name, partitions)
        new = NewTopic(name, partitions, 1, config={**PROMPT_COMPACTION, **(configs or {})})
        topic._admin.create_topics([new])[name].result(DEADLINE_S)
        return topic

    def alter(self, configs: Mapping[str, str | None]) -> None:
        alter(self._admin, "topic", self.name, configs)

    def delete(self) -> None:
        self._admin.delete_topics([self.name])[self.name].result(DEADLINE_S)

    def send(self, records: Sequence[Record], **properties: Any) -> list[Record]:
        """Send with the Java producer; returns the records with their offsets."""
        offsets = self.clients.send(self.bootstrap, self.name, records, **properties)
        return [record._replace(offset=offset) for record, offset in zip(records, offsets, strict=True)]

    def read(self) -> list[Record]:
        """Read each partition to its end with the Java consumer."""
        return self.clients.read(self.bootstrap, self.name, self.partitions)

    def ends(self) -> list[int]:
        """Return the high watermark of each partition."""
        return self.clients.ends(self.bootstrap, self.name, self.partitions)

    def delete_records(self, before: int) -> int:
        """Delete the records of partition 0 below an offset; returns the log start offset."""
        tp = TopicPartition(self.name, 0, before)
        start: int = self._admin.delete_records([tp])[tp].result(DEADLINE_S).low_watermark
        return start

    def roll(self) -> None:
        """Append a record to each partition, so that segments older than segment.ms roll."""
        for partition in range(self.partitions):
            self._roller.produce(self.name, b"roll", ROLL_KEY, partition=partition)
        assert self._roller.flush(DEADLINE_S) == 0

    def stop_compaction(self, broker: BrokerProcess) -> list[Record]:
        """Make every record too young for compaction, restart the broker, and return the records."""
        self.alter({"min.compaction.lag.ms": str(HOUR_MS)})
        broker.stop()
        broker.start()
        return self.read()

    def read_compacted(self, before: Sequence[Record], *, tombstones: bool = True) -> list[Record]:
        """Read until all of `before` is compacted, and return the records. Every read must pass check_sound.
        `tombstones`: see check_sound."""
        now: list[Record] = []
        unexpected: list[Record] = list(before)

        def is_compacted() -> bool:
            nonlocal now, unexpected
            self.roll()
            now = self.read()
            check_sound(before, now, tombstones=tombstones)
            unexpected = superseded(before, now)
            return not unexpected

        try:
            eventually(is_compacted, f"{self.name} is compacted", interval=0.1, progress=lambda: len(unexpected))
        except AssertionError as error:
            raise AssertionError(
                f"{error}; {len(unexpected)} superseded records are left: {shown(unexpected)}"
            ) from None
        return now
