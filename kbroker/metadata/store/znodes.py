"""The nodes in the coordination service: their paths, and how their data is encoded. All data is JSON.

    /kbroker/cluster-id              {"id": text}
    /kbroker/broker-epoch            empty; its version is the broker epoch of the last registration
    /kbroker/brokers/ID              a broker's address and epoch, {"write_health"} if it is not OK, {"endpoints"} and
                                     {"features"} as rows, {"inter_broker_listener"}, and {"seen"}: how new the metadata
                                     are that it knows; ephemeral
    /kbroker/registrations/ID        the same as the controller knows it, with {"fenced", "in_controlled_shutdown"} and
                                     {"history": [fields of BrokerHistory]}
    /kbroker/secret                  {"secret": hex}; brokers prove with it that they belong to this cluster
    /kbroker/secret-digest           {"sha256": hex}, that of the secret with which the first broker has registered
    /kbroker/controller              {"broker": id}; ephemeral
    /kbroker/controller-epoch        {"epoch"}; every write of the controller begins with a check of its version
    /kbroker/changes                 {"number", "last": change, "writers": [the last controllers]}; without "last" if
                                     the change is large
    /kbroker/recent/N                the change whose number modulo 32 is N: {"number", "paths", "rows": {chunk: ...}}
    /kbroker/topics/NAME             {"id": hex, "internal": bool}, after a removal of partitions "removed_from",
                                     "removed_to" and "first_leader_epoch"
    /kbroker/partitions/N            {topic id in hex: {partition: state}}; a chunk of at most 128 partitions
    /kbroker/configs/DIRECTORY/NAME  {config: value}; DIRECTORY is topics, brokers, client-metrics or groups
    /kbroker/features                {"epoch", "levels": {feature: finalized level}}
    /kbroker/producer-ids            {"next": first id of the next block}
    /kbroker/users/NAME              {SCRAM mechanism: [iterations, salt, stored key, server key]}, the bytes in hex
    /kbroker/acls/N                  [fields of Acl]: up to 512 ACLs, about 50 KB
    /kbroker/quotas/ENTITY           {quota: value}; ENTITY is user=NAME&client-id=NAME or ip=NAME, without =NAME for
                                     the default entity of a type
    /kbroker/deleted-topics/N        [topic id in hex]: the last topics that were deleted: recovery/deleted_topics.py
    /kbroker/reassignment-plan       the plan that moves partitions, see reassignments/stored_plan.py

Brokers watch /kbroker/changes. Each change of the controller has a number, and names the paths that it wrote, relative
to /kbroker; of chunks it has the rows instead, if they are few. A broker that misses more than 32 changes reads all
nodes again. See change_log.py.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, TypeVar, get_type_hints
from urllib.parse import quote, unquote

from kbroker.authorization.acl import Acl, Operation, PatternType, PermissionType, ResourceType
from kbroker.config.config_def import ConfigResource, ConfigResourceType
from kbroker.coordination import interface
from kbroker.coordination.interface import CoordinationError, Create, Delete, Op, Set
from kbroker.metadata.features import FORMER_FEATURES, BrokerFeature, FinalizedFeatures
from kbroker.metadata.image import (
    BrokerEndpoint,
    BrokerHistory,
    BrokerNode,
    BrokerRegistration,
    Forwarding,
    KnownBroker,
    PartitionRegistration,
    SeenMetadata,
    WriteHealth,
)
from kbroker.quotas.entities import ENTITY_TYPES, QuotaEntity, Quotas
from protocol.scram import MECHANISMS, ScramCredential, ScramMechanism

ROOT, CLUSTER_ID = interface.ROOT, interface.CLUSTER_ID
BROKER_EPOCH = f"{ROOT}/broker-epoch"
BROKERS = f"{ROOT}/brokers"
REGISTRATIONS = f"{ROOT}/registrations"
SECRET = f"{ROOT}/secret"
SECRET_DIGEST = f"{ROOT}/secret-digest"
CONTROLLER = f"{ROOT}/controller"
CONTROLLER_EPOCH = f"{ROOT}/controller-epoch"
CHANGES = f"{ROOT}/changes"
TOPICS = f"{ROOT}/topics"
PARTITIONS = f"{ROOT}/partitions"
CONFIGS = f"{ROOT}/configs"
FEATURES = f"{ROOT}/features"
PRODUCER_IDS = f"{ROOT}/producer-ids"
USERS = f"{ROOT}/users"
ACLS = f"{ROOT}/acls"
QUOTAS = f"{ROOT}/quotas"
REASSIGNMENT_PLAN = f"{ROOT}/reassignment-plan"

CONFIG_DIRECTORIES: dict[int, str] = {
    ConfigResourceType.TOPIC: "topics",
    ConfigResourceType.BROKER: "brokers",
    ConfigResourceType.CLIENT_METRICS: "client-metrics",
    ConfigResourceType.GROUP: "groups",
}
_RESOURCE_TYPES = {directory: resource_type for resource_type, directory in CONFIG_DIRECTORIES.items()}
CONFIG_ROOTS = tuple(f"{CONFIGS}/{directory}" for directory in CONFIG_DIRECTORIES.values())
DEFAULT_BROKER = "<default>"

CHUNK_PARTITIONS = 128

Chunk = dict[bytes, dict[int, PartitionRegistration]]
# Rows of a chunk by topic id and partition; None for a partition that is no longer there.
ChunkRows = Mapping[bytes, Mapping[int, PartitionRegistration | None]]
KAFKA_KEY_HASH = "kafka"

# Those of a broker's nodes that are always there.
_REGISTRATION_FIELDS = ("host", "port", "rack", "epoch", "inter_broker_host", "inter_broker_port", "directory_id")

Row = TypeVar("Row")


class InvalidNodeData(CoordinationError):
    """A node has data that kbroker did not write."""

    def __str__(self) -> str:
        return f"{self.path} in the coordination service has data of another program ({self.detail})"


def encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


@contextmanager
def decoding(path: str) -> Iterator[None]:
    """Convert errors of decoding to InvalidNodeData."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InvalidNodeData(path, f"{type(error).__name__}: {error}") from None


