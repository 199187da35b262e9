"""Malformed requests: counts beyond the frame, tagged fields without end, truncated bodies.

They are derived from valid requests without knowledge of their fields: the count of an array is where the encodings of
the request with and without the array's items begin to differ.
"""

import random
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from tests.compat.broker_connection import ConnectionClosedError
from tests.compat.wire import kio_messages
from tests.compat.wire.batches import values
from tests.compat.wire.client import Client
from tests.compat.wire.story import Story, error_codes

Sample = Mapping[str, Any]
FIRST_SERVED = {"Produce": 3}
MAX_REQUEST = 100 * 1024 * 1024  # socket.request.max.bytes, by default
HUGE = (2**31 - 1, 2**24)
NOBODY = "wire.nobody"  # a transactional id
UNKNOWN_TAG = bytes([1, 99, 3]) + b"any"


def samples(topic: str, topic_id: Any, group: str) -> dict[str, Sample]:
    """Return a request of each API with an item in every array. `topic` exists; the requests create nothing."""
    named = {"name": topic, "topic": topic, "topic_id": topic_id}
    member = {"member_id": "nobody", "group_id": group, "generation_id": 1, "generation_id_or_member_epoch": 1}

    def topic_fields(**partition: Any) -> dict[str, Any]:
        return {"topics": [{**named, "partitions": [{"partition_index": 0, **partition}]}], "timeout": 1000}

    configs = [{"name": "retention.ms", "config_operation": 0, "value": "1"}]
    resources = [
        {"resource_type": 2, "resource_name": topic, "configs": configs, "configuration_keys": ["retention.ms"]}
    ]
    new_topic = {"name": f"{topic}.new", "num_partitions": -1, "replication_factor": -1, "configs": configs}
    new_topic |= {"assignments": [{"partition_index": 0, "broker_ids": [1]}]}
    topic_data = [{**named, "partition_data": [{"index": 0, "records": values("a")}]}]
    fetch_topics = topic_fields(fetch_offset=0, partition_max_bytes=1000)
    topics = [{**named, "partition_indexes": [0]}]
    transaction = {"transactional_id": NOBODY, "producer_id": 10**12, "producer_epoch": 0, "group_id": group}
    added_partitions = {**transaction, "topics": [{"name": topic, "partitions": [0]}]}
    marker = {"producer_id": 10**12, "topics": [{"name": topic, "partition_indexes": [9]}]}
    acl = {"resource_type": 2, "resource_name": topic, "resource_pattern_type": 3, "operation": 3, "permission_type": 3}
    acl |= {"principal": "User:wire.nobody", "host": "*"}
    acl_filter = {"resource_type_filter": 2, "resource_name_filter": topic, "pattern_type_filter": 3}
    acl_filter |= {"principal_filter": "User:wire.nobody", "host_filter": "*", "operation": 3, "permission_type": 3}
    share_topics = [{"topic_name": topic, "partitions": [0]}]
    acknowledged = [{"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}]
    share_topic = {
        "topic_id": topic_id, "partitions": [{"partition_index": 0, "acknowledgement_batches": acknowledged}]
    }  # fmt: skip
    share_session = {"group_id": group, "member_id": "nobody", "share_session_epoch": 1, "topics": [share_topic]}
    state_batch = {"first_offset": 1, "last_offset": 1, "delivery_state": 0, "delivery_count": 1}

    def share_state(**partition: Any) -> dict[str, Any]:
        return {"group_id": group, "topics": [{"topic_id": topic_id, "partitions": [{"partition": 0, **partition}]}]}

    return {
        "ApiVersions": {"client_software_name": "wire", "client_software_version": "1"},
        "Produce": {"acks": -1, "timeout": 1000, "topic_data": topic_data},
        "Fetch": {"replica_id": -1, **fetch_topics, "forgotten_topics_data": [{**named, "partitions": [0]}]},
        "ListOffsets": {"replica_id": -1, **topic_fields(timestamp=-1)},
        "Metadata": {"topics": [{"name": topic}], "allow_auto_topic_creation": False},
        "OffsetCommit": {**member, **topic_fields(committed_offset=1, committed_metadata="m")},
        "OffsetFetch": {"group_id": group, "topics": topics, "groups": [{"group_id": group, "topics": topics}]},
        "FindCoordinator": {"key": group, "coordinator_keys": [group]},
        "JoinGroup": {**member, "session_timeout": 30_000, "protocols": [{"name": "range", "metadata": b"m"}]},
        "Heartbeat": member,
        "LeaveGroup": {**member, "members": [{"member_id": "nobody"}]},
        "SyncGroup": {**member, "assignments": [{"member_id": "nobody", "assignment": b"a"}]},
        "ConsumerGroupHeartbeat": {"group_id": group, "member_id": "nobody", "member_epoch": 1},
        "ConsumerGroupDescribe": {"group_ids": [group]},
        "ShareGroupHeartbeat": {"group_id": group, "member_id": "nobody", "member_epoch": 1},
        "ShareGroupDescribe": {"group_ids": [group]},
        "StreamsGroupHeartbeat": {"group_id": group, "member_id": "nobody", "member_epoch": 1},
        "StreamsGroupDescribe": {"group_ids": [group]},
        "DescribeShareGroupOffsets": {"groups": [{"group_id": group, "topics": share_topics}]},
        "AlterShareGroupOffsets": {
            "group_id": "",
            "topics": [{"topic_name": topic, "partitions": [{"partition_index": 0, "start_offset": 1}]}],
        },
        "DeleteShareGroupOffsets": {"group_id": group, "topics": share_topics},
        "ShareFetch": share_session,
        "ShareAcknowledge": share_session,
        "InitializeShareGroupState": share_state(start_offset=1, state_epoch=-1),
        "ReadShareGroupState": share_state(leader_epoch=-1),
        "WriteShareGroupState": share_state(state_epoch=-1, state_batches=[state_batch]),
        "DeleteShareGroupState": share_state(),
        "ReadShareGroupStateSummary": share_state(),
        "DescribeGroups": {"groups": [group]},
        "ListGroups": {"states_filter": ["Dead"], "types_filter": ["classic"]},
        "CreateTopics": {"topics": [new_topic], "timeout": 1000, "validate_only": True},
        "DeleteTopics": {"topic_names": [f"{topic}.new"], "topics": [{"name": f"{topic}.new"}], "timeout": 1000},
        "DeleteRecords": topic_fields(offset=1),
        "InitProducerId": {"transactional_id": None, "transaction_timeout": 1000},
        "OffsetForLeaderEpoch": {"replica_id": -1, **topic_fields(leader_epoch=0)},
        "DescribeConfigs": {"resources": resources},
        "AlterConfigs": {"resources": resources, "validate_only": True},
        "IncrementalAlterConfigs": {"resources": resources, "validate_only": True},
        "DescribeLogDirs": {"topics": [{"topic": topic, "partitions": [0]}]},
        "CreatePartitions": {
            "topics": [{"name": topic, "count": 1, "assignments": [{"broker_ids": [1]}]}],
            "timeout": 1000,
        },
        "DeleteGroups": {"groups_names": [group]},
        "OffsetDelete": {"group_id": group, **topic_fields()},
        "DescribeCluster": {},
        "DescribeProducers": {"topics": topics},
        "ListConfigResources": {"resource_types": [2]},
        "AddPartitionsToTxn": {
            "transactions": [added_partitions],
            **{f"v3_and_below_{name}": value for name, value in added_partitions.items()},
        },
        "AddOffsetsToTxn": transaction,
        "EndTxn": transaction,
        "WriteTxnMarkers": {"markers": [marker]},
        "TxnOffsetCommit": {**member, **transaction, **topic_fields(committed_offset=1, committed_metadata="m")},
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
        "ListPartitionReassignments": {"topics": topics, "timeout": 1000},
        "AlterPartitionReassignments": {
            "topics": [{"name": topic, "partitions": [{"partition_index": 0, "replicas": [1]}]}],
            "timeout": 1000,
        },
        "UnregisterBroker": {"broker_id": 999},
        "AlterReplicaLogDirs": {"dirs": [{"path": "/wire.nowhere", "topics": topics}]},
        "DescribeClientQuotas": {"components": [{"entity_type": "user", "match": "wire.nobody"}]},
        "AlterClientQuotas": {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": ""}],
                    "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}],
                }
            ],
            "validate_only": True,
        },
        "AlterUserScramCredentials": {
            "deletions": [{"name": "bad", "mechanism": 1}],
            "upsertions": [{"name": "", "mechanism": 1, "iterations": 1, "salt": b"s", "salted_password": b"p"}],
        },
        "SaslHandshake": {"mechanism": "PLAIN"},
        "SaslAuthenticate": {"auth_bytes": b"token"},
        "DescribeUserScramCredentials": {"users": [{"name": "wire.nobody"}]},
        "CreateDelegationToken": {"renewers": [{"principal_type": "User", "principal_name": "wire.nobody"}]},
        "RenewDelegationToken": {"hmac": b"wire"},
        "ExpireDelegationToken": {"hmac": b"wire"},
        "DescribeDelegationToken": {"owners": [{"principal_type": "User", "principal_name": "wire.nobody"}]},
        "ElectLeaders": {
            "topic_partitions": [{"topic": topic, "partitions": [0]}],
            "election_type": 0,
            "timeout": 1000,
        },
        "DescribeQuorum": {"topics": [{"topic_name": topic, "partitions": [{"partition_index": 0}]}]},
    }


