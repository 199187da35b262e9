"""The faults: what happens, to which server, and for how long. A seed chooses."""

import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

from tests.compat.cluster.cluster import SESSION_S
from tests.compat.cluster.views import GROUP, TRANSACTION
from tests.compat.soak.network import CLIENTS
from tests.compat.soak.servers import ZOOKEEPERS, HostedCluster, broker_host, zookeeper_host

# Seconds: shorter than a session; longer than a session; longer than that and 1.5 times replica.lag.time.max.ms.
SHORT_S = (0.3, 0.6 * SESSION_S)
LONG_S = (1.5 * SESSION_S, 2.5 * SESSION_S)
CUT_S = (8.0, 14.0)
# Longer than 1.5 sessions and some timeouts of requests between brokers.
CUT_FROM_BROKERS_S = (18.0, 24.0)
LEADER, FOLLOWER, CONTROLLER = "leader", "follower", "controller"
GROUP_COORDINATOR, TRANSACTION_COORDINATOR = "group coordinator", "transaction coordinator"
ROLES = (LEADER, FOLLOWER, CONTROLLER, GROUP_COORDINATOR, TRANSACTION_COORDINATOR)
DIRECTIONS = ("<->", "->", "<-")


@dataclass
class Targets:
    """The names whose leaders and coordinators are looked up."""

    topic: str
    partitions: int
    group: str
    transactional_id: str


@dataclass
class Fault:
    """`hold_s`: how long it lasts. `is_short`: work may wait for its end. `unreachable`: the broker that clients cannot
    reach, 0 for none: the partitions that it leads wait for the end, too. `delays_transactions`: brokers that both live
    cannot send each other markers, or clients reach a broker that cannot learn that it has been replaced; as in Kafka,
    groups and transactions may need the end of the fault. `is_silent`: a broker accepts connections and sends
    nothing. Programs of kafka-python 3.0.12, which were seen not to bootstrap meanwhile, cannot be restarted then.
    `is_during_plan`: a plan of moves was begun before, and must end as it has shown."""

    kind: str
    detail: str
    inflict: Callable[[], None]
    hold_s: float
    is_short: bool = False
    unreachable: int = 0
    delays_transactions: bool = False
    is_silent: bool = False
    is_during_plan: bool = False