def decode(path: str, data: bytes) -> Any:
    with decoding(path):
        return json.loads(data)


def decode_row(kind: Callable[..., Row], values: Iterable[object]) -> Row:
    """Return a NamedTuple of numbers, texts and booleans. Raises ValueError, TypeError.

    Values that are missing have their defaults, and later versions may add values.
    """
    return kind(*(convert(value) for convert, value in zip(get_type_hints(kind).values(), values, strict=False)))


def escape(name: str) -> str:
    """Escape a name as one component of a path. Group names can be any text; "." and ".." are not allowed in paths."""
    return "".join(f"%{ord(c):02X}" for c in name) if name in (".", "..") else quote(name, safe="")


def number_of(path: str) -> int:
    """Return the number that is the last component of a path. Raises InvalidNodeData."""
    name = path.rpartition("/")[2]
    if not name.isdecimal():
        raise InvalidNodeData(path, "its name is not a number")
    return int(name)


def broker_path(broker_id: int) -> str:
    return f"{BROKERS}/{broker_id}"


def topic_path(name: str) -> str:
    return f"{TOPICS}/{name}"


def chunk_path(number: int) -> str:
    return f"{PARTITIONS}/{number}"


def config_path(resource: ConfigResource) -> str:
    is_default_broker = resource.type == ConfigResourceType.BROKER and not resource.name
    name = DEFAULT_BROKER if is_default_broker else escape(resource.name)
    return f"{CONFIGS}/{CONFIG_DIRECTORIES[resource.type]}/{name}"


def config_resource(path: str) -> ConfigResource:
    """Return the resource of a path; the inverse of config_path."""
    _, _, directory, name = path.removeprefix(ROOT).split("/")
    return ConfigResource(_RESOURCE_TYPES[directory], "" if name == DEFAULT_BROKER else unquote(name))


def registration_path(broker_id: int) -> str:
    return f"{REGISTRATIONS}/{broker_id}"


def encode_broker(node: BrokerNode) -> bytes:
    fields = {**_registration_fields(node.registration), "previous_epoch": node.previous_epoch}
    if node.seen != SeenMetadata():
        fields["seen"] = node.seen
    return encode(fields)


def decode_broker(broker_id: int, data: bytes) -> BrokerNode:
    path = broker_path(broker_id)
    with decoding(path):
        fields = decode(path, data)
        seen = decode_row(SeenMetadata, fields.get("seen", ()))
        return BrokerNode(_registration(broker_id, fields), fields.get("previous_epoch", -1), seen)


def encode_registration(known: KnownBroker) -> bytes:
    in_controlled_shutdown = known.registration.in_controlled_shutdown
    fields = _registration_fields(known.registration)
    fields |= {"fenced": known.fenced, "in_controlled_shutdown": in_controlled_shutdown}
    if known.history != BrokerHistory():
        fields["history"] = known.history
    return encode(fields)


def decode_registration(broker_id: int, data: bytes) -> KnownBroker:
    path = registration_path(broker_id)
    with decoding(path):
        fields = decode(path, data)
        broker = _registration(broker_id, fields)
        broker = broker._replace(in_controlled_shutdown=bool(fields["in_controlled_shutdown"]))
        return KnownBroker(broker, bool(fields["fenced"]), decode_row(BrokerHistory, fields.get("history", ())))


