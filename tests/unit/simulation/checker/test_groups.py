"""Fencing in groups."""

import pytest

from tests.unit.simulation.checker.story import UNKNOWN, P, Q, Story


def test_generations_follow_one_another():
    story = Story()
    story.join("a", 1, P, Q)
    story.commit(5, "a", 1)
    story.join("a", 2, P)
    story.join("b", 2, Q)
    story.commit(6, "a", 2)
    story.commit(7, "b", 2, place=Q)
    assert story.kinds() == []


def test_a_commit_of_an_old_generation():
    story = Story()
    story.join("a", 1, P)
    story.join("b", 2, P)
    story.commit(5, "a", 1)
    assert story.kinds() == ["stale commit"]


def test_a_commit_during_the_join_of_the_next():
    story = Story()
    story.join("a", 1, P)
    joining = story.joining("b", 2, P)
    committing = story.committing(5, "a", 1)
    story.done(joining)
    story.done(committing)
    assert story.kinds() == []


def test_a_commit_of_an_old_generation_that_is_refused_or_has_no_answer():
    story = Story()
    story.join("a", 1, P)
    story.join("b", 2, P)
    story.commit(5, "a", 1, outcome=UNKNOWN)
    assert story.kinds() == []


def test_a_join_without_an_answer_ends_nothing():
    story = Story()
    story.join("a", 1, P)
    story.join("b", 2, P, outcome=UNKNOWN)
    story.commit(5, "a", 1)
    assert story.kinds() == []


def test_commits_outside_of_generations_are_not_fenced():
    story = Story()
    story.join("a", 1, P)
    story.commit(5)
    assert story.kinds() == []


def test_double_assignment():
    story = Story()
    story.join("a", 1, P)
    story.join("b", 1, Q, P)
    assert story.kinds() == ["double assignment"]


def test_a_repeated_answer_is_no_double_assignment():
    story = Story()
    story.join("a", 1, P)
    story.join("a", 1, P)
    assert story.kinds() == []


def static(*, same: bool) -> Story:
    """A static member comes back with a new member id."""
    story = Story()
    story.join("i-1", 1, P, instance="i")
    story.join("i-2" if same else "j-1", 1, P, instance="i" if same else "j")
    return story


def test_a_static_member_takes_its_own_place():
    assert static(same=True).kinds() == []
    assert static(same=False).kinds() == ["double assignment"]


def test_a_static_member_is_fenced_by_the_one_that_took_its_place():
    for member, kinds in (("i-2", []), ("i-1", ["stale commit"])):
        story = static(same=True)
        story.commit(5, member, 1)
        assert story.kinds() == kinds


def test_generations_go_back():
    story = Story()
    story.join("a", 2, P)
    story.commit(5, "a", 2)
    story.join("b", 1, P)
    assert story.kinds() == ["backward generation"]


def test_joins_at_the_same_time():
    story = Story()
    first = story.joining("a", 2, P)
    story.commit(5)
    second = story.joining("b", 1, P)
    story.done(first)
    story.done(second)
    assert story.kinds() == []


def test_a_group_without_offsets_is_forgotten():
    story = Story()
    story.join("a", 5, P)
    story.join("b", 1, P)
    story.join("b", 2, P)
    story.commit(3, "b", 2)
    assert story.kinds() == []
    story.join("c", 1, Q)
    assert story.kinds() == ["backward generation"]


def test_other_groups_are_others():
    story = Story()
    story.join("a", 5, P)
    story.commit(1, "a", 5)
    operation = story.joining("b", 1, P)
    operation.action.group = "h"
    story.done(operation)
    assert story.kinds() == []


@pytest.mark.parametrize("durable", [True, False])
def test_a_power_loss_takes_generations(durable):
    """The same numbers are given out again, to others."""
    story = Story()
    story.join("a", 1, P)
    story.commit(5, "a", 1)
    story.join("b", 2, P)
    story.loss(commits=5)
    story.join("c", 2, P)
    story.join("c", 1, Q)
    story.commit(6, "c", 2)
    assert story.kinds(durable=durable) == (
        ["backward generation", "double assignment"] if durable else ["backward generation"]
    )


def test_what_lasts_over_a_power_loss_is_not_judged():
    story = Story()
    story.join("a", 2, P)
    story.commit(5, "a", 2)
    joining = story.joining("b", 1, P)
    story.loss()
    story.done(joining)
    assert story.kinds() == []
