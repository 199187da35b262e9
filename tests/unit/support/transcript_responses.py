"""Response bodies as lines of transcripts (group_transcript.py)."""

from typing import Any

from protocol.errors import ErrorCode
from tests.unit.support.transcript_names import Body, Names

# Values with which a field is left out of a rendered response.
HIDDEN_VALUES: dict[str, Any] = {
    "throttle_time_ms": 0,
    "error_code": 0,
    "generation_id": -1,
    "leader": "",
    "skip_assignment": False,
    "members": [],
    "protocol_type": None,
    "protocol_name": None,
    "group_instance_id": None,
    "committed_leader_epoch": -1,
    "producer_id": -1,
    "producer_epoch": -1,
    "authorized_operations": -(2**31),
    "results": [],
    # Of streams groups.
    "acceptable_recovery_lag": 10_000,
    "acceptable_recovery_lag_legacy": 0,
    "task_offset_interval_ms": 60_000,
    "status": None,
    "active_tasks": None,
    "standby_tasks": None,
    "warmup_tasks": None,
    "topology_description": None,
    "topology_description_required": False,
    "topology_description_status": 0,
    "partitions_by_user_endpoint": None,
    "user_endpoint": None,
    "client_tags": [],
    "task_offsets": [],
    "task_end_offsets": [],
    "is_classic": False,
}


# Lists without an order.
SORTED = {
    "members",
    "groups",
    "topics",
    "partitions",
    "results",
    "subscribed_topic_names",
    "topic_partitions",
    "active_tasks",
    "standby_tasks",
    "warmup_tasks",
    "active_partitions",
    "standby_partitions",
    "partitions_by_user_endpoint",
    "client_tags",
    "task_offsets",
    "task_end_offsets",
}


def code(number: int) -> str:
    return ErrorCode(number).name


def render(names: Names, body: Body) -> str:
    """Return a response on one line: the error first, then the other fields, with nested ones in brackets."""
    words = [code(body["error_code"])] if "error_code" in body else []
    for name, item in body.items():
        if name == "error_code" or (name in HIDDEN_VALUES and HIDDEN_VALUES[name] == item):
            continue
        words.append(f"{_short(name)}={_shown(names, name, item)}")
    return " ".join(words)


def _short(name: str) -> str:
    return name.removesuffix("_id").removesuffix("_code").removesuffix("_ms")


def _shown(names: Names, name: str, item: Any) -> str:
    if name in ("member_id", "leader"):
        return "null" if item is None else names.shown(item)
    if name == "topic_id":
        return names.topic_name(item)
    if name == "producer_id":
        return names.producer(item)
    if name == "port":
        return "PORT"
    if item is None:
        return "null"
    if isinstance(item, dict):
        return "{" + render(names, item) + "}"
    if isinstance(item, (bytes, memoryview)):
        raw = bytes(item)
        return repr(raw.decode()) if raw.isascii() and raw.decode().isprintable() else "x" + raw.hex()
    if isinstance(item, list):
        rows = [render(names, value) if isinstance(value, dict) else str(value) for value in item]
        if name in SORTED:
            rows.sort(key=lambda row: row.partition(" ")[2] if row.split(" ")[0].isupper() else row)
        return "[" + ", ".join(rows) + "]"
    return (
        (item if item.isprintable() and " " not in item and item else repr(item))
        if isinstance(item, str)
        else str(item)
    )
