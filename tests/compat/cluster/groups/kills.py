"""Kills brokers by their roles, and members of groups, in an order that a seed chooses, under load."""

import random
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator

from tests.compat.cluster.cluster import Cluster
from tests.compat.cluster.groups.groups import RunningGroup, running_groups
from tests.compat.cluster.views import GROUP, SHARE
from tests.compat.cluster.work import create_topic, working
from tests.compat.wire.client import Client

REPLICAS = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
PARTITIONS = len(REPLICAS)
MEMBERS = {"consumer": 2, "share": 2, "classic": 1}


class Killer:
    """Deals the kinds of victims in random order, each once before any of them comes again."""

    def __init__(self, cluster: Cluster, topic: str, groups: list[RunningGroup], seed: int) -> None:
        self._cluster = cluster
        self._topic = topic
        self._groups = groups
        self._random = random.Random(seed)
        self._cards: list[tuple[str, Callable[[], int]]] = []

    def kill(self) -> tuple[str, int]:
        """Kill a broker, or a member that another one replaces. Returns what was killed, and the broker or 0."""
        if not self._cards:
            self._cards = list(self._all())
            self._random.shuffle(self._cards)
        role, choose = self._cards.pop()
        broker = choose()
        if broker:
            self._cluster.kill(broker)
        return f"{role} {broker}" if broker else role, broker

    def _all(self) -> Iterator[tuple[str, Callable[[], int]]]:
        for group in self._groups:
            yield f"coordinator of {group.kind}", lambda group=group: self._cluster.coordinator(group.name, GROUP)
            yield f"member of {group.kind}", lambda group=group: self._replace_member(group)
        yield "share coordinator", self._share_coordinator
        yield "leader", lambda: self._cluster.leader(self._topic, self._random.randrange(PARTITIONS))
        yield "controller", self._cluster.controller

    def _replace_member(self, group: RunningGroup) -> int:
        group.replace(self._random.randrange(len(group.members)))
        return 0

    def _share_coordinator(self) -> int:
        [name] = [group.name for group in self._groups if group.kind == "share"]
        running = self._cluster.brokers[self._cluster.running[0]]
        metadata = Client(running.bootstrap).request("Metadata", 12, topics=[{"name": self._topic}])
        topic_id = urlsafe_b64encode(metadata.topics[0].topic_id.bytes).decode().rstrip("=")
        return self._cluster.coordinator(f"{name}:{topic_id}:{self._random.randrange(PARTITIONS)}", SHARE)


def run_kills(cluster: Cluster, seed: int, count: int, end_s: float, report: Callable[[str], None]) -> None:
    """Kill `count` times, none after `end_s` (monotonic), while groups of all kinds read what producers write."""
    topic = create_topic(cluster, REPLICAS)
    with working(cluster, topic, PARTITIONS) as work, running_groups(cluster, topic, MEMBERS, PARTITIONS) as groups:
        killer = Killer(cluster, topic, groups, seed)
        for number in range(count):
            begin_s = time.monotonic()
            if begin_s > end_s:
                break
            victim, broker = killer.kill()
            for group in groups:
                group.wait_for_more()
            gone_on_s = time.monotonic() - begin_s
            for group in groups:
                group.check()
            if broker:
                cluster.start(broker)
                cluster.wait_until_healthy()
            report(f"{number + 1:4d} {victim}: all groups have gone on after {gone_on_s:.1f} s")
        work.stop()
        ends = [sum(producer.ledger.sent[index] for producer in work.producers) for index in range(PARTITIONS)]
        for group in groups:
            group.finish(ends)
            ledger = group.ledger
            refused = f", {ledger.refusals.total()} acknowledgements without success" if ledger.refusals else ""
            report(f"{group.kind}: {sum(ends)} records, {ledger.repeated} of them read again{refused}")
