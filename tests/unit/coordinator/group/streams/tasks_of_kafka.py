"""Random topologies and groups of members with tasks, as JSON for Kafka's own classes (KafkaTasks.java).

Record what these return: `.venv/bin/python -m tests.unit.coordinator.group.streams.tasks_of_kafka`. It replaces
topologies_of_kafka.txt and tasks_of_kafka.txt: a line of input, and a line with the result.
"""

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from kbroker.coordinator.group.assignors.tasks_sticky import TaskMember, assign_sticky
from kbroker.coordinator.group.streams.tasks import TaskId, TaskIds, each_task
from kbroker.coordinator.java_collections import hash_map_order
from protocol.messages.k88_streams_groups import (
    CopartitionGroup,
    HeartbeatSubtopology,
    StreamsKeyValue,
    StreamsTopicInfo,
)
from tests.compat.java_programs import classpath_of, java_command
from tests.unit.coordinator.group.assignors.record_kafka import KafkaAssignors

HERE = Path(__file__).parent
TOPOLOGIES, TASKS = HERE / "topologies_of_kafka.txt", HERE / "tasks_of_kafka.txt"

Json = dict[str, Any]


def recorded(path: Path) -> list[tuple[Json, Json]]:
    return list(pairwise(map(json.loads, path.read_text().splitlines())))[::2]


# Topologies.


def topic_info(name: str, partitions: int = 0, replication_factor: int = 0, configs: Json | None = None) -> Json:
    rows = [{"key": key, "value": value} for key, value in (configs or {}).items()]
    return {
        "name": name,
        "partitions": partitions,
        "replicationFactor": replication_factor,
        "topicConfigs": rows,
    }


def subtopology(
    name: str,
    sources: list[str],
    sinks: list[str] | None = None,
    repartition: list[Json] | None = None,
    changelogs: list[str] | None = None,
    joined: list[tuple[list[int], list[int]]] | None = None,
) -> Json:
    """`joined`: indexes in `sources` and in `repartition`."""
    groups = [
        {"sourceTopics": source, "sourceTopicRegex": [], "repartitionSourceTopics": other}
        for source, other in joined or []
    ]
    return {
        "subtopologyId": name,
        "sourceTopics": sources,
        "sourceTopicRegex": [],
        "stateChangelogTopics": [topic_info(name, configs={"cleanup.policy": "compact"}) for name in changelogs or []],
        "repartitionSinkTopics": sinks or [],
        "repartitionSourceTopics": repartition or [],
        "copartitionGroups": groups,
    }


def structs(subtopologies: list[Json]) -> list[HeartbeatSubtopology]:
    def infos(topics: list[Json]) -> list[StreamsTopicInfo]:
        return [
            StreamsTopicInfo(
                name=topic["name"],
                partitions=topic["partitions"],
                replication_factor=topic["replicationFactor"],
                topic_configs=[StreamsKeyValue(**row) for row in topic["topicConfigs"]],
            )
            for topic in topics
        ]

    return [
        HeartbeatSubtopology(
            subtopology_id=each["subtopologyId"],
            source_topics=each["sourceTopics"],
            source_topic_regex=[],
            state_changelog_topics=infos(each["stateChangelogTopics"]),
            repartition_sink_topics=each["repartitionSinkTopics"],
            repartition_source_topics=infos(each["repartitionSourceTopics"]),
            copartition_groups=[
                CopartitionGroup(
                    source_topics=group["sourceTopics"],
                    source_topic_regex=[],
                    repartition_source_topics=group["repartitionSourceTopics"],
                )
                for group in each["copartitionGroups"]
            ],
        )
        for each in subtopologies
    ]