def _registration_fields(broker: BrokerRegistration) -> dict[str, object]:
    """Return the fields of both nodes of a broker."""
    optional: dict[str, object] = {"write_health": broker.write_health} if broker.write_health else {}
    if broker.endpoints:
        optional["endpoints"] = broker.endpoints
    if broker.inter_broker_listener:
        optional["inter_broker_listener"] = broker.inter_broker_listener
    if broker.features != FORMER_FEATURES:
        optional["features"] = broker.features
    return optional | {name: getattr(broker, name) for name in _REGISTRATION_FIELDS}


def _registration(broker_id: int, fields: Mapping[str, Any]) -> BrokerRegistration:
    """Fields may be missing in nodes of an earlier version; unknown fields are those of a later one, and ignored."""
    return BrokerRegistration(
        broker_id,
        **{name: fields[name] for name in _REGISTRATION_FIELDS if name in fields},
        inter_broker_listener=str(fields.get("inter_broker_listener", "")),
        write_health=WriteHealth(fields.get("write_health", WriteHealth.OK)),
        endpoints=tuple(decode_row(BrokerEndpoint, row) for row in fields.get("endpoints", ())),
        features=tuple(decode_row(BrokerFeature, row) for row in fields.get("features", FORMER_FEATURES)),
    )


def encode_secret(secret: bytes) -> bytes:
    return encode({"secret": secret.hex()})


def decode_secret(data: bytes) -> bytes:
    with decoding(SECRET):
        return bytes.fromhex(decode(SECRET, data)["secret"])


def encode_secret_digest(secret: bytes) -> bytes:
    return encode({"sha256": sha256(secret).hexdigest()})


def is_digest_of(secret: bytes, data: bytes) -> bool:
    with decoding(SECRET_DIGEST):
        return bool(decode(SECRET_DIGEST, data)["sha256"] == sha256(secret).hexdigest())


def encode_features(features: FinalizedFeatures) -> bytes:
    return encode({"epoch": features.epoch, "levels": dict(features.levels)})


def decode_features(data: bytes) -> FinalizedFeatures:
    with decoding(FEATURES):
        fields = decode(FEATURES, data)
        levels = {str(name): int(level) for name, level in fields["levels"].items()}
        return FinalizedFeatures(int(fields["epoch"]), levels)


def user_path(name: str) -> str:
    return f"{USERS}/{escape(name)}"


def user_name(path: str) -> str:
    """Return the user of a path; the inverse of user_path."""
    return unquote(path.rpartition("/")[2])


def encode_user(credentials: Mapping[ScramMechanism, ScramCredential]) -> bytes:
    return encode(
        {
            mechanism.sasl_name: [each.iterations, each.salt.hex(), each.stored_key.hex(), each.server_key.hex()]
            for mechanism, each in credentials.items()
        }
    )


def decode_user(path: str, data: bytes) -> dict[ScramMechanism, ScramCredential]:
    """Mechanisms that are unknown are those of a later version, and ignored."""
    with decoding(path):
        return {
            MECHANISMS[name]: ScramCredential(int(iterations), *map(bytes.fromhex, keys))
            for name, (iterations, *keys) in decode(path, data).items()
            if name in MECHANISMS
        }


def acls_path(number: int) -> str:
    return f"{ACLS}/{number}"


_ACL_FIELDS = (ResourceType, PatternType, str, str, str, Operation, PermissionType)


def encode_acls(acls: Iterable[Acl]) -> bytes:
    return encode(sorted(acls))


def decode_acls(path: str, data: bytes) -> frozenset[Acl]:
    """One that this version cannot decode is invalid: a broker that ignored a DENY would allow too much."""
    with decoding(path):
        return frozenset(
            Acl._make(kind(value) for kind, value in zip(_ACL_FIELDS, row, strict=True)) for row in decode(path, data)
        )


def quotas_path(entity: QuotaEntity) -> str:
    named = ((kind, name) for kind, name in zip(ENTITY_TYPES, entity, strict=True) if name is not None)
    return f"{QUOTAS}/" + "&".join(f"{kind}={escape(name)}" if name else kind for kind, name in named)


def quota_entity(path: str) -> QuotaEntity:
    """Return the entity of a path; the inverse of quotas_path."""
    parts = dict(part.partition("=")[::2] for part in path.rpartition("/")[2].split("&"))
    return QuotaEntity(*(unquote(parts[kind]) if kind in parts else None for kind in ENTITY_TYPES))


def decode_quotas(path: str, data: bytes) -> Quotas:
    with decoding(path):
        return {name: float(value) for name, value in decode(path, data).items()}


