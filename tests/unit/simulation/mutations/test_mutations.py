"""Proof that the simulation can fail: each mutation is caught, and the same seed passes without it."""

import pytest

from kbroker.simulation.scenarios.run import simulate
from tests.unit.simulation.mutations.deletion import DELETION
from tests.unit.simulation.mutations.groups import GROUPS
from tests.unit.simulation.mutations.mutation import Mutation, caught_by, signs_of
from tests.unit.simulation.mutations.serving import SERVING
from tests.unit.simulation.mutations.storage import STORAGE
from tests.unit.simulation.mutations.transactions import TRANSACTIONS

MUTATIONS = (*STORAGE, *SERVING, *GROUPS, *TRANSACTIONS, *DELETION)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_planted_fault_is_caught(mutation: Mutation) -> None:
    caught = caught_by(mutation)
    assert caught is not None, f"not caught: {mutation.text}"
    seed, signs = caught
    assert set(signs) & set(mutation.signs), f"caught by unexpected signs: {signs}"
    assert signs_of(simulate(seed, mutation.scenario, shape=mutation.shape)) == [], (
        "the seed fails without the mutation too"
    )


def test_each_has_a_name_of_its_own() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
