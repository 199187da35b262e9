"""Groups of all kinds whose members are processes (member.py), and what each group must have done in the end."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.compat.broker_connection import ConnectionClosedError
from tests.compat.cluster.cluster import Cluster
from tests.compat.cluster.groups.ledger import Ledger
from tests.compat.cluster.views import GROUP
from tests.compat.support import DEADLINE_S, BrokerProcess, eventually, unique
from tests.compat.wire import kio_messages
from tests.compat.wire.client import Client

SHARE_CONFIGS = {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": "10"}


class Member:
    """A process of member.py. `lines`: what it has printed."""

    def __init__(self, kind: str, bootstrap: str, topic: str, ledger: Ledger) -> None:
        self.kind = kind
        self.lines: list[str] = []
        self._ledger = ledger
        command = [sys.executable, "-m", "tests.compat.cluster.groups.member", kind, bootstrap, ledger.name, topic]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # A member that is killed may have written a part of its last line.
            if line.endswith("\n"):
                self.lines.append(line[:-1])
                self._ledger.add(line[:-1])

    @property
    def assigned(self) -> set[int]:
        last = next((line for line in reversed(self.lines) if line.startswith("assigned")), "assigned")
        return set(map(int, last.split()[1:]))

    def kill(self) -> None:
        self._process.kill()
        self._end()

    def leave(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._end() == 0, f"a {self.kind} member ended with an error: {self.lines[-1:]}"

    def _end(self) -> int:
        code = self._process.wait(DEADLINE_S)
        self._thread.join(DEADLINE_S)
        return code


class RunningGroup:
    """A group with members that are running."""

    def __init__(self, cluster: Cluster, kind: str, topic: str, partitions: int) -> None:
        self.kind = kind
        self.ledger = Ledger(unique(kind))
        self.members: list[Member] = []
        self._cluster = cluster
        self._topic = topic
        self._partitions = partitions
        self._committed = [0] * partitions
        if kind == "share":
            configure_group(cluster, self.ledger.name, SHARE_CONFIGS)

    @property
    def name(self) -> str:
        return self.ledger.name

    def join(self, kind: str = "") -> Member:
        """Start a member, of another protocol than that of the group if `kind` names one."""
        member = Member(kind or self.kind, self._cluster.bootstrap, self._topic, self.ledger)
        self.members.append(member)
        return member

    def replace(self, index: int) -> None:
        """Kill a member (kill -9), and start another one."""
        self.members.pop(index).kill()
        self.join()

    @property
    def is_shared(self) -> bool:
        """Whether each partition has one member of a consumer group."""
        shares = [member.assigned for member in self.members]
        return all(shares) and sorted(p for share in shares for p in share) == list(range(self._partitions))

    def type_name(self) -> str:
        """Return the type of the group, which may have been converted."""
        coordinator = self._cluster.brokers[self._cluster.coordinator(self.name, GROUP)]
        response = ask(coordinator, "ListGroups", 5, states_filter=[], types_filter=[])
        assert response is not None
        return str(next(row["group_type"] for row in response["groups"] if row["group_id"] == self.name))

    def wait_for_more(self, count: int = 20) -> None:
        """Wait until the group has read `count` more records."""
        before = len(self.ledger.reads)

        def has_more() -> bool:
            self.ledger.check()
            return len(self.ledger.reads) >= before + count

        eventually(has_more, f"{self.name} goes on", progress=lambda: len(self.ledger.reads))

    def check(self) -> None:
        """Check what must be true at any time; committed offsets do not go back."""
        self.ledger.check()
        if self.kind != "share":
            before, now = self._committed, self.committed()
            assert all(map(int.__le__, before, now)), f"the commits of {self.name} went from {before} to {now}"
            self._committed = now

    def committed(self) -> list[int]:
        partitions = [TopicPartition(self._topic, index) for index in range(self._partitions)]
        consumer = Consumer({"bootstrap.servers": self._cluster.bootstrap, "group.id": self.name, "log_level": 0})

        def look() -> list[int]:
            try:
                return [max(tp.offset, 0) for tp in consumer.committed(partitions, timeout=5)]
            except KafkaException:
                return []

        try:
            return eventually(look, f"the committed offsets of {self.name}")
        finally:
            consumer.close()

    def start_offsets(self) -> list[int]:
        """Return the start offsets of a share group."""

        def look() -> list[int]:
            coordinator = self._cluster.brokers[self._cluster.coordinator(self.name, GROUP)]
            topics = [{"topic_name": self._topic, "partitions": list(range(self._partitions))}]
            groups = [{"group_id": self.name, "topics": topics}]
            response = ask(coordinator, "DescribeShareGroupOffsets", 0, groups=groups)
            if response is None:
                return []
            [group] = response["groups"]
            rows = sorted(
                (row["partition_index"], row["start_offset"]) for t in group["topics"] for row in t["partitions"]
            )
            return [offset for _, offset in rows]

        return eventually(look, f"the start offsets of {self.name}")

    def finish(self, ends: list[int]) -> None:
        """Wait until the group has processed everything, and check it. Then all members leave."""
        is_share = self.kind == "share"
        eventually(
            lambda: not self.ledger.missing(ends, is_share),
            f"{self.name} has processed {ends}",
            progress=lambda: len(self.ledger.acking if is_share else self.ledger.reads),
        )
        position = self.start_offsets if is_share else self.committed
        eventually(lambda: position() == ends, f"the position of {self.name} is {ends}", progress=position)
        self.check()
        for member in self.members:
            member.leave()
        self.ledger.check()


def ask(broker: BrokerProcess, api: str, version: int, **fields: Any) -> dict[str, Any] | None:
    """Return the response; None if the broker does not run or closes the connection: it may not know the API."""
    client = Client(broker.bootstrap)
    try:
        response: dict[str, Any] = kio_messages.plain(client.request(api, version, **fields))
        return response
    except (OSError, ConnectionClosedError):
        return None
    finally:
        client.close()


def configure_group(cluster: Cluster, group: str, configs: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 2})
    entries = [ConfigEntry(*item, incremental_operation=AlterConfigOpType.SET) for item in configs.items()]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)


@contextmanager
def running_groups(
    cluster: Cluster, topic: str, members: dict[str, int], partitions: int
) -> Iterator[list[RunningGroup]]:
    """Groups by kind, with a number of members each, that have all begun to read."""
    groups = [RunningGroup(cluster, kind, topic, partitions) for kind in members]
    try:
        for group in groups:
            for _ in range(members[group.kind]):
                group.join()
        for group in groups:
            group.wait_for_more(1)
        yield groups
    finally:
        for group in groups:
            for member in group.members:
                member.kill()
