"""The random stories of streams groups find mistakes that are planted in the coordinator."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kbroker.common import KafkaError
from kbroker.coordinator.group.modern.modern_group import ModernGroup
from kbroker.coordinator.group.modern.modern_groups import ModernGroups
from kbroker.coordinator.group.streams import heartbeat, membership, streams_groups
from kbroker.coordinator.group.streams.current_assignment import Holder, _Step
from kbroker.coordinator.group.streams.heartbeat import StreamsMemberHeartbeat
from kbroker.coordinator.group.streams.streams_group import StreamsGroup
from kbroker.coordinator.group.streams.streams_group_member import NO_ASSIGNED_TASKS
from protocol.errors import ErrorCode
from tests.unit.coordinator.group.streams.test_random_streams_groups import run

# The maximum number of seeds to try.
SEEDS = 40
Plant = Callable[[pytest.MonkeyPatch], None]


def a_join_does_not_bump_the_group_epoch(patch: pytest.MonkeyPatch) -> None:
    original = StreamsMemberHeartbeat._next_group_epoch
    patch.setattr(StreamsMemberHeartbeat, "_next_group_epoch", lambda self, *more: original(self, *more[:3], False))


def an_active_task_is_assigned_while_pending_revocation_elsewhere(patch: pytest.MonkeyPatch) -> None:
    original = StreamsGroup._own
    patch.setattr(
        StreamsGroup, "_own", lambda self, member: original(self, replace(member, pending_revocation=NO_ASSIGNED_TASKS))
    )


def a_process_gets_a_task_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Step, "_is_free_copy", lambda self, task: True)


def an_active_task_ignores_copies_of_its_process(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Step, "_is_free_active", lambda self, task: self._holders.active(task) is Holder.NOBODY)


def a_task_that_returns_loses_its_owner(patch: pytest.MonkeyPatch) -> None:
    def put_member(group: StreamsGroup, member: Any) -> None:
        old = group.members.get(member.member_id)
        ModernGroup.put_member(group, member)
        group._own(member)
        if old is not None:
            group._disown(old)

    patch.setattr(StreamsGroup, "put_member", put_member)


def a_fenced_member_cannot_join_again(patch: pytest.MonkeyPatch) -> None:
    original = membership.find_member

    def find_member(group: StreamsGroup, member_id: str, instance_id: str | None, epoch: int, *more: Any) -> Any:
        if epoch == 0 and member_id in group.members:
            raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH)
        return original(group, member_id, instance_id, epoch, *more)

    patch.setattr(heartbeat, "find_member", find_member)


def load_starts_no_timeouts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ModernGroups, "on_loaded", lambda self, group: None)


def the_assignment_epoch_of_an_empty_group_stays_behind(patch: pytest.MonkeyPatch) -> None:
    original = membership.remove_members

    def remove_members(*arguments: Any) -> list[Any]:
        return [record for record in original(*arguments) if type(record).__name__ != "StreamsTargetEpoch"]

    patch.setattr(streams_groups, "remove_members", remove_members)


def missed_tasks_are_not_returned_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(heartbeat, "_owns_all", lambda owned, assigned: True)


def the_initial_delay_never_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ModernGroups, "pop_expired", lambda self, group: [])


MISTAKES = (
    a_join_does_not_bump_the_group_epoch,
    an_active_task_is_assigned_while_pending_revocation_elsewhere,
    a_process_gets_a_task_twice,
    an_active_task_ignores_copies_of_its_process,
    a_task_that_returns_loses_its_owner,
    a_fenced_member_cannot_join_again,
    load_starts_no_timeouts,
    the_assignment_epoch_of_an_empty_group_stays_behind,
    missed_tasks_are_not_returned_again,
    the_initial_delay_never_ends,
)


@pytest.mark.parametrize("plant", MISTAKES, ids=lambda plant: plant.__name__)
def test_the_mistake_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(SEEDS):
        try:
            run(seed)
        except (AssertionError, KeyError):
            return
    pytest.fail(f"none of {SEEDS} seeds finds it")
