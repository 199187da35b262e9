"""Commands of transcripts (group_transcript.py) for streams groups.

    a stream@1 epoch=0 process=p topology=0/s0(source:t|changelog:c);s1(source:u&v|repartition:r#3)

A topology is its epoch and its subtopologies, each with its id and its topics: `source`, `regex`, `sink`, `changelog`
and `repartition`, and `copartition` with indexes (`s0&r1`: the first source topic and the second repartition topic).
Topics with a number of partitions have it after `#`. Tasks are `s0:0,s0:1`; what is not named is null.
"""

import re
from typing import Any

Body = dict[str, Any]
_KINDS = {"s": "source_topics", "x": "source_topic_regex", "r": "repartition_source_topics"}
_NAMES = {"source": "source_topics", "regex": "source_topic_regex", "sink": "repartition_sink_topics"}
_TOPICS = {"changelog": "state_changelog_topics", "repartition": "repartition_source_topics"}


def heartbeat(a: dict[str, str], member_id: str) -> Body:
    epoch = int(a.get("epoch", 0))
    joins = epoch == 0
    body: Body = {
        "group_id": a.get("group", "g"),
        "member_id": member_id,
        "member_epoch": epoch,
        "endpoint_information_epoch": int(a.get("info", 0)),
        "instance_id": a.get("instance"),
        "rack_id": a.get("rack"),
        "rebalance_timeout_ms": int(a.get("rebalance", 5000 if joins else -1)),
        "topology": _topology(a["topology"]) if "topology" in a else None,
        "process_id": a.get("process"),
        "client_tags": [_key_value(tag) for tag in a["tags"].split(",") if tag] if "tags" in a else None,
        "shutdown_application": "shutdown" in a,
    }
    # `owned` is short for the active tasks of a request with all kinds of tasks.
    if joins or "owned" in a:
        a = {"active": a.get("owned", ""), "standby": "", "warmup": "", **a}
    for kind in ("active", "standby", "warmup"):
        body[f"{kind}_tasks"] = _tasks(a[kind]) if kind in a else None
    for name, word in (("task_offsets", "offsets"), ("task_end_offsets", "ends")):
        body[name] = [_task_offset(text) for text in a[word].split(",") if text] if word in a else None
    if "endpoint" in a:
        host, _, port = a["endpoint"].partition(":")
        body["user_endpoint"] = {"host": host, "port": int(port)}
    return body


def _topology(text: str) -> Body:
    epoch, _, rest = text.partition("/")
    return {"epoch": int(epoch), "subtopologies": [_subtopology(part) for part in rest.split(";") if part]}


def _subtopology(text: str) -> Body:
    name, _, rest = text.partition("(")
    body: Body = {"subtopology_id": name, "copartition_groups": []}
    for part in rest.removesuffix(")").split("|"):
        key, _, value = part.partition(":")
        items = [item for item in value.split("&") if item]
        if key == "copartition":
            group: Body = {field: [] for field in _KINDS.values()}
            for kind, index in re.findall(r"([a-z])(\d+)", value):
                group[_KINDS[kind]].append(int(index))
            body["copartition_groups"].append(group)
        elif key in _NAMES:
            body[_NAMES[key]] = items
        elif key:
            body[_TOPICS[key]] = [_topic(item) for item in items]
    return body


def _topic(text: str) -> Body:
    name, _, rest = text.partition("#")
    partitions, *configs = rest.split("#")
    return {
        "name": name,
        "partitions": int(partitions or 0),
        "topic_configs": [_key_value(config) for config in configs],
    }


def _key_value(text: str) -> Body:
    key, _, value = text.partition(":")
    return {"key": key, "value": value}


def _tasks(text: str) -> list[Body]:
    partitions: dict[str, list[int]] = {}
    for item in text.split(",") if text else []:
        subtopology, _, partition = item.partition(":")
        partitions.setdefault(subtopology, []).append(int(partition))
    return [{"subtopology_id": name, "partitions": numbers} for name, numbers in partitions.items()]


def _task_offset(text: str) -> Body:
    subtopology, partition, offset = text.split(":")
    return {"subtopology_id": subtopology, "partition": int(partition), "offset": int(offset)}
