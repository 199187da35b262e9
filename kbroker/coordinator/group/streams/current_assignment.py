"""How a member of a streams group proceeds from its current tasks to its target (pure).

STABLE -> UNREVOKED_TASKS     it has tasks that are not in its target: it keeps its epoch until it no longer owns them
       -> UNRELEASED_TASKS    it is in the epoch of its target, and others still have some of its tasks
       -> STABLE              it is in the epoch of its target, and has all of it

An active task never has two owners, and the members of a process, which share a state directory, never have a task
twice. A member that has a task in another role need not give it up first:

- An active task that becomes a standby is assigned as such while the member still has to revoke it.
- Standby and warm-up tasks change their role at once.
- A standby or warm-up task becomes active when the active one is released; until then the member keeps its copy.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from kbroker.common import KafkaError
from kbroker.coordinator.group.streams.streams_group_member import AssignedTasks, StreamsGroupMember, StreamsMemberState
from kbroker.coordinator.group.streams.tasks import TaskId, Tasks, each_task
from protocol.errors import ErrorCode


class Holder(Enum):
    """Who has a task in a role: nobody, a member of the same process, or one of another process."""

    NOBODY = 0
    PROCESS = 1
    OTHER = 2


class Holders(NamedTuple):
    """Return who has a task in a role, the member itself included."""

    active: Callable[[TaskId], Holder]
    standby: Callable[[TaskId], bool]
    warmup: Callable[[TaskId], bool]


class TaskSets(NamedTuple):
    """The tasks that a member sends or should have, by role."""

    active: AbstractSet[TaskId] = frozenset()
    standby: AbstractSet[TaskId] = frozenset()
    warmup: AbstractSet[TaskId] = frozenset()

    @classmethod
    def of(cls, tasks: Tasks) -> "TaskSets":
        return cls(*(frozenset(each_task(role)) for role in tasks))

    def have_any(self, tasks: AssignedTasks) -> bool:
        return any(not own.isdisjoint(other) for own, other in zip(self, tasks, strict=True))


class StreamsTarget(NamedTuple):
    """The tasks that a member should have, and the epoch for which they were computed."""

    epoch: int
    tasks: Tasks


def next_assignment(
    member: StreamsGroupMember, target: StreamsTarget, owned: TaskSets | None, holders: Holders
) -> StreamsGroupMember:
    """Return the member after its heartbeat. Raises FENCED_MEMBER_EPOCH if its state is not known.

    `owned`: the tasks that the member says it has; None if it does not say, so it may have all.
    """
    state = member.state
    if state is StreamsMemberState.STABLE:
        return member if member.epoch == target.epoch else _Step(member, target, owned, holders).run(member.epoch)
    if state is StreamsMemberState.UNREVOKED_TASKS:
        if owned is None or owned.have_any(member.pending_revocation):
            return member
        return _Step(member, target, owned, holders).run(min(member.epoch + 1, target.epoch))
    if state is StreamsMemberState.UNKNOWN and (owned is None or any(owned)):
        text = "The streams group member is in a unknown state. The member must abandon all its tasks and rejoin."
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, text)
    return _Step(member, target, owned, holders).run(member.epoch)


class _Step:
    """One step towards the target."""

    def __init__(
        self, member: StreamsGroupMember, target: StreamsTarget, owned: TaskSets | None, holders: Holders
    ) -> None:
        self._member = member
        self._target_epoch = target.epoch
        self._owned = owned
        self._holders = holders
        wanted = TaskSets.of(target.tasks)
        current = member.assigned
        self._active = {task: epoch for task, epoch in current.active.items() if task in wanted.active}
        self._standby, self._warmup = current.standby & wanted.standby, current.warmup & wanted.warmup
        self._revoked_active = {task: epoch for task, epoch in current.active.items() if task not in wanted.active}
        self._revoked_standby, self._revoked_warmup = current.standby - wanted.standby, current.warmup - wanted.warmup
        new_active, new_standby = wanted.active - current.active.keys(), wanted.standby - current.standby
        new_warmup = wanted.warmup - current.warmup
        self._added_active = {task for task in new_active if self._is_free_active(task)}
        self._added_standby = {task for task in new_standby if self._is_free_copy(task)}
        self._added_warmup = {task for task in new_warmup if self._is_free_copy(task)}
        self._waiting_active = new_active - self._added_active
        self._waiting_standby = new_standby - self._added_standby
        self._waiting_warmup = new_warmup - self._added_warmup

    def _is_free_active(self, task: TaskId) -> bool:
        return self._holders.active(task) is Holder.NOBODY and not self._is_copied_by_process(task)

    def _is_free_copy(self, task: TaskId) -> bool:
        return self._holders.active(task) is not Holder.PROCESS and not self._is_copied_by_process(task)

    def _is_copied_by_process(self, task: TaskId) -> bool:
        """Return whether another member of the process has a standby or warm-up of the task."""
        assigned, holders = self._member.assigned, self._holders
        return (task not in assigned.standby and holders.standby(task)) or (
            task not in assigned.warmup and holders.warmup(task)
        )

    def run(self, epoch: int) -> StreamsGroupMember:
        """`epoch`: that of the member as long as it has tasks to revoke."""
        self._demote()
        promoted_standby = self._revoked_standby & (self._added_active | self._waiting_active)
        promoted_warmup = self._revoked_warmup & (self._added_active | self._waiting_active)
        self._swap_copies()
        self._revoked_standby -= promoted_standby
        self._revoked_warmup -= promoted_warmup
        revoked = AssignedTasks(self._revoked_active, self._revoked_standby, self._revoked_warmup)
        must_revoke = any(revoked) and (self._owned is None or self._owned.have_any(revoked))
        # A copy is kept until its task is granted.
        granted = frozenset() if must_revoke else self._added_active
        standby = self._standby | (promoted_standby - granted)
        warmup = self._warmup | (promoted_warmup - granted)
        if must_revoke:
            return replace(
                self._member,
                state=StreamsMemberState.UNREVOKED_TASKS,
                previous_epoch=self._member.epoch,
                epoch=epoch,
                assigned=AssignedTasks(self._active, standby, warmup),
                pending_revocation=revoked,
            )
        active = {**self._active, **dict.fromkeys(self._added_active, self._target_epoch)}
        has_all = not (self._waiting_active or self._waiting_standby or self._waiting_warmup)
        return replace(
            self._member,
            state=StreamsMemberState.STABLE if has_all else StreamsMemberState.UNRELEASED_TASKS,
            previous_epoch=self._member.epoch,
            epoch=self._target_epoch,
            assigned=AssignedTasks(active, standby | self._added_standby, warmup | self._added_warmup),
            pending_revocation=AssignedTasks(),
        )

    def _demote(self) -> None:
        """Assign the active tasks that become standby ones, before the member has revoked them."""
        demoted = {task for task in self._waiting_standby & self._revoked_active.keys() if self._may_copy(task)}
        self._standby |= demoted
        self._waiting_standby = self._waiting_standby - demoted

    def _may_copy(self, task: TaskId) -> bool:
        return not self._is_copied_by_process(task)

    def _swap_copies(self) -> None:
        """Change the role of standby and warm-up tasks."""
        to_warmup = self._revoked_standby & self._added_warmup
        to_standby = self._revoked_warmup & self._added_standby
        self._warmup |= to_warmup
        self._standby |= to_standby
        self._revoked_standby -= to_warmup
        self._revoked_warmup -= to_standby
        self._added_warmup -= to_warmup
        self._added_standby -= to_standby
