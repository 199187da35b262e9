"""Answers made comparable: what differs from run to run and from broker to broker gets a name instead.

An answer becomes `path: value`. Items of a list are named in the path by what identifies them, not by their place:
`topics/a/partitions/0/error_code`. Lists of plain values stay whole, in their order.
"""

import re
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from tests.compat.wire.batches import describe

# Every topic, group and so on of a story has such a prefix, so that a story never meets another one.
PREFIX = re.compile(r"wire\.[0-9a-f]{8}\.\w+\.\d+\.")
ID_OF = re.compile(r"^<id of (.*)>$")  # a topic goes by its name in paths, even where it is answered by its id
ZERO_ID = "00000000-0000-0000-0000-000000000000"

# What identifies an item of a list, in order of preference.
IDENTITIES = (
    "name", "topic", "group_id", "resource_name", "partition_index", "partition", "index", "api_key", "key",
    "member_id", "node_id", "broker_id", "batch_index", "transactional_id", "producer_id", "topic_id", "log_dir",
    "topic_name", "feature", "user",
)  # fmt: skip

# Fields that are named in order of their appearance, with values that stay as they are.
NUMBERED: dict[str, tuple[Any, ...]] = {
    "member_id": ("",), "leader": ("",), "producer_id": (-1,), "session_id": (0,),
}  # fmt: skip
CHOSEN = {"member_id", "producer_id", "session_id", "topic_id", "coordinator_epoch"}
NODES = {
    "node_id", "broker_id", "leader_id", "controller_id", "replica_id", "replica_nodes", "isr_nodes",
    "eligible_leader_replicas",
}  # fmt: skip
TEXTS = {"error_message", "documentation", "batch_index_error_message"}
# Any number above zero is as good as another one.
SIZES = {"total_bytes", "usable_bytes"}
# Any of these is as good as another one; a coordinator's is the leader epoch of a partition of __transaction_state.
EPOCHS = {"coordinator_epoch", "finalized_features_epoch"}
TIMES = {
    "log_append_time", "last_timestamp", "timestamp", "transaction_start_time", "last_fetch_timestamp",
    "last_caught_up_timestamp",
}  # fmt: skip
AN_HOUR_MS = 3_600_000


class Normaliser:
    """What one story has learned of the broker it runs against. `node` is (id, host, port)."""

    def __init__(self, node: tuple[int, str, int], cluster_id: str) -> None:
        self._node = node
        self._cluster_id = cluster_id
        self._names: dict[tuple[str, Any], str] = {}
        self._texts: dict[str, str] = {}
        self._kept: set[tuple[str, Any]] = set()
        self.shown: dict[str, set[str]] = {}
        self.masked: set[str] = set()

    def keep_chosen(self, values: Any, field: str = "") -> None:
        """What a request names that was not learned from the broker stays as it is: the story's own choice."""
        if isinstance(values, dict):
            for name, item in values.items():
                self.keep_chosen(item, name)
        elif isinstance(values, list):
            for item in values:
                self.keep_chosen(item, field)
        elif field in CHOSEN and (field, values) not in self._names and str(values) not in self._texts:
            self._kept.add((field, str(values) if isinstance(values, UUID) else values))

    def name_text(self, text: str, name: str) -> None:
        """From now on `text` reads `name` wherever it stands."""
        self._texts[text] = name

    def flat(self, answer: Any) -> dict[str, Any]:
        """`path: value` of a plain answer; without its throttle time if that is 0, as it always should be."""
        flat = dict(self._flatten("", self._normal("", answer)))
        return {path: value for path, value in flat.items() if (path, value) != ("throttle_time", 0)}

    def _flatten(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict):
            for name, item in value.items():
                yield from self._flatten(f"{path}/{name}" if path else name, item)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield from self._flatten_items(path, value)
        else:
            yield path, value

    def _flatten_items(self, path: str, items: list[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
        found: dict[str, Any] = {}
        for number, item in enumerate(items):
            identity = _identity(item)
            title = ID_OF.sub(r"\1", str(item[identity])) if identity else str(number)
            rest = {name: inner for name, inner in item.items() if name != identity}
            told = dict(self._flatten(f"{path}/{title}", rest))
            again = 2
            while told.keys() & found.keys():  # what one topic's partitions are told in two parts does not collide
                told = dict(self._flatten(f"{path}/{title}#{again}", rest))
                again += 1
            found |= told
        yield from found.items()

    def _normal(self, field: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._normal(name, item) for name, item in value.items()}
        if isinstance(value, list):
            if field in self.shown:
                value = [item for item in value if str(item[_identity(item)]) in self.shown[field]]
            items = sorted(value) if field == "partitions" and value and isinstance(value[0], int) else value
            return [self._normal(field, item) for item in sorted(items, key=_order)]
        if isinstance(value, bytes):
            return self._text(describe(value)) if field == "records" else value.hex()
        if value is None or (field, value) in self._kept:
            return value
        return self._leaf(field, value)

    def _leaf(self, field: str, value: Any) -> Any:
        node_id, host, port = self._node
        if field == "topic_id" and value != ZERO_ID and value not in self._texts:
            return self._numbered(field, value)
        if value not in NUMBERED.get(field, (value,)):
            return self._numbered("member_id" if field == "leader" else field, value)
        if field in NODES and value == node_id:
            return "<node>"
        if (field == "host" and value == host) or (field == "port" and value == port):
            return f"<{field}>"
        if field == "cluster_id" and value == self._cluster_id:
            return "<cluster>"
        if field in TEXTS and value:
            return "<text>"
        if field == "log_dir" or (field in SIZES and value > 0) or (field == "client_host" and value):
            return f"<{field}>"
        if (field in EPOCHS and value >= 0) or (field in self.masked and value > 0):
            return f"<{field}>"
        if field in TIMES and abs(value - time.time() * 1000) < AN_HOUR_MS:
            return "<now>"
        return self._text(value) if isinstance(value, str) else value

    def _numbered(self, field: str, value: Any) -> str:
        if (field, value) not in self._names:
            number = sum(kind == field for kind, _ in self._names) + 1
            self._names[field, value] = f"<{field} {number}>"
            if isinstance(value, str):
                self._texts[value] = self._names[field, value]
        return self._names[field, value]

    def _text(self, text: str) -> str:
        for raw, name in self._texts.items():
            text = text.replace(raw, name)
        return PREFIX.sub("", text)


def _identity(item: dict[str, Any]) -> str:
    return next((name for name in IDENTITIES if name in item), "")


def _order(item: Any) -> str:
    """Items that have names are numbered in the order of these; brokers may answer in any."""
    name = item.get(_identity(item)) if isinstance(item, dict) else None
    return name if isinstance(name, str) and _identity(item) != "member_id" else ""