class Deck:
    """Deals the kinds of faults in random order, each once before any of them comes again."""

    def __init__(self, cluster: HostedCluster, targets: Targets, seed: int, begin_plan: Callable[[], None]) -> None:
        """`begin_plan`: called before a fault is chosen that is to happen during a plan of moves."""
        self._begin_plan = begin_plan
        self._cluster = cluster
        self._targets = targets
        self._random = random.Random(seed)
        self._cards: list[Callable[[], Fault]] = []

    def next(self) -> Fault:
        """Choose a fault, for the roles that the servers have now."""
        if not self._cards:
            self._cards = list(self._all())
            self._random.shuffle(self._cards)
        return self._cards.pop()()

    def _all(self) -> Iterator[Callable[[], Fault]]:
        for role in ROLES:
            for make in (self._kill_broker, self._stop_broker, self._freeze_broker, self._freeze_broker_briefly):
                yield lambda make=make, role=role: make(role)
        for role in (LEADER, FOLLOWER):
            for make in (self._kill_zookeeper, self._stop_zookeeper, self._freeze_zookeeper):
                yield lambda make=make, role=role: make(role)
        yield from self._all_during_plans()
        if self._cluster.network is None:
            return
        for direction in DIRECTIONS:
            for roles in ((LEADER, FOLLOWER), (CONTROLLER, LEADER)):
                yield lambda roles=roles, direction=direction: self._cut_brokers(*roles, direction)
            for role in (LEADER, CONTROLLER):
                yield lambda role=role, direction=direction: self._cut_from_zookeeper(role, direction)
            yield lambda direction=direction: self._cut_from_clients(LEADER, direction)
            yield lambda direction=direction: self._cut_zookeeper(direction)
        for role in ROLES:
            yield lambda role=role: self._isolate(role)
        for role in (LEADER, CONTROLLER):
            yield lambda role=role: self._cut_from_brokers(role)

    def _all_during_plans(self) -> Iterator[Callable[[], Fault]]:
        def during_plan(make: Callable[[str], Fault], role: str) -> Callable[[], Fault]:
            return lambda: self._during_plan(lambda: make(role))

        for role in (CONTROLLER, LEADER, FOLLOWER):
            for make in (self._kill_broker, self._stop_broker, self._freeze_broker):
                yield during_plan(make, role)
        for make in (self._kill_zookeeper, self._freeze_zookeeper):
            yield during_plan(make, LEADER)
        if self._cluster.network is not None:
            for make in (self._isolate, self._cut_from_brokers):
                yield during_plan(make, CONTROLLER)
            for direction in DIRECTIONS:
                yield lambda direction=direction: self._during_plan(
                    lambda: self._cut_brokers(CONTROLLER, LEADER, direction)
                )
                yield lambda direction=direction: self._during_plan(
                    lambda: self._cut_from_zookeeper(CONTROLLER, direction)
                )

    def _during_plan(self, make: Callable[[], Fault]) -> Fault:
        self._begin_plan()
        fault = make()
        return replace(fault, kind=f"{fault.kind}, during a plan", is_during_plan=True)

    # Brokers.

    def _broker(self, role: str, other_than: int = 0) -> int:
        """Return a broker that has this role, or another broker if only `other_than` has it."""
        cluster, targets = self._cluster, self._targets
        partition = self._random.randrange(targets.partitions)
        match role:
            case "leader":
                found = cluster.leader(targets.topic, partition)
            case "follower":
                found = self._random.choice(cluster.followers(targets.topic, partition))
            case "controller":
                found = cluster.controller()
            case "group coordinator":
                found = cluster.coordinator(targets.group, GROUP)
            case _:
                found = cluster.coordinator(targets.transactional_id, TRANSACTION)
        return found if found != other_than else self._random.choice(cluster.others(other_than))

    def _between(self, bounds: tuple[float, float]) -> float:
        return self._random.uniform(*bounds)

    def _kill_broker(self, role: str) -> Fault:
        broker = self._broker(role)
        hold_s = self._between((0.0, LONG_S[1]))
        return Fault("kill -9 of a broker", f"{role} {broker}", lambda: self._cluster.kill(broker), hold_s)

    def _stop_broker(self, role: str) -> Fault:
        broker = self._broker(role)
        return Fault(
            "SIGTERM of a broker", f"{role} {broker}", lambda: self._cluster.stop(broker), self._between((0.0, 2.0))
        )

    def _freeze_broker(self, role: str) -> Fault:
        broker = self._broker(role)
        kind, hold_s = "SIGSTOP of a broker", self._between(LONG_S)
        return Fault(kind, f"{role} {broker}", lambda: self._cluster.pause(broker), hold_s, is_silent=True)

    def _freeze_broker_briefly(self, role: str) -> Fault:
        broker = self._broker(role)
        kind, hold_s = "short SIGSTOP of a broker", self._between(SHORT_S)
        return Fault(kind, f"{role} {broker}", lambda: self._cluster.pause(broker), hold_s, is_short=True)

    # ZooKeeper.

    def _kill_zookeeper(self, role: str) -> Fault:
        index = self._cluster.servers.member(role)
        detail = f"{role} {zookeeper_host(index)}"
        return Fault(
            "kill -9 of ZooKeeper", detail, lambda: self._cluster.servers.kill(index), self._between((0.0, LONG_S[1]))
        )

    def _stop_zookeeper(self, role: str) -> Fault:
        index = self._cluster.servers.member(role)
        detail = f"{role} {zookeeper_host(index)}"
        return Fault(
            "SIGTERM of ZooKeeper", detail, lambda: self._cluster.servers.terminate(index), self._between(SHORT_S)
        )

    def _freeze_zookeeper(self, role: str) -> Fault:
        index = self._cluster.servers.member(role)
        detail = f"{role} {zookeeper_host(index)}"
        return Fault("SIGSTOP of ZooKeeper", detail, lambda: self._cluster.servers.pause(index), self._between(LONG_S))

    # Cuts.

    def _cut(self, host: str, others: Collection[str], direction: str) -> None:
        """Lose the packets between a host and others: in both directions, from it ("->") or to it ("<-")."""
        network = self._cluster.network
        assert network is not None
        for other in others:
            if direction != "<-":
                network.cut(host, other)
            if direction != "->":
                network.cut(other, host)

    def _cut_brokers(self, role: str, other_role: str, direction: str) -> Fault:
        broker = self._broker(role)
        other = self._broker(other_role, other_than=broker)
        detail = f"{role} {broker} {direction} {other_role} {other}"
        return Fault(
            "cut between brokers",
            detail,
            lambda: self._cut(broker_host(broker), [broker_host(other)], direction),
            self._between(CUT_S),
            delays_transactions=True,
        )

    def _cut_from_brokers(self, role: str) -> Fault:
        """Cut a broker off from all other brokers, for long enough that it gives up its roles."""
        broker = self._broker(role)
        direction = self._random.choice(DIRECTIONS)
        others = [broker_host(other) for other in self._cluster.others(broker)]
        return Fault(
            "cut between a broker and all brokers",
            f"{role} {broker} {direction} all brokers",
            lambda: self._cut(broker_host(broker), others, direction),
            self._between(CUT_FROM_BROKERS_S),
            delays_transactions=True,
        )

    def _cut_from_zookeeper(self, role: str, direction: str) -> Fault:
        broker = self._broker(role)
        servers = self._random.sample(range(ZOOKEEPERS), self._random.choice((1, ZOOKEEPERS)))
        hosts = [zookeeper_host(index) for index in sorted(servers)]
        return Fault(
            "cut between broker and ZooKeeper",
            f"{role} {broker} {direction} {', '.join(hosts)}",
            lambda: self._cut(broker_host(broker), hosts, direction),
            self._between(CUT_S),
        )

    def _cut_from_clients(self, role: str, direction: str) -> Fault:
        broker = self._broker(role)
        return Fault(
            "cut between clients and broker",
            f"{role} {broker} {direction} clients",
            lambda: self._cut(broker_host(broker), [CLIENTS], direction),
            self._between(CUT_S),
            unreachable=broker,
        )

    def _cut_zookeeper(self, direction: str) -> Fault:
        leader = self._cluster.servers.member(LEADER)
        follower = self._random.choice([index for index in range(ZOOKEEPERS) if index != leader])
        return Fault(
            "cut between ZooKeeper servers",
            f"{zookeeper_host(leader)} {direction} {zookeeper_host(follower)}",
            lambda: self._cut(zookeeper_host(leader), [zookeeper_host(follower)], direction),
            self._between(CUT_S),
        )

    def _isolate(self, role: str) -> Fault:
        """Cut a broker off from all servers. Clients reach it, and it must acknowledge nothing."""
        broker = self._broker(role)
        direction = self._random.choice(DIRECTIONS)
        others = [broker_host(other) for other in self._cluster.others(broker)]
        others += [zookeeper_host(index) for index in range(ZOOKEEPERS)]
        return Fault(
            "cut between a broker and all servers",
            f"{role} {broker} {direction} all servers",
            lambda: self._cut(broker_host(broker), others, direction),
            self._between(CUT_S),
            delays_transactions=True,
        )
