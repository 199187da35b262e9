"""Makes responses of different runs and brokers comparable: values that differ are replaced by placeholders.

A response becomes {path: value}. In a path an item of a list is named by its identifying field, not by its index:
`topics/a/partitions/0/error_code`. A list of plain values is one value.
"""

import re
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from tests.compat.wire.batches import describe

# Of all topics, groups and transactional ids of a story, so that stories cannot affect each other.
PREFIX = re.compile(r"wire\.[0-9a-f]{8}\.\w+\.\d+\.")
ID_OF = re.compile(r"^<id of (.*)>$")  # in paths a topic is named even if the response has its id
ZERO_ID = "00000000-0000-0000-0000-000000000000"

# The fields that identify an item of a list, in order of preference.
IDENTITIES = (
    "name", "topic", "group_id", "resource_name", "partition_index", "partition", "index", "api_key", "key",
    "member_id", "node_id", "broker_id", "batch_index", "transactional_id", "producer_id", "topic_id", "log_dir",
    "topic_name", "feature", "user",
)  # fmt: skip

# Fields whose values are numbered in order of their appearance, and values to keep.
NUMBERED: dict[str, tuple[Any, ...]] = {
    "member_id": ("",), "leader": ("",), "producer_id": (-1,), "session_id": (0,),
}  # fmt: skip
CHOSEN = {"member_id", "producer_id", "session_id", "topic_id", "coordinator_epoch"}
NODES = {
    "node_id", "broker_id", "leader_id", "controller_id", "replica_id", "replica_nodes", "isr_nodes",
    "eligible_leader_replicas",
}  # fmt: skip
TEXTS = {"error_message", "documentation", "batch_index_error_message"}
# Positive numbers become a placeholder.
SIZES = {"total_bytes", "usable_bytes"}
# Values from 0 on become a placeholder. A coordinator epoch is the leader epoch of a partition of __transaction_state.
EPOCHS = {"coordinator_epoch", "finalized_features_epoch"}
TIMES = {
    "log_append_time", "last_timestamp", "timestamp", "transaction_start_time", "last_fetch_timestamp",
    "last_caught_up_timestamp",
}  # fmt: skip
AN_HOUR_MS = 3_600_000


class ResponseNormalizer:
    """Normalizes the responses of one story."""

    def __init__(self, node: tuple[int, str, int], cluster_id: str) -> None:
        """`node`: (id, host, port) of the broker."""
        self._node = node
        self._cluster_id = cluster_id
        self._placeholders: dict[tuple[str, Any], str] = {}
        self._text_placeholders: dict[str, str] = {}
        self._chosen: set[tuple[str, Any]] = set()
        # The items to record of some lists, by field; and the fields whose positive numbers become placeholders.
        self.recorded_items: dict[str, set[str]] = {}
        self.masked: set[str] = set()

    def keep_chosen(self, values: Any, field: str = "") -> None:
        """Keep values of a request that the story has chosen, other than those from earlier responses."""
        if isinstance(values, dict):
            for name, item in values.items():
                self.keep_chosen(item, name)
        elif isinstance(values, list):
            for item in values:
                self.keep_chosen(item, field)
        elif (
            field in CHOSEN and (field, values) not in self._placeholders and str(values) not in self._text_placeholders
        ):
            self._chosen.add((field, str(values) if isinstance(values, UUID) else values))

    def replace_text(self, text: str, placeholder: str) -> None:
        """From now on replace a text in all values."""
        self._text_placeholders[text] = placeholder

    def flat(self, response: Any) -> dict[str, Any]:
        """Return {path: normalized value} of a plain response, without a throttle time of 0."""
        flat = dict(self._flatten("", self._normal("", response)))
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
        flat: dict[str, Any] = {}
        for number, item in enumerate(items):
            identity = _identity(item)
            title = ID_OF.sub(r"\1", str(item[identity])) if identity else str(number)
            other_fields = {name: inner for name, inner in item.items() if name != identity}
            paths = dict(self._flatten(f"{path}/{title}", other_fields))
            repetition = 2
            while paths.keys() & flat.keys():  # a topic may be in the list twice, with different partitions
                paths = dict(self._flatten(f"{path}/{title}#{repetition}", other_fields))
                repetition += 1
            flat |= paths
        yield from flat.items()

    def _normal(self, field: str, value: Any) -> Any:
        if isinstance(value, dict):
            # Without a producer its id is 0, which is that of the first producer of a broker.
            without = value.get("error_code", "NONE") != "NONE" and value.get("producer_id") == 0
            return {
                name: item if without and name == "producer_id" else self._normal(name, item)
                for name, item in value.items()
            }
        if isinstance(value, list):
            if field in self.recorded_items:
                value = [item for item in value if str(item[_identity(item)]) in self.recorded_items[field]]
            items = sorted(value) if field == "partitions" and value and isinstance(value[0], int) else value
            return [self._normal(field, item) for item in sorted(items, key=_order)]
        if isinstance(value, bytes):
            return self._text(describe(value)) if field == "records" else value.hex()
        if value is None or (field, value) in self._chosen:
            return value
        return self._plain_value(field, value)

    def _plain_value(self, field: str, value: Any) -> Any:
        node_id, host, port = self._node
        if field == "topic_id" and value != ZERO_ID and value not in self._text_placeholders:
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
        if (field, value) not in self._placeholders:
            number = sum(kind == field for kind, _ in self._placeholders) + 1
            self._placeholders[field, value] = f"<{field} {number}>"
            if isinstance(value, str):
                self._text_placeholders[value] = self._placeholders[field, value]
        return self._placeholders[field, value]

    def _text(self, text: str) -> str:
        for raw, placeholder in self._text_placeholders.items():
            text = text.replace(raw, placeholder)
        return PREFIX.sub("", text)


def _identity(item: dict[str, Any]) -> str:
    return next((name for name in IDENTITIES if name in item), "")


def _order(item: Any) -> str:
    """Return the sort key of an item: named items by name, as brokers list them in any order."""
    name = item.get(_identity(item)) if isinstance(item, dict) else None
    return name if isinstance(name, str) and _identity(item) != "member_id" else ""
