"""The state of a cluster during a rolling restart, as its brokers report it, and the order of the brokers."""

from collections.abc import Collection, Iterable, Mapping
from contextlib import nullcontext, suppress
from typing import NamedTuple

from kbroker.cli.common.client import CLIENT_ERRORS, CLIENT_ID, admin_client
from kbroker.cli.common.errors import CliError
from kbroker.cli.common.partitions import CONDITIONS, PartitionHealth, min_isr_by_topic
from kbroker.cli.common.values import count_text
from kbroker.client.admin import describe_cluster
from kbroker.client.connection import BrokerConnection
from kbroker.client.requests import Partition
from kbroker.client.security import current_security
from kbroker.common import format_address
from protocol.messages.k03_metadata import MetadataRequest, MetadataResponse
from protocol.messages.k60_describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from protocol.messages.k10003_describe_broker import DescribeBrokerRequest, DescribeBrokerResponse

NOT_REGISTERED = -1
# A broker that does not respond within this time counts as away.
TIMEOUT_S = 5.0


class BrokerProcess(NamedTuple):
    """A broker that responds. `epoch`: its broker epoch, NOT_REGISTERED while it is fenced.

    `started_ms`: the wall clock of its machine when the process started.
    """

    epoch: int
    started_ms: int
    version: str


class ClusterView(NamedTuple):
    """`brokers` has all registered brokers, `processes` those that respond, both by id.

    `controller` is -1 if there is none.
    """

    controller: int
    brokers: Mapping[int, DescribeClusterBroker]
    processes: Mapping[int, BrokerProcess]
    partitions: Mapping[Partition, PartitionHealth]

    def is_present(self, broker: int) -> bool:
        """Return whether a broker responds and is not fenced."""
        process = self.processes.get(broker)
        return process is not None and process.epoch != NOT_REGISTERED

    def absent(self) -> list[int]:
        """Return the registered brokers that do not respond or are fenced."""
        return [broker for broker in sorted(self.brokers) if not self.is_present(broker)]


class Observer:
    """Knows the brokers from the first connection on, and learns of others."""

    def __init__(self, bootstrap: str) -> None:
        """Find the brokers. Raises CliError if none can be reached."""
        self._min_isr: dict[str, int] = {}
        with admin_client(bootstrap) as client:
            self._brokers = {row.broker_id: row for row in describe_cluster(client).brokers}

    def read(self, ask_first: Iterable[int] = ()) -> ClusterView | None:
        """Return the state of the cluster, None if no broker responds to all requests.

        The state of the partitions is what the first broker of `ask_first` says that responds. One that was restarted
        has read them since then, while another may not know yet that its replicas have left the ISR.
        """
        processes = {broker: process for broker in self._brokers if (process := self._process(broker)) is not None}
        order = [*(broker for broker in ask_first if broker in processes), *processes]
        for broker in dict.fromkeys(order):
            try:
                with self._connect(broker) as connection:
                    cluster = connection.request(
                        DescribeClusterRequest(include_fenced_brokers=True), DescribeClusterResponse
                    )
                    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
                    metadata = connection.request(request, MetadataResponse)
            except CLIENT_ERRORS:
                continue
            self._brokers = {row.broker_id: row for row in cluster.brokers}
            partitions = self._partitions(metadata)
            return ClusterView(cluster.controller_id, dict(sorted(self._brokers.items())), processes, partitions)
        return None

    def _connect(self, broker: int) -> BrokerConnection:
        row = self._brokers[broker]
        return BrokerConnection(
            (row.host, row.port), client_id=CLIENT_ID, timeout_s=TIMEOUT_S, security=current_security()
        )

    def _process(self, broker: int) -> BrokerProcess | None:
        try:
            with self._connect(broker) as connection:
                found = connection.request(DescribeBrokerRequest(), DescribeBrokerResponse)
        except CLIENT_ERRORS:
            return None
        # Another broker may have its address now.
        if found.broker_id != broker:
            return None
        return BrokerProcess(found.broker_epoch, found.started_ms, found.software_version)

    def _partitions(self, metadata: MetadataResponse) -> dict[Partition, PartitionHealth]:
        topics = {topic.name: topic.partitions for topic in metadata.topics if not topic.error_code and topic.name}
        new = [name for name in topics if name not in self._min_isr]
        if new:
            bootstrap = ",".join(format_address(row.host, row.port) for row in self._brokers.values())
            # Raises only at the first time: later ones are repeated anyway.
            with suppress(CliError) if self._min_isr else nullcontext(), admin_client(bootstrap) as client:
                self._min_isr |= min_isr_by_topic(client, new)
        return {
            (name, row.partition_index): PartitionHealth(
                row.leader_id, row.replica_nodes, row.isr_nodes, self._min_isr.get(name, 1)
            )
            for name, partitions in topics.items()
            for row in partitions
        }


