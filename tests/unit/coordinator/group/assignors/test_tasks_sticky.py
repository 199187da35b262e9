"""The assignor of streams groups: the results of Kafka 4.4.0, and properties of any result."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from kbroker.coordinator.group.assignors.tasks_sticky import TaskMember, assign_sticky
from kbroker.coordinator.group.streams.tasks import NO_TASKS, TaskId, Tasks, each_task
from tests.unit.coordinator.group.streams.tasks_of_kafka import TASKS, random_groups, recorded, targets


def test_the_targets_are_those_of_kafka() -> None:
    for group, expected in recorded(TASKS):
        assert targets(group) == expected, group


@given(st.integers(0, 1 << 32))
def test_each_task_is_active_once_and_its_copies_are_on_other_processes(seed: int) -> None:
    for group, result in random_groups(Random(seed), targets):
        tasks = {TaskId(id, part) for id, (count, _) in group["subtopologies"].items() for part in range(count)}
        active = [task for own, _ in result.values() for task in each_task(own)]
        assert sorted(active) == sorted(tasks)
        processes: dict[TaskId, list[str]] = {task: [] for task in tasks}
        for name, roles in result.items():
            for role in roles:
                for task in each_task(role):
                    processes[task].append(group["members"][name]["process"])
        count = len({member["process"] for member in group["members"].values()})
        for task, found in processes.items():
            assert len(set(found)) == len(found)
            has_state = group["subtopologies"][task.subtopology_id][1]
            assert len(found) == min(count, 1 + group["standbys"] * has_state)
        # A member has at most its share of the active tasks, rounded up.
        share = -(-len(tasks) // len(result))
        assert all(sum(map(len, own.values())) <= share for own, _ in result.values()) or count < len(result)


def test_without_members_or_tasks_there_is_nothing_to_assign() -> None:
    assert assign_sticky({}, {"s": (2, True)}, 1) == {}
    assert assign_sticky({"a": TaskMember("p")}, {}, 1) == {"a": NO_TASKS}
    assert assign_sticky({"a": TaskMember("p")}, {"s": (1, True)}, 2) == {"a": Tasks({"s": (0,)})}
