"""The assignor `sticky` of streams groups: tasks stay where their state is, as far as that is balanced (pure).

Members are threads, and those with the same process id share a disk. So a process with more members gets more tasks,
and a copy of a task, a standby task, is on another process. In this order:

1. An active task stays with its member, or goes to one that has a copy of its state, if that has not its share yet.
2. The other active tasks go to the least loaded processes, and there to the least loaded members.
3. A standby task goes to the former member of its active task, or stays, if that member has not its share yet.
4. The other standby tasks go to the least loaded processes that do not have the task.

These are the decisions of Kafka 4.4, whose order among equals is that of Java's collections, so the result is the same
for the same order of members. Client tags do not matter to it, and there are no warm-up tasks yet.
"""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from kbroker.coordinator.group.streams.tasks import TaskId, Tasks, grouped
from kbroker.coordinator.java_collections import PriorityQueue, computed_map_order, hash_map_order
from kbroker.runtime.turns import paced

# The number of tasks, and whether they have state, by subtopology id.
Subtopologies = Mapping[str, tuple[int, bool]]


class TaskMember(NamedTuple):
    """A member, the tasks that it has, and the offsets up to which it has the state of tasks, as far as it tells."""

    process_id: str
    active: Collection[TaskId] = ()
    standby: Collection[TaskId] = ()
    offsets: Mapping[TaskId, int] = MappingProxyType({})


def assign_sticky(
    members: Mapping[str, TaskMember], subtopologies: Subtopologies, standby_count: int
) -> dict[str, Tasks]:
    """Return the target of each member. `standby_count`: the number of standby tasks for each task with state."""
    if not members:
        return {}
    active = [TaskId(id, partition) for id, (count, _) in subtopologies.items() for partition in range(count)]
    stateful = [task for task in active if subtopologies[task.subtopology_id][1]]
    assignment = _Assignment(members)
    assignment.assign_active(active)
    assignment.assign_standby(stateful, standby_count, len(active) + len(stateful) * standby_count)
    return assignment.targets()


