"""Proof that the simulation can fail: each mutation is caught, and the same seed passes without it until then.

The second is tested with every third mutation, or with all if KBROKER_SIMULATION_THOROUGH=1: it takes as long as the
first, and can fail only after a change of the mutation or of the scenario.
"""

import os

import pytest

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


THOROUGH = os.environ.get("KBROKER_SIMULATION_THOROUGH", "") not in ("", "0")
REPEATED = MUTATIONS if THOROUGH else MUTATIONS[::3]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_planted_fault_is_caught(mutation: Mutation) -> None:
    caught = caught_by(mutation)
    assert caught is not None, f"not caught: {mutation.plant.__doc__}"
    signs = signs_of(caught)
    assert set(signs) & set(mutation.signs), f"caught by unexpected signs: {signs}"
    if mutation in REPEATED:
        assert signs_of(mutation.run_without(caught.seed, caught.virtual_s)) == [], (
            "the seed fails without the mutation too"
        )
