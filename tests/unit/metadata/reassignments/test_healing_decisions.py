"""The decisions of self-healing as tables: how long brokers are away, what is dropped, and what is remembered."""

import pytest

from kbroker.metadata.image import BrokerHistory, BrokerRegistration, KnownBroker, PartitionRegistration, TopicImage
from kbroker.metadata.reassignments import stored_plan
from kbroker.metadata.reassignments.healing_states import (
    BrokerDisk,
    BrokerState,
    ObservedBrokers,
    healing_layout,
    histories_at_cancellation,
    histories_at_end,
)
from kbroker.metadata.reassignments.plan_decisions import drop_reason
from kbroker.metadata.reassignments.stored_plan import (
    NO_THROTTLE,
    PlanOrigin,
    PlanState,
    SkipReason,
    StoredMove,
    StoredPlan,
)
from kbroker.metadata.store import znodes
from kbroker.server.interbroker.broker_reports import disk_of
from protocol.errors import ErrorCode
from protocol.messages.k35_describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

MINUTE = 60_000
AWAY, BACK = BrokerState(True, 5), BrokerState(False, 6)
TOPIC_ID = bytes(16)


def plan_of(origin: PlanOrigin, *moves: tuple[list[int], list[int]], brokers: tuple[int, ...] = (3,)) -> StoredPlan:
    rows = tuple(
        StoredMove("t", TOPIC_ID, index, tuple(original), tuple(target))
        for index, (original, target) in enumerate(moves)
    )
    return StoredPlan(1, "", PlanState.RUNNING, NO_THROTTLE, 10, 0, rows, origin=origin, brokers=brokers)


def known(*broker_ids: int, fenced: tuple[int, ...] = (), **history: int) -> dict[int, KnownBroker]:
    return {
        broker_id: KnownBroker(
            BrokerRegistration(broker_id, "h", 1),
            broker_id in fenced,
            BrokerHistory(**history),  # type: ignore[arg-type]
        )
        for broker_id in broker_ids
    }


@pytest.mark.parametrize(
    ("stored_ms", "observed_ms", "expected"),
    [
        # The controller that has fenced it: both clocks agree.
        (0, 0, 30 * MINUTE),
        (20 * MINUTE, 20 * MINUTE, 10 * MINUTE),
        (30 * MINUTE, 30 * MINUTE, 0),
        # Another controller since a moment, and one whose clock is behind, or has jumped.
        (29 * MINUTE, 0, MINUTE),
        (300 * MINUTE, 0, MINUTE),
        (300 * MINUTE, MINUTE, 0),
        (-300 * MINUTE, 29 * MINUTE, MINUTE),
        (-300 * MINUTE, 30 * MINUTE, 0),
        # The time is not stored: it was fenced by a former version.
        (None, 29 * MINUTE, MINUTE),
    ],
)
def test_the_time_until_a_broker_is_rebuilt(stored_ms: int | None, observed_ms: int, expected: int) -> None:
    observed = ObservedBrokers()
    observed.update(1, {3: AWAY}, 7)
    now_ms = 1_000 * MINUTE
    history = BrokerHistory(-1 if stored_ms is None else now_ms - stored_ms)
    remaining = observed.remaining_ms(3, history, 30 * MINUTE, now_ms=now_ms, mono_ms=7 + observed_ms)
    assert remaining == expected


def test_a_short_time_is_observed_as_a_whole_and_anew_by_each_controller_and_in_each_state():
    observed, history = ObservedBrokers(), BrokerHistory(0)

    def remaining(mono_ms: int) -> int:
        return observed.remaining_ms(3, history, 2_000, now_ms=9 * MINUTE, mono_ms=mono_ms)

    observed.update(1, {3: AWAY}, 100)
    observed.update(1, {3: AWAY}, 900)
    assert remaining(1_000) == 1_100
    observed.update(2, {3: AWAY}, 1_000)
    assert remaining(1_000) == 2_000
    observed.update(2, {3: BACK}, 1_500)
    assert remaining(1_600) == 1_900
    # A new session of the same broker.
    observed.update(2, {3: BACK._replace(epoch=7)}, 1_600)
    assert remaining(1_600) == 2_000


REBUILD, RETURN, REQUEST = PlanOrigin.REBUILD, PlanOrigin.RETURN, PlanOrigin.REQUEST


@pytest.mark.parametrize(
    ("origin", "state", "alive", "away", "expected"),
    [
        (REBUILD, PlanState.RUNNING, {1, 2, 4}, {3}, None),
        (REBUILD, PlanState.RUNNING, {1, 2, 3, 4}, set(), SkipReason.RETURNED),
        (REBUILD, PlanState.RUNNING, {1, 2}, {3}, None),
        (REBUILD, PlanState.RUNNING, {1, 2}, {3, 4}, SkipReason.AWAY),
        (REBUILD, PlanState.CANCELLING, {1, 2, 4}, {3}, SkipReason.CANCELLED),
        (RETURN, PlanState.RUNNING, {1, 2, 3, 4}, set(), None),
        (RETURN, PlanState.RUNNING, {1, 2, 3}, {4}, SkipReason.AWAY),
        (REQUEST, PlanState.RUNNING, {1, 2}, {3, 4}, None),
        (REQUEST, PlanState.CANCELLING, {1, 2, 3}, {4}, None),
    ],
)
def test_moves_that_are_dropped(
    origin: PlanOrigin, state: PlanState, alive: set[int], away: set[int], expected: SkipReason | None
) -> None:
    plan = plan_of(origin, ([1, 2, 3], [1, 2, 4]))._replace(state=state)
    partition = PartitionRegistration(1, 0, [1, 2, 3], [1, 2])
    assert drop_reason(plan, plan.moves[0], partition, alive, away) == expected


