"""Group generations, assignments, and commits of fenced members."""

import pytest

from tests.unit.simulation.checker.history_builder import UNKNOWN, HistoryBuilder, P, Q


def test_generations_follow_one_another():
    builder = HistoryBuilder()
    builder.join("a", 1, P, Q)
    builder.commit(5, "a", 1)
    builder.join("a", 2, P)
    builder.join("b", 2, Q)
    builder.commit(6, "a", 2)
    builder.commit(7, "b", 2, tp=Q)
    assert builder.kinds() == []


def test_a_commit_of_an_old_generation():
    builder = HistoryBuilder()
    builder.join("a", 1, P)
    builder.join("b", 2, P)
    builder.commit(5, "a", 1)
    assert builder.kinds() == ["stale commit"]


def test_a_commit_during_the_join_of_the_next():
    builder = HistoryBuilder()
    builder.join("a", 1, P)
    joining = builder.joining("b", 2, P)
    committing = builder.committing(5, "a", 1)
    builder.done(joining)
    builder.done(committing)
    assert builder.kinds() == []


def test_a_commit_of_an_old_generation_that_is_refused_or_has_no_answer():
    builder = HistoryBuilder()
    builder.join("a", 1, P)
    builder.join("b", 2, P)
    builder.commit(5, "a", 1, outcome=UNKNOWN)
    assert builder.kinds() == []


def test_a_join_without_an_answer_ends_nothing():
    builder = HistoryBuilder()
    builder.join("a", 1, P)
    builder.join("b", 2, P, outcome=UNKNOWN)
    builder.commit(5, "a", 1)
    assert builder.kinds() == []


def test_commits_outside_of_generations_are_not_fenced():
    builder = HistoryBuilder()
    builder.join("a", 1, P)
    builder.commit(5)
    assert builder.kinds() == []


def test_double_assignment():
    builder = HistoryBuilder()
    builder.join("a", 1, P)
    builder.join("b", 1, Q, P)
    assert builder.kinds() == ["double assignment"]


def test_a_repeated_response_is_no_double_assignment():
    builder = HistoryBuilder()
    builder.join("a", 1, P)
    builder.join("a", 1, P)
    assert builder.kinds() == []


def static(*, same: bool) -> HistoryBuilder:
    """A static member comes back with a new member id."""
    builder = HistoryBuilder()
    builder.join("i-1", 1, P, instance="i")
    builder.join("i-2" if same else "j-1", 1, P, instance="i" if same else "j")
    return builder


def test_a_static_member_replaces_its_previous_instance():
    assert static(same=True).kinds() == []
    assert static(same=False).kinds() == ["double assignment"]


def test_a_static_member_is_fenced_by_its_replacement():
    for member, kinds in (("i-2", []), ("i-1", ["stale commit"])):
        builder = static(same=True)
        builder.commit(5, member, 1)
        assert builder.kinds() == kinds


def test_generations_go_back():
    builder = HistoryBuilder()
    builder.join("a", 2, P)
    builder.commit(5, "a", 2)
    builder.join("b", 1, P)
    assert builder.kinds() == ["backward generation"]


def test_joins_at_the_same_time():
    builder = HistoryBuilder()
    first = builder.joining("a", 2, P)
    builder.commit(5)
    second = builder.joining("b", 1, P)
    builder.done(first)
    builder.done(second)
    assert builder.kinds() == []


def test_a_group_without_offsets_is_forgotten():
    builder = HistoryBuilder()
    builder.join("a", 5, P)
    builder.join("b", 1, P)
    builder.join("b", 2, P)
    builder.commit(3, "b", 2)
    assert builder.kinds() == []
    builder.join("c", 1, Q)
    assert builder.kinds() == ["backward generation"]


def test_generations_of_other_groups():
    builder = HistoryBuilder()
    builder.join("a", 5, P)
    builder.commit(1, "a", 5)
    operation = builder.joining("b", 1, P)
    operation.action.group = "h"
    builder.done(operation)
    assert builder.kinds() == []


@pytest.mark.parametrize("durable", [True, False])
def test_a_power_loss_takes_generations(durable):
    """The same numbers are given out again, to others."""
    builder = HistoryBuilder()
    builder.join("a", 1, P)
    builder.commit(5, "a", 1)
    builder.join("b", 2, P)
    builder.loss(commits=5)
    builder.join("c", 2, P)
    builder.join("c", 1, Q)
    builder.commit(6, "c", 2)
    assert builder.kinds(durable=durable) == (
        ["backward generation", "double assignment"] if durable else ["backward generation"]
    )


def test_operations_across_a_power_loss_are_not_checked():
    builder = HistoryBuilder()
    builder.join("a", 2, P)
    builder.commit(5, "a", 2)
    joining = builder.joining("b", 1, P)
    builder.loss()
    builder.done(joining)
    assert builder.kinds() == []
