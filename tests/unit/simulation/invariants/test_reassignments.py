"""The invariants of reassignments, on the states that a controller may write."""

import pytest

from kbroker.metadata.image import PartitionRegistration
from kbroker.simulation.invariants.controller_state import Reassignments

KEY = (b"topic", 0)


def state(
    replicas: list[int], isr: list[int], adding: list[int] | None = None, removing: list[int] | None = None
) -> PartitionRegistration:
    return PartitionRegistration(isr[0], 0, replicas, isr, [], [], 0, adding or [], removing or [])


MOVING = state([3, 4, 1, 2], [1, 2], [3, 4], [1, 2])


@pytest.mark.parametrize(
    ("states", "is_valid"),
    [
        ([MOVING, state([3, 4], [3, 4])], True),
        ([MOVING, state([1, 2], [1, 2])], True),
        ([MOVING, state([1, 2], [1])], True),
        ([state([2, 1], [1])], True),
        ([state([1], [1])], True),
        # It ends early.
        ([MOVING, state([3, 4], [3])], False),
        ([state([1, 2, 3], [1, 2])], False),
        # It keeps what it has added.
        ([MOVING, state([3, 4, 1, 2], [1, 2])], False),
        # Another target.
        ([MOVING, state([3, 1, 2, 4], [1, 2], [3, 4], [1, 2, 4]), state([3], [3])], True),
        ([MOVING, state([3, 1, 2], [1, 2], [3], [1, 2])], True),
        ([MOVING, state([3, 4, 1], [1], [3, 4], [1])], False),
    ],
)
def test_states(states: list[PartitionRegistration], is_valid: bool) -> None:
    reassignments = Reassignments()
    assert reassignments.fault(KEY, state([1, 2], [1, 2])) is None
    *earlier, last = states
    for earlier_state in earlier:
        assert reassignments.fault(KEY, earlier_state) is None
    assert (reassignments.fault(KEY, last) is None) == is_valid
