"""The invariants of plans of reassignments, on the states that a controller may write."""

import pytest

from kbroker.coordination.data_tree import DataTree
from kbroker.coordination.interface import Create, Delete, Op, Set
from kbroker.metadata.image import BrokerRegistration, KnownBroker, PartitionRegistration
from kbroker.metadata.reassignments import stored_plan
from kbroker.metadata.reassignments.stored_plan import NO_THROTTLE, PlanState, SkipReason, StoredMove, StoredPlan
from kbroker.metadata.store import znodes
from kbroker.simulation.invariants.controller_state import ControllerState, Plans

TOPIC_ID = bytes([1]) * 16
MOVES = (StoredMove("t", TOPIC_ID, 0, (1, 2), (3, 2)),)
RUNNING, CANCELLING, COMPLETE, CANCELLED = PlanState


def plan(state: PlanState = RUNNING, plan_id: int = 1, skipped: bool = False) -> StoredPlan:
    skips = {SkipReason.REASSIGNED: (0,)} if skipped else {}
    return StoredPlan(plan_id, "", state, NO_THROTTLE, 1, 0, MOVES, skipped=skips)


class Stored:
    """The nodes of a topic with one partition, and of a plan."""

    def __init__(self, partition: PartitionRegistration) -> None:
        self.tree = DataTree()
        brokers = [KnownBroker(BrokerRegistration(node, "h", 1), False) for node in (1, 2, 3)]
        self._write(
            Create(znodes.ROOT, b""),
            Create(znodes.TOPICS, b""),
            Create(znodes.PARTITIONS, b""),
            Create(znodes.REGISTRATIONS, b""),
            Create(znodes.topic_path("t"), znodes.encode_topic(znodes.TopicNode(TOPIC_ID, False))),
            Create(znodes.chunk_path(0), znodes.encode_chunk({TOPIC_ID: {0: partition}})),
            *(
                Create(znodes.registration_path(each.registration.id), znodes.encode_registration(each))
                for each in brokers
            ),
            Create(znodes.REASSIGNMENT_PLAN, b""),
            *(Create(path, data) for id in (1, 2) for path, data in stored_plan.encode_moves(id, MOVES)),
        )
        self.plans = Plans(ControllerState(self.tree))

    def _write(self, *ops: Op) -> None:
        self.tree.apply(ops, 0)

    def delete_topic(self) -> None:
        self._write(Delete(znodes.topic_path("t")))

    def fault(self, stored: StoredPlan) -> str | None:
        self._write(Set(znodes.REASSIGNMENT_PLAN, stored_plan.encode_header(stored)))
        return self.plans.fault()


MOVED = PartitionRegistration(3, 1, [3, 2], [3, 2])
BEFORE = PartitionRegistration(1, 0, [1, 2], [1, 2])


@pytest.mark.parametrize(
    ("partition", "states", "is_valid"),
    [
        (MOVED, [plan(), plan(), plan(COMPLETE)], True),
        (MOVED, [plan(), plan(COMPLETE), plan(RUNNING, 2)], True),
        (BEFORE, [plan(), plan(CANCELLING), plan(CANCELLING), plan(CANCELLED)], True),
        (MOVED, [plan(COMPLETE)], False),
        (MOVED, [plan(), plan(CANCELLING), plan()], False),
        (MOVED, [plan(), plan(CANCELLING), plan(COMPLETE)], False),
        (MOVED, [plan(), plan(COMPLETE), plan()], False),
        (MOVED, [plan(), plan(RUNNING, 2)], False),
        (MOVED, [plan(RUNNING, 2), plan(COMPLETE, 2), plan()], False),
        # The end, and the partition.
        (BEFORE, [plan(), plan(COMPLETE)], False),
        (BEFORE, [plan(), plan(COMPLETE, skipped=True)], True),
        (MOVED, [plan(), plan(CANCELLING), plan(CANCELLED)], False),
        (PartitionRegistration(2, 1, [3, 2], [3, 2]), [plan(), plan(COMPLETE)], False),
        (PartitionRegistration(2, 1, [3, 2], [2]), [plan(), plan(COMPLETE)], True),
        (PartitionRegistration(1, 0, [3, 2, 1], [1, 2], [], [], 0, [3], [1]), [plan(), plan(COMPLETE)], False),
    ],
)
def test_the_states_of_a_plan(partition: PartitionRegistration, states: list[StoredPlan], is_valid: bool) -> None:
    stored = Stored(partition)
    *earlier, last = states
    for state in earlier:
        assert stored.fault(state) is None
    assert (stored.fault(last) is None) == is_valid


def test_a_topic_may_be_deleted_before_the_end_of_a_plan() -> None:
    stored = Stored(MOVED)
    assert stored.fault(plan()) is None
    stored.delete_topic()
    assert stored.fault(plan(COMPLETE)) is None
