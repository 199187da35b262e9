"""The order of a rolling restart, which brokers are restarted together, and what stands against it."""

import pytest

from kbroker.cli.cluster.roll.cluster_view import (
    NOT_REGISTERED,
    BrokerAddress,
    BrokerProcess,
    ClusterView,
    is_restarted,
    out_of_sync,
)
from kbroker.cli.cluster.roll.restart_steps import interrupted_by, obstacles, restart_order, restart_steps
from kbroker.cli.common.partitions.partition_health import PartitionHealth


def view(
    racks: dict[int, str | None], controller: int, *partitions: PartitionHealth, away: tuple[int, ...] = ()
) -> ClusterView:
    return ClusterView(
        controller,
        {broker: BrokerAddress(f"host-{broker}", 9092, rack) for broker, rack in racks.items()},
        {broker: BrokerProcess(broker, 1000, "1.0") for broker in racks if broker not in away},
        {("t", number): part for number, part in enumerate(partitions)},
    )


def part(*replicas: int, isr: tuple[int, ...] | None = None, min_isr: int = 1) -> PartitionHealth:
    in_sync = replicas if isr is None else isr
    return PartitionHealth(in_sync[0] if in_sync else -1, replicas, in_sync, min_isr)


@pytest.mark.parametrize(
    ("racks", "controller", "expected"),
    [
        ({1: None, 2: None, 3: None}, 1, [2, 3, 1]),
        ({1: None, 2: None, 3: None}, -1, [1, 2, 3]),
        # Racks one after the other, and the controller's rack last.
        ({1: "a", 2: "b", 3: "c", 4: "a", 5: "b", 6: "c"}, 2, [1, 4, 3, 6, 5, 2]),
        ({1: "b", 2: None, 3: "a", 4: "b"}, 3, [1, 4, 2, 3]),
    ],
)
def test_racks_follow_one_another_and_the_controller_is_last(
    racks: dict[int, str | None], controller: int, expected: list[int]
) -> None:
    assert restart_order(view(racks, controller).brokers, racks, controller) == expected


def test_one_at_a_time_by_default() -> None:
    assert restart_steps(view({1: "a", 2: "a", 3: "b"}, 3), [1, 2, 3], 1) == [(1,), (2,), (3,)]


def test_brokers_of_a_rack_are_restarted_together() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    partitions = [part(1, 3, 5, min_isr=2), part(2, 4, 6, min_isr=2), part(1, 4, 6, min_isr=2)]
    assert restart_steps(view(racks, 5, *partitions), racks, 2) == [(1, 2), (3, 4), (6,), (5,)]


def test_brokers_that_share_a_partition_are_not_restarted_together() -> None:
    racks: dict[int, str | None] = dict.fromkeys(range(1, 5))
    assert restart_steps(view(racks, 4, part(1, 2, 3, min_isr=2)), racks, 3) == [(1,), (2,), (3,), (4,)]
    # Unless enough replicas are left.
    assert restart_steps(view(racks, 4, part(1, 2, 3, 4, min_isr=2)), racks, 3) == [(1, 2), (3,), (4,)]
    # A replica that is not in sync is none of them.
    lacking = part(1, 2, 3, 4, isr=(1, 2, 3), min_isr=2)
    assert restart_steps(view(racks, 4, lacking), racks, 3) == [(1,), (2,), (3,), (4,)]
    assert restart_steps(view(racks, 4, part(2, 3)), racks, 3) == [(1, 2), (3,), (4,)]


def test_only_the_chosen_brokers() -> None:
    assert restart_steps(view({1: None, 2: None, 3: None}, 1), [3, 1], 2) == [(3,), (1,)]
    assert restart_steps(view({1: None}, 1), [], 2) == []


def test_partitions_that_refuse_writes_meanwhile() -> None:
    partitions = view({1: None}, 1, part(1), part(1, 2, min_isr=2), part(1, 2), part(2, 3, isr=())).partitions
    assert interrupted_by(partitions, {1}) == [("t", 0), ("t", 1)]
    # min.insync.replicas is at most the number of replicas (KAFKA-15583).
    assert interrupted_by({("t", 0): part(1, 2, min_isr=3)}, {2}) == [("t", 0)]


def test_obstacles() -> None:
    assert obstacles(view({1: None, 2: None}, 1, part(1, 2, isr=(1,)))) == []
    partitions = [part(1, 2, isr=(1,), min_isr=2), part(2, isr=()), part(2, 1, isr=())]
    assert obstacles(view({1: None, 2: None}, -1, *partitions, away=(2,))) == [
        "broker 2 is away",
        "there is no controller",
        "2 partitions without a leader",
        "3 partitions with too few in-sync replicas",
    ]
    fenced = view({1: None}, 1)._replace(processes={1: BrokerProcess(NOT_REGISTERED, 1000, "1.0")})
    assert obstacles(fenced) == ["broker 1 is away"]


@pytest.mark.parametrize(
    ("epoch", "started_ms", "expected"),
    [
        (7, 1000, False),
        # Its session has expired, but it is the same process.
        (8, 1000, False),
        # It has started, and the controller has not unfenced it yet.
        (NOT_REGISTERED, 2000, False),
        (7, 2000, False),
        (8, 2000, True),
        # Its clock was set back.
        (8, 500, True),
    ],
)
def test_a_restart_is_another_process_with_a_new_epoch(epoch: int, started_ms: int, expected: bool) -> None:
    after = view({1: None}, 1)._replace(processes={1: BrokerProcess(epoch, started_ms, "1.0")})
    assert is_restarted(BrokerProcess(7, 1000, "1.0"), after, 1) == expected


def test_a_broker_that_is_away_was_not_restarted() -> None:
    assert not is_restarted(BrokerProcess(7, 1000, "1.0"), view({1: None}, 1, away=(1,)), 1)


def test_partitions_that_are_awaited() -> None:
    partitions = [part(1, 2), part(1, 2, isr=(1,)), part(1, 2, isr=()), part(1, 2, isr=(2, 1))]
    found = view({1: None, 2: None}, 1, *partitions)
    assert out_of_sync(found) == [("t", 1), ("t", 2)]
    assert out_of_sync(found, [("t", 2)]) == [("t", 1)]