def malformed_requests(api: str, version: int, sample: Sample) -> Iterator[tuple[str, bytes]]:
    """Yield (title, frame) of every malformed variant of a request."""
    valid = encoded(api, version, sample)
    flexible = kio_messages.entity(api, "request", version).__flexible__
    for path in arrays(sample):
        start = count_position(api, version, sample, path, flexible)
        if start is None:
            continue
        bytes_left = len(valid) - start
        for count in (*HUGE, bytes_left):
            title = "as many as bytes are left" if count == bytes_left else str(count)
            size, encoded_count = (1, uvarint(count + 1)) if flexible else (4, struct.pack(">i", count))
            yield (
                f"{'.'.join(map(str, path))}: {title}",
                with_size(valid[:start] + encoded_count + valid[start + size :]),
            )
    body = body_position(valid, api, version)
    for title, end in {
        "cut in half": (body + len(valid)) // 2,
        "last byte cut": len(valid) - 1,
        "no body": body,
    }.items():
        if body <= end < len(valid):
            yield title, with_size(valid[:end])
    yield "bytes after the request", with_size(valid + b"more")
    if b"wire." in valid:
        yield "names that are no UTF-8", valid[:body] + valid[body:].replace(b"wire.", b"\xff\xfee..")
    if flexible:
        yield "unknown tag", with_size(valid[:-1] + UNKNOWN_TAG)
        yield "unknown tag in the header", with_size(valid[: body - 1] + UNKNOWN_TAG + valid[body:])
        for count in HUGE:
            yield f"{count} tags", with_size(valid[:-1] + uvarint(count))
            yield f"{count} tags in the header", with_size(valid[: body - 1] + uvarint(count) + valid[body:])
            yield f"a tag of {count} bytes", with_size(valid[:-1] + b"\1\x63" + uvarint(count))
        yield "a varint that does not end", with_size(valid[:-1] + b"\xff" * 12)


