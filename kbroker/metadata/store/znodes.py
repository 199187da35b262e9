"""The nodes of the coordination service: where each thing is, and how it is written. All data is JSON.

    /kbroker/cluster-id            {"id": text}
    /kbroker/broker-epoch          its version is the epoch of the last registration
    /kbroker/brokers/ID            {"host", "port", "rack", "epoch"}; ephemeral
    /kbroker/controller            {"broker"}; ephemeral
    /kbroker/controller-epoch      {"epoch"}; every write of the controller begins with a check of its version
    /kbroker/changes               {"number", "recent": [[number, [path, ...] or null], ...]}
    /kbroker/topics/NAME           {"id": hex, "internal": bool}
    /kbroker/partitions/N          {topic id in hex: {partition: state}}, at most 128 partitions in all
    /kbroker/configs/KIND/NAME     {config: value}; KIND is topics, brokers, client-metrics or groups
    /kbroker/features              {"epoch", "levels": {feature: finalized level}}
    /kbroker/producer-ids          {"next": first id of the next block}

`changes` is what brokers watch. Each write of the controller adds one number with the paths that it touched
below /kbroker, or null for too many; a broker that finds no unbroken line of numbers reads everything
again.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from kbroker.config.config_resource import ConfigResource, ConfigResourceType
from kbroker.metadata.features import FinalizedFeatures
from kbroker.metadata.image import BrokerRegistration, PartitionRegistration
from kbroker.metadata.store.coordination import CoordinationError

ROOT = "/kbroker"
CLUSTER_ID = f"{ROOT}/cluster-id"
BROKER_EPOCH = f"{ROOT}/broker-epoch"
BROKERS = f"{ROOT}/brokers"
CONTROLLER = f"{ROOT}/controller"
CONTROLLER_EPOCH = f"{ROOT}/controller-epoch"
CHANGES = f"{ROOT}/changes"
TOPICS = f"{ROOT}/topics"
PARTITIONS = f"{ROOT}/partitions"
CONFIGS = f"{ROOT}/configs"
FEATURES = f"{ROOT}/features"
PRODUCER_IDS = f"{ROOT}/producer-ids"

CONFIG_KINDS: dict[int, str] = {
    ConfigResourceType.TOPIC: "topics",
    ConfigResourceType.BROKER: "brokers",
    ConfigResourceType.CLIENT_METRICS: "client-metrics",
    ConfigResourceType.GROUP: "groups",
}
KIND_RESOURCES = {kind: resource for resource, kind in CONFIG_KINDS.items()}
CONFIG_ROOTS = tuple(f"{CONFIGS}/{kind}" for kind in KIND_RESOURCES)
DEFAULT_BROKER = "<default>"

CHUNK_PARTITIONS = 128
RECENT_CHANGES = 32
MAX_PATHS = 256

Chunk = dict[bytes, dict[int, PartitionRegistration]]


class InvalidNodeData(CoordinationError):
    """A node holds what kbroker did not write."""


def encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """What reading a node's data may raise becomes Unreadable: it is not what kbroker wrote, or not JSON."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as fault:
        raise InvalidNodeData(path, f"{type(fault).__name__}: {fault}") from None


def decode(path: str, data: bytes) -> Any:
    with _reading(path):
        return json.loads(data)


def escape(name: str) -> str:
    """A name as one component of a path: group names may hold anything, "." and ".." are not allowed."""
    return "".join(f"%{ord(c):02X}" for c in name) if name in (".", "..") else quote(name, safe="")


def broker_path(node_id: int) -> str:
    return f"{BROKERS}/{node_id}"


def topic_path(name: str) -> str:
    return f"{TOPICS}/{name}"


def chunk_path(number: int) -> str:
    return f"{PARTITIONS}/{number}"


def config_path(resource: ConfigResource) -> str:
    by_default = resource.type == ConfigResourceType.BROKER and not resource.name
    name = DEFAULT_BROKER if by_default else escape(resource.name)
    return f"{CONFIGS}/{CONFIG_KINDS[resource.type]}/{name}"