def first_view(observer: Observer) -> ClusterView:
    """Return the state of the cluster. Raises CliError for brokers of another program, which do not report starts."""
    view = observer.read()
    if view is None:
        raise CliError("these brokers do not report when they were started: only those of kbroker do")
    return view


# The order of the brokers, and what prevents a restart.


def is_restarted(old: BrokerProcess, view: ClusterView, broker: int) -> bool:
    """Return whether another process of a broker serves clients: it has started since, and has a new broker epoch.

    A broker whose session has expired has a new epoch, too, but it is the same process.
    """
    new = view.processes.get(broker)
    return new is not None and new.started_ms != old.started_ms and new.epoch > old.epoch


def out_of_sync(view: ClusterView, tolerated: Collection[Partition] = ()) -> list[Partition]:
    """Return the partitions without a leader or without all replicas in sync, except the tolerated ones.

    The replicas that a reassignment adds do not count.
    """
    return [
        key
        for key, part in view.partitions.items()
        if key not in tolerated and (part.leader < 0 or set(part.replicas).difference(part.isr, part.adding))
    ]


def restart_order(brokers: Mapping[int, DescribeClusterBroker], ids: Iterable[int], controller: int) -> list[int]:
    """Return brokers rack by rack, in the order of their ids. The controller is the last, and its rack the last rack.

    So the controller changes only once.
    """
    rack_of = {broker: row.rack for broker, row in brokers.items()}
    last_rack = rack_of.get(controller)

    def position(broker: int) -> tuple[bool, bool, bool, str, int]:
        rack = rack_of.get(broker)
        return broker == controller, rack == last_rack, rack is None, rack or "", broker

    return sorted(set(ids), key=position)


def restart_steps(view: ClusterView, ids: Iterable[int], at_once: int) -> list[tuple[int, ...]]:
    """Return the brokers of each step: at most `at_once`, and the controller alone in the last one.

    Two brokers of a step share no partition, unless it keeps min.insync.replicas without both.
    """
    steps: list[tuple[int, ...]] = []
    for broker in restart_order(view.brokers, ids, view.controller):
        step = (*steps[-1], broker) if steps else (broker,)
        if len(step) == 1 or len(step) > at_once or broker == view.controller or not _may_be_away(view, step):
            steps.append((broker,))
        else:
            steps[-1] = step
    return steps


def _may_be_away(view: ClusterView, step: Collection[int]) -> bool:
    return all(
        len(set(part.replicas).intersection(step)) < 2 or not _is_interrupted(part, step)
        for part in view.partitions.values()
    )


def _is_interrupted(part: PartitionHealth, away: Collection[int]) -> bool:
    left = len(set(part.isr).difference(away))
    return left < max(part.effective_min_isr, 1)


def interrupted_by(partitions: Mapping[Partition, PartitionHealth], away: Collection[int]) -> list[Partition]:
    """Return the partitions that refuse writes with acks=all, or have no leader, while some brokers are away.

    Only partitions that have a replica there count.
    """
    return [
        key
        for key, part in partitions.items()
        if not set(part.replicas).isdisjoint(away) and _is_interrupted(part, away)
    ]


def obstacles(view: ClusterView) -> list[str]:
    """Return the reasons for which a rolling restart should not begin."""
    reasons = [f"broker {broker} is away" for broker in view.absent()]
    if view.controller < 0:
        reasons.append("there is no controller")
    for condition, text in (("offline", "without a leader"), ("under-min-isr", "with too few in-sync replicas")):
        count = sum(map(CONDITIONS[condition], view.partitions.values()))
        if count:
            reasons.append(f"{count_text(count, 'partition')} {text}")
    return reasons
