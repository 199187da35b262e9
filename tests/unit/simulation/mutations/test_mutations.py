"""Proof that the simulation can fail: each mutation is caught, and the same seed passes without it until then.

A normal run has all mutations but the slow ones, of which it has a third. The second is tested with every ninth
mutation: it takes as long as the first, and can fail only after a change of the mutation or of the scenario. A thorough
run has everything (tests/sampling.py).
"""

import pytest

from tests.sampling import THIRD, THOROUGH, third_of
from tests.unit.simulation.mutations import (
    cluster,
    deletion,
    groups,
    leadership,
    plans,
    queues,
    reassignment,
    serving,
    storage,
    transactions,
)
from tests.unit.simulation.mutations.mutation import MUTATIONS, Mutation, caught_by, signs_of

MODULES = (
    storage,
    serving,
    groups,
    transactions,
    deletion,
    cluster,
    leadership,
    reassignment,
    plans,
    queues,
)

# Those that take the most processor time: together more than all others.
SLOW = [mutation for mutation in MUTATIONS if mutation.is_slow]
CHOSEN = [mutation for mutation in MUTATIONS if not mutation.is_slow or mutation in third_of(SLOW)]
REPEATED = CHOSEN if THOROUGH else CHOSEN[THIRD::9]


@pytest.mark.parametrize("mutation", CHOSEN, ids=lambda mutation: mutation.name)
def test_a_planted_fault_is_caught(mutation: Mutation) -> None:
    caught = caught_by(mutation)
    assert caught is not None, f"not caught: {mutation.plant.__doc__}"
    signs = signs_of(caught)
    assert set(signs) & set(mutation.signs), f"caught by unexpected signs: {signs}"
    if mutation in REPEATED:
        assert signs_of(mutation.run_without(caught.seed, caught.virtual_s)) == [], (
            "the seed fails without the mutation too"
        )