class _Share:
    """As many tasks as a member may have. Once some have that many, it is the share of the others in the rest."""

    def __init__(self, task_count: int, member_count: int) -> None:
        self._task_count = task_count
        self._member_count = member_count
        self.size = -(-task_count // member_count)

    def on_added(self, size: int) -> None:
        """A member has got a task, and has `size` of them now."""
        if size == self.size:
            self._member_count -= 1
            self._task_count -= size
            self.size = -(-self._task_count // self._member_count) if self._member_count else 0


class _Process:
    """A process, with the number of tasks of each of its members."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.tasks: set[TaskId] = set()
        self._members_by_load: PriorityQueue[str] | None = None

    @property
    def load(self) -> float:
        # No process has a task twice.
        return len(self.tasks) / len(self.sizes)

    def add(self, member_id: str, task: TaskId) -> None:
        self.sizes[member_id] += 1
        self.tasks.add(task)
        self._members_by_load = None

    def add_to_least_loaded(self, task: TaskId) -> str:
        """Add a task to the member with the fewest tasks, and return it."""
        members = self._members_by_load or PriorityQueue(self.sizes.__getitem__, hash_map_order(self.sizes))
        member_id = members.pop()
        self.add(member_id, task)
        members.push(member_id)
        self._members_by_load = members
        return member_id


class _Assignment:
    def __init__(self, members: Mapping[str, TaskMember]) -> None:
        processes: dict[str, _Process] = {}
        self._process_of: dict[str, _Process] = {}
        self._active: dict[str, list[TaskId]] = {member_id: [] for member_id in members}
        self._standby: dict[str, list[TaskId]] = {member_id: [] for member_id in members}
        self._former: dict[TaskId, str] = {}
        candidates: dict[TaskId, list[tuple[bool, int, int, str]]] = {}
        for position, (member_id, member) in enumerate(paced(members.items())):
            process = self._process_of[member_id] = processes.setdefault(member.process_id, _Process())
            process.sizes[member_id] = 0
            self._former.update((task, member_id) for task in member.active)
            standby = set(member.standby)
            for task in standby | member.offsets.keys():
                rank = (task not in standby, -member.offsets.get(task, 0), position, member_id)
                candidates.setdefault(task, []).append(rank)
        self._processes = [processes[id] for id in computed_map_order(processes, len(members))]
        # The members with a copy of the state of a task: former standby tasks first, then the most complete copies.
        self._candidates = {task: [rank[-1] for rank in sorted(ranks)] for task, ranks in candidates.items()}

    def assign_active(self, tasks: Sequence[TaskId]) -> None:
        share = _Share(len(tasks), len(self._process_of))
        without_former = []
        for task in paced(sorted(tasks, key=_partition_first)):
            if not self._add_within(share, self._active, self._former.get(task), task):
                without_former.append(task)
        free = []
        for task in paced(without_former):
            if not self._add_within(share, self._active, self._candidate(task), task):
                free.append(task)
        queue = self._by_load()
        for task in paced(sorted(free)):
            self._add_to_least_loaded(queue, self._active, task)

    def assign_standby(self, tasks: Sequence[TaskId], count: int, total: int) -> None:
        """Assign the standby tasks. `total`: the number of all tasks."""
        share = _Share(total, len(self._process_of))
        for member_id, process in self._process_of.items():
            share.on_added(process.sizes[member_id])
        missing: list[tuple[TaskId, int]] = []
        for task in paced(sorted(tasks, key=_partition_first, reverse=True)):
            for number in range(count):
                former = self._former.get(task)
                if former is not None and task in self._process_of[former].tasks:
                    former = None
                if not (
                    self._add_within(share, self._standby, former, task)
                    or self._add_within(share, self._standby, self._candidate(task), task)
                ):
                    missing.append((task, count - number))
                    break
        queue = self._by_load()
        for task, number in paced(sorted(missing, reverse=True)):
            while number and self._add_to_least_loaded(queue, self._standby, task):
                number -= 1

    def _candidate(self, task: TaskId) -> str | None:
        """Return the first member with a copy of the state, unless the load of another one and of its process is lower.

        Members of processes that have the task are left out.
        """
        best: tuple[float, int, str] | None = None
        for member_id in self._candidates.get(task, ()):
            process = self._process_of[member_id]
            load, size = process.load, process.sizes[member_id]
            if task not in process.tasks and (best is None or (load < best[0] and size < best[1])):
                best = load, size, member_id
        return None if best is None else best[2]

    def _add_within(
        self, share: _Share, assigned: Mapping[str, list[TaskId]], member_id: str | None, task: TaskId
    ) -> bool:
        """Add a task to a member, if there is one that has not its share yet. Returns whether it is added."""
        if member_id is None:
            return False
        process = self._process_of[member_id]
        if process.sizes[member_id] >= share.size:
            return False
        process.add(member_id, task)
        assigned[member_id].append(task)
        share.on_added(process.sizes[member_id])
        return True

    def _by_load(self) -> PriorityQueue[_Process]:
        return PriorityQueue(lambda process: process.load, self._processes)

    def _add_to_least_loaded(
        self, queue: PriorityQueue[_Process], assigned: Mapping[str, list[TaskId]], task: TaskId
    ) -> bool:
        """Add a task to the least loaded process that does not have it. Returns whether there is one."""
        popped = [queue.pop()]
        while task in popped[-1].tasks and queue:
            popped.append(queue.pop())
        is_added = task not in popped[-1].tasks
        if is_added:
            assigned[popped[-1].add_to_least_loaded(task)].append(task)
        for process in reversed(popped):
            queue.push(process)
        return is_added

    def targets(self) -> dict[str, Tasks]:
        return {id: Tasks(grouped(self._active[id]), grouped(self._standby[id])) for id in paced(self._active)}


def _partition_first(task: TaskId) -> tuple[int, str]:
    return task.partition, task.subtopology_id