def test_what_is_remembered_when_a_plan_ends():
    brokers = known(1, 2, 3, 4, fenced=(3,))
    rebuild = plan_of(REBUILD, ([1, 2, 3], [1, 2, 4]), ([3, 1], [2, 1]))
    after = histories_at_end(rebuild, rebuild.moves, brokers, {1: 2, 2: 2, 4: 1})
    assert after == {3: BrokerHistory(rebuilt=2)}
    back = known(1, 2, 3, rebuilt=2)
    giving = plan_of(RETURN, ([1, 2], [3, 2]))
    assert histories_at_end(giving, giving.moves, back, {})[3].rebuilt == 1
    assert histories_at_end(giving, [], back, {}) == {}


def test_a_plan_on_request_that_empties_a_broker_drains_it_until_it_gets_a_replica():
    drain = plan_of(REQUEST, ([1, 2], [1, 3]), brokers=())
    drained = BrokerHistory(is_drained=True)
    assert histories_at_end(drain, drain.moves, known(1, 2, 3), {1: 1, 3: 1}) == {2: drained}
    # It has others.
    assert histories_at_end(drain, drain.moves, known(1, 2, 3), {1: 1, 2: 1, 3: 1}) == {}
    brokers = {2: KnownBroker(BrokerRegistration(2, "h", 1), False, drained)}
    balance = plan_of(REQUEST, ([1, 3], [1, 2]), brokers=())
    assert histories_at_end(balance, balance.moves, brokers, {}) == {2: BrokerHistory()}


def test_what_a_cancellation_means():
    brokers = known(1, 3, 4, fenced=(3,), rebuilt=5)
    assert histories_at_cancellation(plan_of(REBUILD, brokers=(3, 4)), brokers) == {
        3: BrokerHistory(rebuilt=5, is_given_up=True)
    }
    assert histories_at_cancellation(plan_of(RETURN, brokers=(4,)), brokers) == {4: BrokerHistory()}
    assert histories_at_cancellation(plan_of(REQUEST, brokers=()), brokers) == {}


def test_which_brokers_accept_replicas():
    brokers = known(1, 2, 3, 4, 5, fenced=(3,))
    brokers[5] = brokers[5]._replace(history=BrokerHistory(is_drained=True))
    disks = {1: BrokerDisk({("t", 0): 7}, 1000, 300), 2: BrokerDisk({("t", 0): 5}), 4: BrokerDisk({}, is_cordoned=True)}
    disks[5] = BrokerDisk({})
    topic = TopicImage("t", TOPIC_ID, partitions=[PartitionRegistration(1, 0, [2, 1, 3], [1, 2])])
    layout = healing_layout({"t": topic}, brokers, disks)
    assert [broker.id for broker in layout.brokers.values() if broker.accepts_replicas] == [1, 2]
    # A tenth of the disk stays free.
    assert [broker.free_bytes for broker in layout.brokers.values()] == [200, None, None, None, None]
    (part,) = layout.partitions
    assert (part.leader, part.size_bytes, part.out_of_sync) == (1, 7, {3})


def test_what_a_broker_reports_of_its_disk():
    topic = DescribeLogDirsTopic(name="t", partitions=[DescribeLogDirsPartition(partition_index=1, partition_size=9)])
    result = DescribeLogDirsResult(topics=[topic], total_bytes=100, usable_bytes=40, is_cordoned=True)
    disk = disk_of(DescribeLogDirsResponse(results=[result]))
    assert disk == BrokerDisk({("t", 1): 9}, 100, 40, True)
    failed = DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    assert disk_of(DescribeLogDirsResponse(results=[failed])) is None


def test_the_nodes_of_plans_and_registrations_have_it_and_those_of_former_versions_do_not():
    plan = plan_of(REBUILD, ([1, 2, 3], [1, 2, 4]))
    header = stored_plan.decode_header(stored_plan.encode_header(plan))
    assert header is not None
    assert (header.plan.origin, header.plan.brokers) == (REBUILD, (3,))
    assert b"origin" not in stored_plan.encode_header(plan._replace(origin=REQUEST, brokers=()))
    broker = KnownBroker(BrokerRegistration(3, "h", 1), True, BrokerHistory(12, 4, True, True))
    assert znodes.decode_registration(3, znodes.encode_registration(broker)) == broker
    former = znodes.encode_registration(broker._replace(history=BrokerHistory()))
    assert b"history" not in former
    assert znodes.decode_registration(3, former).history == BrokerHistory()
