"""The state of a cluster during a rolling restart, as its brokers report it."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from kbroker.cli.common.partitions.list_offsets import Partition
from kbroker.cli.common.partitions.partition_health import PartitionHealth
from kbroker.common import format_address

NOT_REGISTERED = -1


class BrokerProcess(NamedTuple):
    """A broker that responds. `epoch`: its broker epoch, NOT_REGISTERED while it is fenced.

    `started_ms`: the wall clock of its machine when the process started.
    """

    epoch: int
    started_ms: int
    version: str


class BrokerAddress(NamedTuple):
    """Where clients reach a broker."""

    host: str
    port: int
    rack: str | None = None

    def __str__(self) -> str:
        return format_address(self.host, self.port)


class ClusterView(NamedTuple):
    """`brokers` has all registered brokers, `processes` those that respond, both by id.

    `controller` is -1 if there is none.
    """

    controller: int
    brokers: Mapping[int, BrokerAddress]
    processes: Mapping[int, BrokerProcess]
    partitions: Mapping[Partition, PartitionHealth]

    def is_present(self, broker: int) -> bool:
        """Return whether a broker responds and is not fenced."""
        process = self.processes.get(broker)
        return process is not None and process.epoch != NOT_REGISTERED

    def absent(self) -> list[int]:
        """Return the registered brokers that do not respond or are fenced."""
        return [broker for broker in sorted(self.brokers) if not self.is_present(broker)]


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
