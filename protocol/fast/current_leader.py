"""The current leader of a partition, in responses with NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH (KIP-951)."""

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from protocol.fast.primitives import I32, encode_compact_string
from protocol.varints import encode_uvarint

FIRST_PRODUCE_VERSION = 10
FIRST_FETCH_VERSION = 16
# Tag, size; leader id, leader epoch, no tagged fields.
_LEADER = Struct(">BBiiB")
_LEADER_BYTES = 9


class LeaderEndpoint(NamedTuple):
    """Where clients reach the leader."""

    host: str
    port: int
    rack: str | None


class CurrentLeader(NamedTuple):
    """`id` is -1 if there is no leader. `endpoint`: None if the leader is not available."""

    id: int
    epoch: int
    endpoint: LeaderEndpoint | None


def encode_leader_field(tag: int, leader: CurrentLeader) -> bytes:
    """Encode the tagged field CurrentLeader of a partition, without the number of tagged fields."""
    return _LEADER.pack(tag, _LEADER_BYTES, leader.id, leader.epoch, 0)


def encode_response_fields(leaders: Iterable[CurrentLeader]) -> bytes:
    """Encode the tagged fields of a response: NodeEndpoints (tag 0), if there are any."""
    endpoints = {leader.id: leader.endpoint for leader in leaders if leader.endpoint is not None}
    if not endpoints:
        return b"\0"
    nodes = [encode_uvarint(len(endpoints) + 1)]
    for node_id, (host, port, rack) in endpoints.items():
        nodes.append(I32.pack(node_id) + encode_compact_string(host) + I32.pack(port) + encode_compact_string(rack))
        nodes.append(b"\0")
    value = b"".join(nodes)
    return b"\1\0" + encode_uvarint(len(value)) + value