def encoded(api: str, version: int, sample: Sample) -> bytes:
    return kio_messages.encode_request_frame(kio_messages.request(api, version, sample, strict=False), 1, "wire")


def body_position(frame: bytes, api: str, version: int) -> int:
    """Return the position of the body; the client id is "wire", and flexible headers end with tagged fields."""
    return 4 + 10 + len("wire") + kio_messages.entity(api, "request", version).__flexible__


def arrays(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths of all lists in a sample."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from arrays(item, (*path, name))
    elif isinstance(value, list):
        yield path
        for number, item in enumerate(value):
            yield from arrays(item, (*path, number))


def count_position(api: str, version: int, sample: Sample, path: tuple[str | int, ...], flexible: bool) -> int | None:
    """Return the position of an array's count in the frame; None if the version does not have the array."""
    full, empty = encoded(api, version, sample)[4:], encoded(api, version, with_empty_list(sample, path))[4:]
    if full == empty:
        return None
    differs = next(pos for pos, (byte, other) in enumerate(zip(full, empty, strict=False)) if byte != other)
    return 4 + differs - (0 if flexible else 3)


def with_empty_list(value: Any, path: tuple[str | int, ...]) -> Any:
    """Return a copy of a sample without the items of one list."""
    if not path:
        return []
    copy: Any = dict(value) if isinstance(value, Mapping) else list(value)
    copy[path[0]] = with_empty_list(value[path[0]], path[1:])
    return copy


def with_size(frame: bytes) -> bytes:
    """Return the frame with its correct size."""
    return struct.pack(">i", len(frame) - 4) + frame[4:]


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out + bytes([value]))


