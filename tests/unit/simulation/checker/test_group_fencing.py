"""Group generations, assignments, and commits of fenced members."""

import pytest

from kbroker.simulation.checker import check
from kbroker.simulation.checker.history import Join
from tests.unit.simulation.checker.history_notation import cases, found, history


@cases("""
    Members of the current generation commit.
        join 1 p q by a; offset 5 by a in 1; join 2 p by a; join 2 q by b; offset 6 by a in 2; offset q 7 by b in 2
            => nothing
    A member of an older generation does not.
        join 1 p by a; join 2 p by b; offset 5 by a in 1 => stale commit
    The commit began before the next generation, or has no response.
        join 1 p by a; x: join 2 p by b; y: offset 5 by a in 1; end x; end y => nothing
        join 1 p by a; join 2 p by b; offset 5 by a in 1 unknown => nothing
    A join without a response does not end the generation before it.
        join 1 p by a; join 2 p by b unknown; offset 5 by a in 1 => nothing
    A commit without a generation is not fenced.
        join 1 p by a; offset 5 => nothing

    Members of one generation have different partitions.
        join 1 p by a; join 1 q p by b => double assignment
        join 1 p by a; join 1 p by a => nothing
    A static member with a new member id replaces its former one, which is fenced.
        join 1 p by i-1 instance i; join 1 p by i-2 instance i => nothing
        join 1 p by i-1 instance i; join 1 p by j-1 instance j => double assignment
        join 1 p by i-1 instance i; join 1 p by i-2 instance i; offset 5 by i-2 in 1 => nothing
        join 1 p by i-1 instance i; join 1 p by i-2 instance i; offset 5 by i-1 in 1 => stale commit

    Generations of a group with offsets increase.
        join 2 p by a; offset 5 by a in 2; join 1 p by b => backward generation
    Joins at the same time have no order.
        x: join 2 p by a; offset 5; y: join 1 p by b; end x; end y => nothing
    A group without offsets is forgotten.
        join 5 p by a; join 1 p by b; join 2 p by b; offset 3 by b in 2 => nothing
        join 5 p by a; join 1 p by b; join 2 p by b; offset 3 by b in 2; join 1 q by c => backward generation
    Operations during a power loss are not checked.
        join 2 p by a; offset 5 by a in 2; x: join 1 p by b; loss; end x => nothing
""")
def test_generations(steps: str, expected: str) -> None:
    assert found(steps) == expected


@pytest.mark.parametrize(
    ("durable", "expected"), [(True, "backward generation, double assignment"), (False, "backward generation")]
)
def test_a_power_loss_may_remove_generations(durable: bool, expected: str) -> None:
    """The same numbers are used again, for other members."""
    steps = """join 1 p by a; offset 5 by a in 1; join 2 p by b; loss commits 5;
        join 2 p by c; join 1 q by c; offset 6 by c in 2"""
    assert found(steps, durable=durable) == expected


def test_generations_of_other_groups() -> None:
    recorded = history("join 5 p by a; offset 1 by a in 5; join 1 p by b")
    other = recorded.operations[-1].action
    assert isinstance(other, Join)
    other.group = "h"
    assert check(recorded, durable=False) == []