def config_resource(path: str) -> ConfigResource:
    """The inverse of config_path."""
    _, _, kind, name = path.removeprefix(ROOT).split("/")
    return ConfigResource(KIND_RESOURCES[kind], "" if name == DEFAULT_BROKER else unquote(name))


def encode_broker(node: BrokerRegistration) -> bytes:
    return encode({"host": node.host, "port": node.port, "rack": node.rack, "epoch": node.epoch})


def decode_broker(node_id: int, data: bytes) -> BrokerRegistration:
    path = broker_path(node_id)
    with _reading(path):
        fields = decode(path, data)
        return BrokerRegistration(node_id, fields["host"], fields["port"], fields["rack"], fields["epoch"])


def encode_features(features: FinalizedFeatures) -> bytes:
    return encode({"epoch": features.epoch, "levels": dict(features.levels)})


def decode_features(data: bytes) -> FinalizedFeatures:
    with _reading(FEATURES):
        fields = decode(FEATURES, data)
        levels = {str(name): int(level) for name, level in fields["levels"].items()}
        return FinalizedFeatures(int(fields["epoch"]), levels)


@dataclass(slots=True)
class TopicNode:
    topic_id: bytes
    internal: bool


def encode_topic(topic: TopicNode) -> bytes:
    return encode({"id": topic.topic_id.hex(), "internal": topic.internal})


def decode_topic(name: str, data: bytes) -> TopicNode:
    path = topic_path(name)
    with _reading(path):
        fields = decode(path, data)
        return TopicNode(bytes.fromhex(fields["id"]), fields["internal"])


def encode_chunk(chunk: Chunk) -> bytes:
    return encode(
        {
            topic_id.hex(): {str(index): _partition_row(state) for index, state in states.items()}
            for topic_id, states in chunk.items()
        }
    )


def _partition_row(state: PartitionRegistration) -> list[object]:
    """Short, for there are many: leader, leader epoch, partition epoch, replicas, ISR and, if any, both
    ELRs.
    """
    row = [state.leader, state.leader_epoch, state.partition_epoch, state.replicas, state.isr]
    if state.elr or state.last_known_elr:
        row += [state.elr, state.last_known_elr]
    return row


def decode_chunk(number: int, data: bytes) -> Chunk:
    path = chunk_path(number)
    with _reading(path):
        fields = decode(path, data)
        return {
            bytes.fromhex(topic_id): {int(index): _partition_image(*row) for index, row in states.items()}
            for topic_id, states in fields.items()
        }


def _partition_image(
    leader: int,
    leader_epoch: int,
    partition_epoch: int,
    replicas: list[int],
    isr: list[int],
    elr: list[int] | None = None,
    last_known_elr: list[int] | None = None,
) -> PartitionRegistration:
    return PartitionRegistration(leader, leader_epoch, replicas, isr, elr or [], last_known_elr or [], partition_epoch)


@dataclass(slots=True)
class ChangeLog:
    """The numbered changes, newest last. `paths` of a change is None when it touched too many to list."""

    number: int = 0
    recent: list[tuple[int, list[str] | None]] = field(default_factory=list)

    def after(self, paths: Iterable[str]) -> "ChangeLog":
        """With one more change, that touched these paths."""
        listed = [path.removeprefix(ROOT) for path in paths]
        number = self.number + 1
        recent = [*self.recent, (number, listed if len(listed) <= MAX_PATHS else None)][-RECENT_CHANGES:]
        while sum(len(at or ()) for _, at in recent) > MAX_PATHS:
            recent.pop(0)
        return ChangeLog(number, recent)

    def since(self, number: int) -> list[str] | None:
        """The paths touched after change `number`, in order and once each; None when they are not known."""
        missed = [paths for at, paths in self.recent if at > number]
        if len(missed) != self.number - number or None in missed:
            return None
        return list(dict.fromkeys(ROOT + path for paths in missed for path in paths or ()))


def encode_changes(changes: ChangeLog) -> bytes:
    return encode({"number": changes.number, "recent": changes.recent})


def decode_changes(data: bytes) -> ChangeLog:
    with _reading(CHANGES):
        fields = decode(CHANGES, data)
        return ChangeLog(fields["number"], [(number, paths) for number, paths in fields["recent"]])
