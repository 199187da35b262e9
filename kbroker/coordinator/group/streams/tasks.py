"""The tasks of a Kafka Streams application: a subtopology and a number for each partition of its input (pure)."""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

# Ascending partitions by subtopology id, none of them empty. Not changed once it is a part of a member's tasks.
TaskIds = Mapping[str, tuple[int, ...]]

NO_TASK_IDS: TaskIds = MappingProxyType({})


class TaskId(NamedTuple):
    subtopology_id: str
    partition: int


class Tasks(NamedTuple):
    """The tasks of a member by role: it processes active ones, and keeps copies of the state of the others."""

    active: TaskIds = NO_TASK_IDS
    standby: TaskIds = NO_TASK_IDS
    warmup: TaskIds = NO_TASK_IDS


NO_TASKS = Tasks()


def task_ids_of(structs: Iterable[Any] | None) -> TaskIds:
    """Return the tasks in a list of structs with `subtopology_id` and `partitions`."""
    return {each.subtopology_id: tuple(sorted(set(each.partitions))) for each in structs or () if each.partitions}


def each_task(tasks: TaskIds) -> Iterator[TaskId]:
    for subtopology_id, partitions in tasks.items():
        for partition in partitions:
            yield TaskId(subtopology_id, partition)


def grouped(tasks: Iterable[TaskId]) -> TaskIds:
    """Return tasks by subtopology, both in ascending order."""
    partitions: dict[str, list[int]] = {}
    for subtopology_id, partition in sorted(tasks):
        partitions.setdefault(subtopology_id, []).append(partition)
    return {subtopology_id: tuple(numbers) for subtopology_id, numbers in partitions.items()}
