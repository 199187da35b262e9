"""Generated histories of a correct broker have no anomaly; mutated histories have the expected anomaly."""

from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kbroker.simulation.checker import check, render
from kbroker.simulation.checker.history import Assign, Loss, Outcome, Send
from tests.unit.simulation.checker.broker_model import BrokerModel
from tests.unit.simulation.checker.group_history_mutations import MUTATIONS
from tests.unit.simulation.checker.history_mutations import final_polls, of, reads_of
from tests.unit.simulation.checker.history_notation import kinds

SEEDS = st.integers(0, 1 << 30)


@settings(max_examples=150)
@given(SEEDS, st.integers(0, 600), st.booleans(), st.booleans(), st.booleans())
@example(1, 3_000, False, True, False)
@example(2, 3_000, True, True, True)
def test_a_correct_history(seed, turns, synced, losses, transactions):
    history = BrokerModel(seed, turns, synced=synced, losses=losses, transactions=transactions).history
    anomalies = check(history, durable=synced)
    assert not anomalies, render(history, anomalies)


@pytest.mark.parametrize("name", MUTATIONS)
@settings(max_examples=25)
@given(SEEDS, st.integers(50, 400), st.booleans(), st.booleans(), st.booleans())
def test_a_mutated_history(name, seed, turns, synced, losses, transactions):
    mutate, expected = MUTATIONS[name]
    history = BrokerModel(seed, turns, synced=synced, losses=losses, transactions=transactions).history
    if mutate(history, Random(seed)):
        reported = kinds(check(history, durable=synced or name == "overstate_a_loss"))
        assert expected & set(reported), f"{name}: the checker reported {reported}"


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
    """They are losses of acknowledged records, offsets that are assigned again, resets, duplicates by retries."""
    lost = reassigned = resets = duplicates = unknown = 0
    for seed in range(20):
        history = BrokerModel(seed, 600, synced=False, losses=True, transactions=False).history
        sends, final = of(history, Send), [read.value for poll in final_polls(history) for read in poll.action.reads]
        values: dict[tuple, set[int]] = {}
        for read in reads_of(history):
            values.setdefault((read.tp, read.offset), set()).add(read.value)
        reassigned += sum(len(each) > 1 for each in values.values())
        lost += sum(send.outcome is Outcome.OK and not set(send.action.values) & set(final) for send in sends)
        resets += sum(assign.action.reason == "reset" for assign in of(history, Assign))
        duplicates += len(final) - len(set(final))
        unknown += sum(send.outcome is Outcome.UNKNOWN for send in sends)
        assert of(history, Loss)
    assert min(lost, reassigned, resets, duplicates, unknown) > 20