def random_topology(random: Random) -> Json:
    """Return subtopologies and topics; some do not fit each other."""
    names = random.sample([str(number) for number in range(20)], random.choice([1, 2, 3, 4, 13]))
    fixed = {f"repartition-{number}": random.choice([0, 0, 3]) for number in range(4)}
    found = []
    for name in names:
        sources = random.sample(["a", "b", "c"], random.choice([1, 1, 2]))
        repartition = random.sample(sorted(fixed), random.choice([0, 0, 1, 2]))
        infos = [topic_info(each, fixed[each], random.choice([0, 2]), {"k": "v"}) for each in repartition]
        sinks = random.sample(sorted(fixed), random.choice([0, 1, 2]))
        changelogs = random.sample([f"changelog-{number}" for number in range(5)], random.choice([0, 1, 2]))
        joined = random.sample(range(len(sources)), random.randint(0, len(sources)))
        others = random.sample(range(len(infos)), random.randint(0, len(infos)))
        found.append(subtopology(name, sources, sinks, infos, changelogs, [(joined, others)]))
    topics = {name: random.choice([2, 3, 3, 3, 3]) for name in "abc" if random.random() < 0.97}
    existing = random.sample([*fixed, "changelog-0"], random.choice([0, 0, 1, 2]))
    topics |= {name: random.choice([2, 3, 3]) for name in existing}
    return {"topology": {"epoch": 1, "subtopologies": found}, "topics": topics}


# Tasks.


def targets(group: Json) -> Json:
    """Return the targets of a group's members as Kafka's classes do: active and standby tasks of each."""
    specs = {}
    for name in hash_map_order(group["members"]):
        member = group["members"][name]
        offsets = {TaskId(id, int(part)): offset for id, of in member["offsets"].items() for part, offset in of.items()}
        active, standby = (list(each_task(member[role])) for role in ("active", "standby"))
        specs[name] = TaskMember(member["process"], active, standby, offsets)
    found = assign_sticky(specs, group["subtopologies"], group["standbys"])
    return {name: [_lists(tasks.active), _lists(tasks.standby)] for name, tasks in found.items()}


def _lists(tasks: TaskIds) -> Json:
    return {subtopology_id: list(partitions) for subtopology_id, partitions in tasks.items()}


def random_groups(random: Random, assign: Callable[[Json], Json], steps: int = 4) -> Iterator[tuple[Json, Json]]:
    """Yield a group and its targets, as members join and leave; they have their targets in the next step."""
    processes = [f"process-{number}" for number in range(random.randint(1, 4))]

    def add_member() -> None:
        member = {"process": random.choice(processes), "active": {}, "standby": {}, "offsets": {}}
        group["members"][f"member-{random.randrange(1000)}"] = member

    subtopologies = {str(id): [random.randint(1, 5), random.choice([0, 1, 1])] for id in range(random.randint(1, 3))}
    group: Json = {"subtopologies": subtopologies, "members": {}, "standbys": random.choice([0, 1, 2])}
    for _ in range(random.randint(1, 7)):
        add_member()
    for _ in range(steps):
        for member in group["members"].values():
            stateful = [
                (id, part) for id, (count, has_state) in subtopologies.items() if has_state for part in range(count)
            ]
            member["offsets"] = {}
            for id, part in random.sample(stateful, min(len(stateful), random.choice([0, 0, 2]))):
                member["offsets"].setdefault(id, {})[str(part)] = random.randint(0, 5)
        result = assign(group)
        yield json.loads(json.dumps(group)), result
        for name, (active, standby) in result.items():
            group["members"][name] |= {"active": active, "standby": standby}
        if random.random() < 0.6 and len(group["members"]) > 1:
            del group["members"][random.choice(sorted(group["members"]))]
        if random.random() < 0.6:
            add_member()


def main() -> None:
    kafka = KafkaAssignors(java_command("KafkaTasks", classpath_of(HERE / "KafkaTasks.java")))

    def ask(request: Json) -> Json:
        answer: Json = json.loads(kafka(json.dumps(request)))
        return answer

    topologies = [random_topology(Random(seed)) for seed in range(30)]
    groups = [pair for seed in range(20) for pair in random_groups(Random(seed), ask)]
    for path, pairs in ((TOPOLOGIES, [(each, ask(each)) for each in topologies]), (TASKS, groups)):
        path.write_text("".join(f"{json.dumps(value, separators=(',', ':'))}\n" for pair in pairs for value in pair))
    kafka.close()


if __name__ == "__main__":
    main()
