"""Frames that are not what they say: counts beyond the frame, tags without end, bodies cut off.

They are made from good requests, and generically: an array's count lies where the encodings of the request with and
without the array's items begin to differ.
"""

import random
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from tests.compat.wire import entities
from tests.compat.wire.batches import values
from tests.compat.wire.client import Closed, Connection
from tests.compat.wire.play import Play, error_codes

Sample = Mapping[str, Any]
FIRST_SERVED = {"Produce": 3}
MAX_REQUEST = 100 * 1024 * 1024  # socket.request.max.bytes, by default
HUGE = (2**31 - 1, 2**24)
NOBODY = "wire.nobody"  # a transactional id
UNKNOWN_TAG = bytes([1, 99, 3]) + b"any"


def samples(topic: str, topic_id: Any, group: str) -> dict[str, Sample]:
    """A request of each API with an item in every array that it has. `topic` exists; nothing else comes to be."""
    named = {"name": topic, "topic": topic, "topic_id": topic_id}
    member = {"member_id": "nobody", "group_id": group, "generation_id": 1, "generation_id_or_member_epoch": 1}

    def each(**partition: Any) -> dict[str, Any]:
        return {"topics": [{**named, "partitions": [{"partition_index": 0, **partition}]}], "timeout": 1000}

    change = [{"name": "retention.ms", "config_operation": 0, "value": "1"}]
    changed = [{"resource_type": 2, "resource_name": topic, "configs": change, "configuration_keys": ["retention.ms"]}]
    new = {"name": f"{topic}.new", "num_partitions": -1, "replication_factor": -1, "configs": change}
    new |= {"assignments": [{"partition_index": 0, "broker_ids": [1]}]}
    produced = [{**named, "partition_data": [{"index": 0, "records": values("a")}]}]
    fetched = each(fetch_offset=0, partition_max_bytes=1000)
    indexed = [{**named, "partition_indexes": [0]}]
    transaction = {"transactional_id": NOBODY, "producer_id": 10**12, "producer_epoch": 0, "group_id": group}
    added = {**transaction, "topics": [{"name": topic, "partitions": [0]}]}
    marker = {"producer_id": 10**12, "topics": [{"name": topic, "partition_indexes": [9]}]}
    acl = {"resource_type": 2, "resource_name": topic, "resource_pattern_type": 3, "operation": 3, "permission_type": 3}
    acl |= {"principal": "User:wire.nobody", "host": "*"}
    acl_filter = {"resource_type_filter": 2, "resource_name_filter": topic, "pattern_type_filter": 3}
    acl_filter |= {"principal_filter": "User:wire.nobody", "host_filter": "*", "operation": 3, "permission_type": 3}
    return {
        "ApiVersions": {"client_software_name": "wire", "client_software_version": "1"},
        "Produce": {"acks": -1, "timeout": 1000, "topic_data": produced},
        "Fetch": {"replica_id": -1, **fetched, "forgotten_topics_data": [{**named, "partitions": [0]}]},
        "ListOffsets": {"replica_id": -1, **each(timestamp=-1)},
        "Metadata": {"topics": [{"name": topic}], "allow_auto_topic_creation": False},
        "OffsetCommit": {**member, **each(committed_offset=1, committed_metadata="m")},
        "OffsetFetch": {"group_id": group, "topics": indexed, "groups": [{"group_id": group, "topics": indexed}]},
        "FindCoordinator": {"key": group, "coordinator_keys": [group]},
        "JoinGroup": {**member, "session_timeout": 30_000, "protocols": [{"name": "range", "metadata": b"m"}]},
        "Heartbeat": member,
        "LeaveGroup": {**member, "members": [{"member_id": "nobody"}]},
        "SyncGroup": {**member, "assignments": [{"member_id": "nobody", "assignment": b"a"}]},
        "DescribeGroups": {"groups": [group]},
        "ListGroups": {"states_filter": ["Dead"], "types_filter": ["classic"]},
        "CreateTopics": {"topics": [new], "timeout": 1000, "validate_only": True},
        "DeleteTopics": {"topic_names": [f"{topic}.new"], "topics": [{"name": f"{topic}.new"}], "timeout": 1000},
        "DeleteRecords": each(offset=1),
        "InitProducerId": {"transactional_id": None, "transaction_timeout": 1000},
        "OffsetForLeaderEpoch": {"replica_id": -1, **each(leader_epoch=0)},
        "DescribeConfigs": {"resources": changed},
        "AlterConfigs": {"resources": changed, "validate_only": True},
        "IncrementalAlterConfigs": {"resources": changed, "validate_only": True},
        "DescribeLogDirs": {"topics": [{"topic": topic, "partitions": [0]}]},
        "CreatePartitions": {
            "topics": [{"name": topic, "count": 1, "assignments": [{"broker_ids": [1]}]}],
            "timeout": 1000,
        },
        "DeleteGroups": {"groups_names": [group]},
        "OffsetDelete": {"group_id": group, **each()},
        "DescribeCluster": {},
        "DescribeProducers": {"topics": indexed},
        "ListConfigResources": {"resource_types": [2]},
        "AddPartitionsToTxn": {"transactions": [added]} | {f"v3_and_below_{key}": added[key] for key in added},
        "AddOffsetsToTxn": transaction,
        "EndTxn": transaction,
        "WriteTxnMarkers": {"markers": [marker]},
        "TxnOffsetCommit": {**member, **transaction, **each(committed_offset=1, committed_metadata="m")},
        "DescribeTransactions": {"transactional_ids": [NOBODY]},
        "ListTransactions": {
            "state_filters": ["Dead"],
            "producer_id_filters": [1],
            "transactional_id_pattern": "wire.",
        },
        "UpdateFeatures": {"feature_updates": [{"feature": "wire.nothing", "max_version_level": 1}], "timeout": 1000},
        "DescribeTopicPartitions": {"topics": [{"name": topic}], "response_partition_limit": 10},
        "DescribeAcls": acl_filter,
        "CreateAcls": {"creations": [acl]},
        "DeleteAcls": {"filters": [acl_filter]},
        "ListPartitionReassignments": {"topics": indexed, "timeout": 1000},
        "DescribeClientQuotas": {"components": [{"entity_type": "user", "match": "wire.nobody"}]},
        "DescribeUserScramCredentials": {"users": [{"name": "wire.nobody"}]},
        "DescribeQuorum": {"topics": [{"topic_name": topic, "partitions": [{"partition_index": 0}]}]},
    }