def outcome(bootstrap: str, frame: bytes, api: str, version: int, *, finish: bool = False) -> str:
    """Send a frame; returns "closed", or the error codes of the response.

    finish: close the sending side after the frame.
    """
    client = Client(bootstrap)
    try:
        client.send_raw(frame)
        if finish:
            client.finish_sending()
        cls = kio_messages.entity(api, "response", version)
        response = kio_messages.decode_response_frame(cls, client.receive_raw())
    except ConnectionClosedError:
        return "closed"
    finally:
        client.close()
    return " ".join(sorted(set(error_codes(kio_messages.plain(response))))) or "no error codes"


def invalid_frames() -> Iterator[tuple[str, bytes, bool]]:
    """Yield (title, bytes, whether the client stops sending then) of bytes that are no request of any API."""
    valid = encoded("Heartbeat", 0, {"group_id": "g", "member_id": "m"})
    flexible = encoded("Heartbeat", 4, {"group_id": "g", "member_id": "m"})
    for length in (-1, -(2**31), MAX_REQUEST + 1, 2**31 - 1, 0, 1, 7):
        yield f"length {length}", struct.pack(">i", length) + valid[4:], False
    yield "length one more than there is", struct.pack(">i", len(valid) - 3) + valid[4:], True
    yield "the largest length, and little of it", struct.pack(">i", MAX_REQUEST) + valid[4:], True
    yield "half of a length", valid[:2], True
    yield "half of a request", valid[: len(valid) // 2], True
    for size in (-2, -(2**15), 2**15 - 1, len(valid)):
        yield f"a client id of {size} bytes", valid[:12] + struct.pack(">h", size) + valid[14:], False
    yield "no client id", with_size(valid[:12] + b"\xff\xff" + valid[18:]), False
    yield "an empty client id", with_size(valid[:12] + b"\0\0" + valid[18:]), False
    yield "a client id that is no UTF-8", valid[:14] + b"\xff\xfe\xfd\xfc" + valid[18:], False
    yield "only an api key", with_size(valid[:6]), False
    yield "no client id's length", with_size(valid[:12]), False
    yield "no header tags", with_size(flexible[:18]), False
    # They are served on another listener.
    for api, version in (("AlterPartition", 3), ("BrokerHeartbeat", 1), ("Envelope", 0)):
        yield f"a broker's {api}", encoded(api, version, {}), False
    yield "a request of HTTP", b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n", False
    yield "a hello of TLS", bytes.fromhex("16030100c8010000c40303") + bytes(189), False
    noise = random.Random(4)
    for number in range(20):
        yield f"noise {number}", with_size(bytes(4) + noise.randbytes(noise.randrange(1, 200))), False


def run_invalid_frames(story: Story) -> None:
    outcomes = {
        title: outcome(story.cluster.bootstrap, data, "Heartbeat", 0, finish=finish)
        for title, data, finish in invalid_frames()
    }
    record_outcomes(story, "nothing that is a request", outcomes)


def record_outcomes(story: Story, step: str, outcomes: dict[str, str]) -> None:
    """Record how many frames closed their connections, and the outcomes of the others."""
    others = {title: outcome for title, outcome in outcomes.items() if outcome != "closed"}
    story.record(step, closed=len(outcomes) - len(others), **others)


def wait_for_coordinator(story: Story) -> None:
    """Wait until the transactional id of the samples has a coordinator, which does not know it."""
    key = {"key_type": 1, "coordinator_keys": [NOBODY]}
    story.call_until("FindCoordinator", lambda response: error_codes(response) == ["NONE"], **key)
    unknown = ["TRANSACTIONAL_ID_NOT_FOUND"]
    story.call_until(
        "DescribeTransactions", lambda response: error_codes(response) == unknown, transactional_ids=[NOBODY]
    )


def run(story: Story) -> None:
    """Send the malformed requests of the story's API and version."""
    if story.version < FIRST_SERVED.get(story.api, 0):
        return
    if (story.api, story.version) == ("Heartbeat", 0):
        run_invalid_frames(story)
    topic = story.create_topic("bad")
    wait_for_coordinator(story)
    sample = samples(topic, story.topic_id(topic), story.group("bad"))[story.api]
    outcomes = {
        title: outcome(story.cluster.bootstrap, frame, story.api, story.version)
        for title, frame in malformed_requests(story.api, story.version, sample)
    }
    record_outcomes(story, "broken requests", outcomes)
    end_offset = story.end_offset(topic)
    assert end_offset == (story.api == "Produce") * list(outcomes.values()).count("NONE"), "a broken request was stored"
