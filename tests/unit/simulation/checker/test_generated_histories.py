"""Generated histories of a correct broker have no anomaly; mutated histories have the expected anomaly."""

from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kbroker.simulation.checker import check, render
from kbroker.simulation.checker.history import Assign, Loss, Outcome, Poll, Send
from tests.unit.simulation.checker.broker_model import BrokerModel
from tests.unit.simulation.checker.group_history_mutations import MUTATIONS
from tests.unit.simulation.checker.history_builder import kinds

SEEDS = st.integers(0, 1 << 30)


@settings(max_examples=150, deadline=None)
@given(SEEDS, st.integers(0, 600), st.booleans(), st.booleans(), st.booleans())
@example(1, 3_000, False, True, False)
@example(2, 3_000, True, True, True)
def test_a_correct_history(seed, turns, synced, losses, transactions):
    history = BrokerModel(seed, turns, synced=synced, losses=losses, transactions=transactions).history
    found = check(history, durable=synced)
    assert not found, render(history, found)


@pytest.mark.parametrize("name", MUTATIONS)
@settings(max_examples=25, deadline=None)
@given(SEEDS, st.integers(50, 400), st.booleans(), st.booleans(), st.booleans())
def test_a_mutated_history(name, seed, turns, synced, losses, transactions):
    mutate, expected = MUTATIONS[name]
    history = BrokerModel(seed, turns, synced=synced, losses=losses, transactions=transactions).history
    if mutate(history, Random(seed)):
        found = kinds(check(history, durable=synced or name == "overstate_a_loss"))
        assert expected & set(found), f"{name} gave {found}"


# Mutations whose preconditions are rare.
RARE = ("understate_a_loss", "abort_a_transaction_that_was_read", "commit_a_transaction_that_is_missing")


def test_each_mutation_is_often_applicable():
    """Otherwise the test above would check nothing."""
    done = dict.fromkeys(MUTATIONS, 0)
    for seed in range(60):
        for name, (mutate, _) in MUTATIONS.items():
            if name in RARE or seed < 15:
                history = BrokerModel(seed, 250, synced=False, losses=seed % 2 == 0, transactions=seed % 3 == 0).history
                done[name] += mutate(history, Random(seed))
    assert {name: count for name, count in done.items() if count < 2} == {}


def test_the_model_generates_the_rare_events():
    """Losses of acknowledged records, offsets that are assigned again, resets, duplicates by retries."""
    lost = anew = resets = doubled = unknown = 0
    for seed in range(20):
        history = BrokerModel(seed, 600, synced=False, losses=True, transactions=False).history
        sends = [one for one in history.operations if isinstance(one.action, Send)]
        polls = [one for one in history.operations if isinstance(one.action, Poll)]
        final = [read.value for one in polls if one.begun > history.final for read in one.action.reads]
        values: dict[tuple, set[int]] = {}
        for poll in polls:
            for read in poll.action.reads:
                values.setdefault((read.tp, read.offset), set()).add(read.value)
        anew += sum(len(found) > 1 for found in values.values())
        lost += sum(one.outcome is Outcome.OK and not set(one.action.values) & set(final) for one in sends)
        resets += sum(isinstance(one.action, Assign) and one.action.reason == "reset" for one in history.operations)
        doubled += len(final) - len(set(final))
        unknown += sum(one.outcome is Outcome.UNKNOWN for one in sends)
        assert any(isinstance(one.action, Loss) for one in history.operations)
    assert min(lost, anew, resets, doubled, unknown) > 20, (lost, anew, resets, doubled, unknown)