@dataclass(slots=True)
class TopicNode:
    """The fields with defaults: see TopicImage. Nodes of internal topics of former versions lack the hash."""

    topic_id: bytes
    internal: bool
    has_kafka_key_hash: bool = False
    removed_from: int | None = None
    first_leader_epoch: int = 0
    removed_to: int | None = None


def encode_topic(topic: TopicNode) -> bytes:
    optional = {
        "hash": KAFKA_KEY_HASH if topic.has_kafka_key_hash else None,
        "removed_from": topic.removed_from,
        "removed_to": topic.removed_to,
        "first_leader_epoch": topic.first_leader_epoch or None,
    }
    fields = {name: value for name, value in optional.items() if value is not None}
    return encode({"id": topic.topic_id.hex(), "internal": topic.internal, **fields})


def decode_topic(name: str, data: bytes) -> TopicNode:
    path = topic_path(name)
    with decoding(path):
        fields = decode(path, data)
        key_hash = fields.get("hash")
        if key_hash not in (None, KAFKA_KEY_HASH):
            raise ValueError(f"unknown hash {key_hash}")
        removed_from, removed_to = fields.get("removed_from"), fields.get("removed_to")
        return TopicNode(
            bytes.fromhex(fields["id"]),
            fields["internal"],
            key_hash == KAFKA_KEY_HASH,
            None if removed_from is None else int(removed_from),
            int(fields.get("first_leader_epoch", 0)),
            None if removed_to is None else int(removed_to),
        )


def encode_chunk(chunk: Chunk) -> bytes:
    return encode(chunk_fields(chunk))


def chunk_fields(rows: ChunkRows) -> dict[str, dict[str, object]]:
    """Return rows of a chunk in their JSON form, None for a partition that is no longer there."""
    return {
        topic_id.hex(): {str(index): row and partition_fields(row) for index, row in partitions.items()}
        for topic_id, partitions in rows.items()
    }


def partition_fields(partition: PartitionRegistration) -> list[object]:
    """Return the fields as a list, which is smaller than a dict with names. Pairs at its end are omitted if empty."""
    fields = [partition.leader, partition.leader_epoch, partition.partition_epoch, partition.replicas, partition.isr]
    is_closing = partition.is_closing or partition.forwarding is not None
    if partition.elr or partition.last_known_elr or partition.is_reassigning or is_closing:
        fields += [partition.elr, partition.last_known_elr]
    if partition.is_reassigning or is_closing:
        fields += [partition.adding_replicas, partition.removing_replicas]
    if is_closing:
        fields.append(partition.is_closing)
    if partition.forwarding is not None:
        fields.append(partition.forwarding)
    return fields


def decode_chunk(number: int, data: bytes) -> Chunk:
    path = chunk_path(number)
    with decoding(path):
        fields = decode(path, data)
        return {
            bytes.fromhex(topic_id): {int(index): decode_partition(*row) for index, row in partitions.items()}
            for topic_id, partitions in fields.items()
        }


@lru_cache(4096)
def _shared(broker_ids: tuple[int, ...]) -> list[int]:
    """Return a list that partitions share. Lists of their own would take half of what a registration takes."""
    return list(broker_ids)


def decode_partition(
    leader: int,
    leader_epoch: int,
    partition_epoch: int,
    replicas: list[int],
    isr: list[int],
    elr: list[int] | None = None,
    last_known_elr: list[int] | None = None,
    adding_replicas: list[int] | None = None,
    removing_replicas: list[int] | None = None,
    is_closing: bool = False,
    forwarding: list[Any] | None = None,
) -> PartitionRegistration:
    return PartitionRegistration(
        leader,
        leader_epoch,
        _shared(tuple(replicas)),
        _shared(tuple(isr)),
        _shared(tuple(elr or ())),
        _shared(tuple(last_known_elr or ())),
        partition_epoch,
        _shared(tuple(adding_replicas or ())),
        _shared(tuple(removing_replicas or ())),
        bool(is_closing),
        None if forwarding is None else decode_row(Forwarding, forwarding),
    )


def overrides_op(resource: ConfigResource, current: Mapping[str, str], altered: Mapping[str, str]) -> Op:
    """Return the operation that replaces the overrides of a resource. It has no node without overrides."""
    path, data = config_path(resource), encode(altered)
    return Delete(path) if not altered else Set(path, data) if current else Create(path, data)


def removal_ops(resource: ConfigResource, current: Mapping[str, str], name: str) -> list[Op]:
    """Return the operation that removes one override of a resource, none if it is not set."""
    if name not in current:
        return []
    return [overrides_op(resource, current, {other: value for other, value in current.items() if other != name})]
