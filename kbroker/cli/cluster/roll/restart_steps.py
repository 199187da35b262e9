"""Which brokers a rolling restart restarts, in which order and which of them together, and what prevents it."""

from collections.abc import Collection, Iterable, Mapping

from kbroker.cli.cluster.roll.cluster_view import BrokerAddress, ClusterView
from kbroker.cli.common.formatting import count_text
from kbroker.cli.common.partitions.list_offsets import Partition
from kbroker.cli.common.partitions.partition_health import CONDITIONS, PartitionHealth

Partitions = Mapping[Partition, PartitionHealth]


def restart_order(brokers: Mapping[int, BrokerAddress], ids: Iterable[int], controller: int) -> list[int]:
    """Return brokers rack by rack, in the order of their ids. The controller is the last, and its rack the last rack.

    So the controller changes only once.
    """
    rack_of = {broker: address.rack for broker, address in brokers.items()}
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


def interrupted_by(partitions: Partitions, away: Collection[int]) -> list[Partition]:
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