def broken_requests(api: str, version: int, sample: Sample) -> Iterator[tuple[str, bytes]]:
    """(what is wrong, frame) of everything that can be done to a request without knowing it."""
    good = encoded(api, version, sample)
    flexible = entities.entity(api, "request", version).__flexible__
    for path in arrays(sample):
        start = count_position(api, version, sample, path, flexible)
        if start is None:
            continue
        left = len(good) - start
        for count in (*HUGE, left):
            title = "as many as bytes are left" if count == left else str(count)
            size, claimed = (1, uvarint(count + 1)) if flexible else (4, struct.pack(">i", count))
            yield f"{'.'.join(map(str, path))}: {title}", sized(good[:start] + claimed + good[start + size :])
    body = body_position(good, api, version)
    for title, end in {"cut in half": (body + len(good)) // 2, "last byte cut": len(good) - 1, "no body": body}.items():
        if body <= end < len(good):
            yield title, sized(good[:end])
    yield "bytes after the request", sized(good + b"more")
    if b"wire." in good:
        yield "names that are no UTF-8", good[:body] + good[body:].replace(b"wire.", b"\xff\xfee..")
    if flexible:
        yield "unknown tag", sized(good[:-1] + UNKNOWN_TAG)
        yield "unknown tag in the header", sized(good[: body - 1] + UNKNOWN_TAG + good[body:])
        for count in HUGE:
            yield f"{count} tags", sized(good[:-1] + uvarint(count))
            yield f"{count} tags in the header", sized(good[: body - 1] + uvarint(count) + good[body:])
            yield f"a tag of {count} bytes", sized(good[:-1] + b"\1\x63" + uvarint(count))
        yield "a varint that does not end", sized(good[:-1] + b"\xff" * 12)


def encoded(api: str, version: int, sample: Sample) -> bytes:
    return entities.encode_frame(entities.request(api, version, sample, strict=False), 1, "wire")


def body_position(frame: bytes, api: str, version: int) -> int:
    """Where the header ends: its client id is "wire"; flexible requests have tags after it."""
    return 4 + 10 + len("wire") + entities.entity(api, "request", version).__flexible__


def arrays(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Paths of all lists in a sample."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from arrays(item, (*path, name))
    elif isinstance(value, list):
        yield path
        for number, item in enumerate(value):
            yield from arrays(item, (*path, number))


def count_position(api: str, version: int, sample: Sample, path: tuple[str | int, ...], flexible: bool) -> int | None:
    """Where the count of the array begins in the frame; None if this version does not have it."""
    full, empty = encoded(api, version, sample)[4:], encoded(api, version, emptied(sample, path))[4:]
    if full == empty:
        return None
    differs = next(pos for pos, (one, other) in enumerate(zip(full, empty, strict=False)) if one != other)
    return 4 + differs - (0 if flexible else 3)


def emptied(value: Any, path: tuple[str | int, ...]) -> Any:
    """A copy of a sample without the items of one list."""
    if not path:
        return []
    copy: Any = dict(value) if isinstance(value, Mapping) else list(value)
    copy[path[0]] = emptied(value[path[0]], path[1:])
    return copy


def sized(frame: bytes) -> bytes:
    """The frame with a size that is right again."""
    return struct.pack(">i", len(frame) - 4) + frame[4:]


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def outcome(bootstrap: str, frame: bytes, api: str, version: int, *, finish: bool = False) -> str:
    """What a broker makes of a frame: closed, or the error codes of its answer. `finish`: nothing more will come."""
    connection = Connection(bootstrap)
    try:
        connection.send_raw(frame)
        if finish:
            connection.finish()
        answer = entities.decode_frame(entities.entity(api, "response", version), connection.receive_raw())[1]
    except Closed:
        return "closed"
    finally:
        connection.close()
    return " ".join(sorted(set(error_codes(entities.plain(answer))))) or "answered"


def unframed() -> Iterator[tuple[str, bytes, bool]]:
    """(what is wrong, bytes, whether the client then stops sending) below the level of any API."""
    good = encoded("Heartbeat", 0, {"group_id": "g", "member_id": "m"})
    flexible = encoded("Heartbeat", 4, {"group_id": "g", "member_id": "m"})
    for length in (-1, -(2**31), MAX_REQUEST + 1, 2**31 - 1, 0, 1, 7):
        yield f"length {length}", struct.pack(">i", length) + good[4:], False
    yield "length one more than there is", struct.pack(">i", len(good) - 3) + good[4:], True
    yield "the largest length, and little of it", struct.pack(">i", MAX_REQUEST) + good[4:], True
    yield "half of a length", good[:2], True
    yield "half of a request", good[: len(good) // 2], True
    for size in (-2, -(2**15), 2**15 - 1, len(good)):
        yield f"a client id of {size} bytes", good[:12] + struct.pack(">h", size) + good[14:], False
    yield "no client id", sized(good[:12] + b"\xff\xff" + good[18:]), False
    yield "an empty client id", sized(good[:12] + b"\0\0" + good[18:]), False
    yield "a client id that is no UTF-8", good[:14] + b"\xff\xfe\xfd\xfc" + good[18:], False
    yield "only an api key", sized(good[:6]), False
    yield "no client id's length", sized(good[:12]), False
    yield "no header tags", sized(flexible[:18]), False
    yield "a request of HTTP", b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n", False
    yield "a hello of TLS", bytes.fromhex("16030100c8010000c40303") + bytes(189), False
    noise = random.Random(4)
    for number in range(20):
        yield f"noise {number}", sized(bytes(4) + noise.randbytes(noise.randrange(1, 200))), False


def tell_unframed(play: Play) -> None:
    """The story of what is no request at all."""
    outcomes = {
        title: outcome(play.cluster.bootstrap, data, "Heartbeat", 0, finish=finish)
        for title, data, finish in unframed()
    }
    note(play, "nothing that is a request", outcomes)


def note(play: Play, step: str, outcomes: dict[str, str]) -> None:
    """Records how many frames closed their connections, and what became of the others."""
    others = {title: seen for title, seen in outcomes.items() if seen != "closed"}
    play.note(step, closed=len(outcomes) - len(others), **others)


def coordinated(play: Play) -> None:
    """Returns when the transactional id of the samples has a coordinator, which does not know it."""
    found = {"key_type": 1, "coordinator_keys": [NOBODY]}
    play.until("FindCoordinator", lambda answer: error_codes(answer) == ["NONE"], **found)
    unknown = ["TRANSACTIONAL_ID_NOT_FOUND"]
    play.until("DescribeTransactions", lambda answer: error_codes(answer) == unknown, transactional_ids=[NOBODY])


def tell(play: Play) -> None:
    """The story of an API's broken requests."""
    if play.version < FIRST_SERVED.get(play.api, 0):
        return
    if (play.api, play.version) == ("Heartbeat", 0):
        tell_unframed(play)
    topic = play.topic("bad")
    coordinated(play)
    sample = samples(topic, play.id(topic), play.group("bad"))[play.api]
    outcomes = {
        title: outcome(play.cluster.bootstrap, frame, play.api, play.version)
        for title, frame in broken_requests(play.api, play.version, sample)
    }
    note(play, "broken requests", outcomes)
    stored = play.end_offset(topic)
    assert stored == (play.api == "Produce") * list(outcomes.values()).count("NONE"), "a broken request was stored"
