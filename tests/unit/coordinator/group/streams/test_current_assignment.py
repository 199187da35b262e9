"""The steps of members towards their targets are those of Apache Kafka 4.4.0."""

from pathlib import Path

import pytest

from kbroker.common import KafkaError
from kbroker.coordinator.group.streams.current_assignment import (
    Holder,
    Holders,
    StreamsTarget,
    TaskSets,
    next_assignment,
)
from kbroker.coordinator.group.streams.streams_group_member import (
    AssignedTasks,
    StreamsGroupMember,
    StreamsMemberState,
)
from kbroker.coordinator.group.streams.tasks import NO_TASKS, TaskId, Tasks, grouped
from protocol.errors import ErrorCode

RECORDED = Path(__file__).with_name("current_assignments_of_kafka.txt").read_text().splitlines()
ACTIVE, STANDBY, WARMUP = 1, 2, 4


def tasks_in(word: str, role: int) -> frozenset[TaskId]:
    return frozenset(TaskId("s", index) for index, digit in enumerate(word) if int(digit) & role)


def assigned(word: str, epoch: int) -> AssignedTasks:
    return AssignedTasks(dict.fromkeys(tasks_in(word, ACTIVE), epoch), tasks_in(word, STANDBY), tasks_in(word, WARMUP))


def shown(tasks: AssignedTasks) -> str:
    active = ", ".join(f"{task.partition}={epoch}" for task, epoch in sorted(tasks.active.items()))
    copies = "/".join(str(sorted(task.partition for task in role)) for role in tasks[1:])
    return f"{{{active}}}/{copies}"


def step(line: str) -> str:
    state, own, pending, ahead, wanted, owned, active, standby, warmup = line.split()
    member = StreamsGroupMember(
        member_id="m",
        process_id="p",
        epoch=5,
        previous_epoch=4,
        state=StreamsMemberState(int(state)),
        assigned=assigned(own, 3),
        pending_revocation=assigned(pending, 2),
    )

    def has(task: TaskId, role: int) -> bool:
        return any(task in tasks_in(word, role) for word in (own, pending))

    holders = Holders(
        lambda task: Holder.PROCESS if has(task, ACTIVE) else Holder(int(active[task.partition])),
        lambda task: has(task, STANDBY) or standby[task.partition] == "1",
        lambda task: has(task, WARMUP) or warmup[task.partition] == "1",
    )
    target = Tasks(*(grouped(tasks_in(wanted, role)) for role in (ACTIVE, STANDBY, WARMUP)))
    sent = None if owned == "-" else TaskSets(*(tasks_in(owned, role) for role in (ACTIVE, STANDBY, WARMUP)))
    after = next_assignment(member, StreamsTarget(5 + int(ahead), target), sent, holders)
    tasks = f"{shown(after.assigned)} | {shown(after.pending_revocation)}"
    return f"{line} -> {int(after.state)} {after.previous_epoch} {after.epoch} {tasks}"


def test_steps_are_those_of_kafka() -> None:
    recorded = [line for line in RECORDED if not line.startswith("#")]
    assert [step(line.split(" -> ")[0]) for line in recorded] == recorded


def test_a_member_never_passes_the_epoch_of_its_target() -> None:
    # Kafka raises the epoch of a member that has to revoke more tasks in the epoch of its target.
    assert step("2 1 0 0 0 1 0 0 0").endswith("-> 2 5 5 {}/[]/[] | {0=3}/[]/[]")


def test_a_member_in_a_state_of_a_later_version_joins_again() -> None:
    member = StreamsGroupMember(member_id="m", epoch=5, state=StreamsMemberState.UNKNOWN)
    nobody = Holders(lambda _: Holder.NOBODY, lambda _: False, lambda _: False)
    target = StreamsTarget(6, NO_TASKS)
    for owned in (None, TaskSets(frozenset({TaskId("s", 0)}))):
        with pytest.raises(KafkaError) as raised:
            next_assignment(member, target, owned, nobody)
        assert raised.value.code is ErrorCode.FENCED_MEMBER_EPOCH
    assert next_assignment(member, target, TaskSets(), nobody).epoch == 6
