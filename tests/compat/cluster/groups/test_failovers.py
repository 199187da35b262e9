"""The coordinator of a group dies at each step of a rebalance: no member fails, and the group is soon stable again."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, ShareConsumer, TopicPartition

from tests.compat.cluster.cluster import IS_KBROKER, Cluster
from tests.compat.cluster.groups.groups import SHARE_CONFIGS, ask, configure_group
from tests.compat.cluster.groups.member import COMMON
from tests.compat.cluster.views import GROUP
from tests.compat.cluster.work import create_topic
from tests.compat.confluent_kafka.helpers import send_all
from tests.compat.reports import reports
from tests.compat.support import DEADLINE_S, eventually, unique
from tests.sampling import third_of

# How long a coordinator is paused before it is killed: long enough that a request reaches it and has no response.
PAUSED_S = 1.0
# A session in ZooKeeper, the load, a backoff of the client; after "leave" the session of the member as well.
STABLE_S = 45.0
RECORDS = 20
REPLICAS = [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 3, 2]]
CASES = [
    ("consumer", "revoke"),
    ("share", "join"),
    ("consumer", "leave"),
    ("share", "delivery"),
    ("consumer", "assign"),
    ("share", "leave"),
    ("consumer", "join"),
]


class Member(ABC):
    """`on_step`: what to call when `poll` gets to a step, once."""

    def __init__(self, on_step: dict[str, Callable[[], None]]) -> None:
        self.records = 0
        self._on_step = on_step

    def poll(self) -> None:
        messages = self._messages()
        for message in messages:
            error = message.error()
            assert error is None or not error.fatal(), error
            self.records += error is None
        if messages:
            self._reach("delivery")

    def _reach(self, step: str) -> None:
        self._on_step.pop(step, lambda: None)()

    @abstractmethod
    def _messages(self) -> list[Message]: ...

    @abstractmethod
    def close(self) -> None: ...


class ConsumerMember(Member):
    def __init__(self, settings: dict[str, Any], topic: str, on_step: dict[str, Callable[[], None]]) -> None:
        super().__init__(on_step)
        self._consumer = Consumer({**settings, "auto.offset.reset": "earliest", "group.protocol": "consumer"})
        self._consumer.subscribe([topic], on_assign=self._assign, on_revoke=lambda *_: self._reach("revoke"))

    def _assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        if partitions:
            self._reach("assign")

    @property
    def assignment(self) -> list[int]:
        return [tp.partition for tp in self._consumer.assignment()]

    def _messages(self) -> list[Message]:
        return self._consumer.consume(100, timeout=0.1)

    def close(self) -> None:
        self._consumer.close()


class ShareMember(Member):
    def __init__(self, settings: dict[str, Any], topic: str, on_step: dict[str, Callable[[], None]]) -> None:
        super().__init__(on_step)
        self._consumer = ShareConsumer(settings)
        self._consumer.subscribe([topic])

    def _messages(self) -> list[Message]:
        return list(self._consumer.poll(0.1))

    def close(self) -> None:
        self._consumer.close()


class Story:
    """A group, whose coordinator is killed once."""

    def __init__(self, cluster: Cluster, kind: str) -> None:
        self.members: list[Member] = []
        self.on_step: dict[str, Callable[[], None]] = {}
        self.killed, self.killed_s = 0, 0.0
        self.topic = create_topic(cluster, REPLICAS)
        self._cluster = cluster
        self._group = unique(kind)
        self._kind = kind
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap})
        if kind == "share":
            configure_group(cluster, self._group, SHARE_CONFIGS)

    def send(self) -> None:
        send_all(self._producer, self.topic, [b"record"] * RECORDS)

    def join(self) -> None:
        settings = {"bootstrap.servers": self._cluster.bootstrap, "group.id": self._group, **COMMON}
        make = ShareMember if self._kind == "share" else ConsumerMember
        self.members.append(make(settings, self.topic, self.on_step))

    def coordinator(self) -> int:
        return self._cluster.coordinator(self._group, GROUP)

    def kill(self) -> None:
        self.killed = self.killed or self.coordinator()
        self._cluster.kill(self.killed)
        self.killed_s = time.monotonic()

    def kill_during(self, act: Callable[[], object]) -> None:
        """Pause the coordinator, so that it gets requests and sends no responses, and then kill it."""
        self.killed = self.coordinator()
        self._cluster.pause(self.killed)
        act()
        end_s = time.monotonic() + PAUSED_S
        while time.monotonic() < end_s:
            self._poll()
        self.kill()

    def wait_until_stable(self) -> None:
        eventually(self.is_stable, "every member has its partitions")

    def is_stable(self) -> bool:
        self._poll()
        if self._kind == "consumer":
            shares = [member.assignment for member in self.members if isinstance(member, ConsumerMember)]
            return all(shares) and sorted(p for share in shares for p in share) == list(range(len(REPLICAS)))
        coordinator = self._cluster.brokers[self.coordinator()]
        response = ask(coordinator, "ShareGroupDescribe", 1, group_ids=[self._group])
        if response is None or response["groups"][0]["group_state"] != "Stable":
            return False
        shares = [member["assignment"]["topic_partitions"] for member in response["groups"][0]["members"]]
        return len(shares) == len(self.members) and all(shares)

    def read_all(self) -> None:
        """Send records, and wait until the group has read as many."""
        before = self._records()
        self.send()
        eventually(lambda: self.is_stable() and self._records() >= before + RECORDS, "the records")

    def _records(self) -> int:
        return sum(member.records for member in self.members)

    def _poll(self) -> None:
        for member in self.members:
            member.poll()


@pytest.mark.skipif(not IS_KBROKER, reason="not run: settings of another program")
@pytest.mark.parametrize(("kind", "step"), third_of(CASES))
def test_a_coordinator_dies(cluster: Cluster, request: pytest.FixtureRequest, kind: str, step: str) -> None:
    story = Story(cluster, kind)
    story.join()
    closing = threading.Thread(target=lambda: leaving.close(), daemon=True)
    if step == "delivery":
        story.join()
        story.on_step[step] = story.kill
        story.send()
    else:
        story.wait_until_stable()
        if step == "join":
            story.kill_during(story.join)
        elif step == "leave":
            story.join()
            story.wait_until_stable()
            leaving = story.members.pop()
            story.kill_during(closing.start)
        else:
            story.on_step[step] = story.kill
            story.join()
    eventually(lambda: story.is_stable() and story.killed, f"the coordinator dies at {step}, and the group is stable")
    stable_s = time.monotonic() - story.killed_s
    assert stable_s < STABLE_S
    assert story.coordinator() != story.killed
    story.read_all()
    if step == "leave":
        closing.join(DEADLINE_S)
        assert not closing.is_alive()
    line = f"{kind} {step}: stable {stable_s:.1f} s after the coordinator was killed"
    reports(request.config).section("coordinators killed at steps of a rebalance").append(line)
    for member in story.members:
        member.close()
