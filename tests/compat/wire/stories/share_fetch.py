"""Share consumers (KIP-932): acquire and acknowledge records in share sessions."""

from typing import Any
from uuid import UUID

from tests.compat.wire import batches
from tests.compat.wire.stories.share_groups import GROUP_RESOURCE, ShareMember, share_group
from tests.compat.wire.story import Response, Story, of_api

UNKNOWN_ID = UUID(int=1)
EVERYTHING = 1 << 20
MEMBER, OTHER = "member-a", "member-b"
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
NEW_SESSION, FINAL = 0, -1
FIRST_WITH_MODES = 2

# (first offset, last offset, type, ...)
Acknowledged = tuple[int, ...]


def begin(story: Story) -> tuple[str, str]:
    """Return a topic with records, and a group whose member has its partition."""
    topic = story.create_topic("t")
    group = share_group(story, "g", topic)
    config = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": [config]}
    story.call("IncrementalAlterConfigs", resources=[resource])
    ShareMember(story, group, MEMBER).join(topic)
    story.produce(topic, batches.values(*"abcde"), batches.values(*"fghij"), batches.values(*"klmno", codec="lz4"))
    return topic, group


def part(index: int, *acknowledged: Acknowledged) -> dict[str, Any]:
    rows = [
        {"first_offset": first, "last_offset": last, "acknowledge_types": list(types)}
        for first, last, *types in acknowledged
    ]
    return {"partition_index": index, "acknowledgement_batches": rows}


def fields_of(group: str, epoch: int, topic_id: UUID | None, *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    topics = [] if topic_id is None else [{"topic_id": topic_id, "partitions": list(parts)}]
    return {"group_id": group, "member_id": MEMBER, "share_session_epoch": epoch, "topics": topics, **more}


def fetch_fields(
    group: str, epoch: int, topic_id: UUID | None = None, *parts: dict[str, Any], **more: Any
) -> dict[str, Any]:
    limits = {"max_wait": 0, "min_bytes": 1, "max_bytes": EVERYTHING, "max_records": 500, "batch_size": 500}
    return fields_of(group, epoch, topic_id, *parts, **(limits | more))


@of_api("ShareFetch", "records")
def share_fetch(story: Story) -> None:
    topic, group = begin(story)
    id, has_modes = story.topic_id(topic), story.version >= FIRST_WITH_MODES

    def fetch(step: str, epoch: int, *parts: dict[str, Any], topic_id: UUID | None = id, **more: Any) -> Response:
        return story.request(step, **fetch_fields(group, epoch, topic_id, *parts, **more))

    fetch("no group", NEW_SESSION, part(0), group_id=None)
    fetch("no member", NEW_SESSION, part(0), member_id=None)
    fetch("an empty member", NEW_SESSION, part(0), member_id="")
    fetch("a session that does not exist", 1, part(0))
    fetch("close a session that does not exist", FINAL, topic_id=None)
    fetch("acknowledge first", NEW_SESSION, part(0, (0, 0, ACCEPT)))

    def has_records(response: Response) -> bool:
        return any(row["acquired_records"] for topic in response["responses"] for row in topic["partitions"])

    first = fetch_fields(group, NEW_SESSION, id, part(0), max_records=5, max_wait=500)
    story.request_until("a batch", has_records, **first)
    fetch("an epoch too high", 3, topic_id=None)
    fetch("an epoch too low", NEW_SESSION + 7, topic_id=None)
    fetch("no records wanted", 1, topic_id=None, max_records=0)
    fetch("no bytes wanted", 2, topic_id=None, max_bytes=0)
    fetch("acknowledge only", 3, part(0, (0, 4, ACCEPT, RELEASE, REJECT, ACCEPT, GAP)), max_records=0)
    fetch("what was released", 4, topic_id=None, max_records=1)
    fetch("the next batch", 5, topic_id=None, max_records=5)
    fetch("an unknown partition", 6, part(7), max_records=1)
    fetch("forget it", 7, topic_id=None, max_records=0, forgotten_topics_data=[{"topic_id": id, "partitions": [7]}])
    fetch("an unknown topic", 8, part(0), topic_id=UNKNOWN_ID, max_records=0)
    fetch("forget it, too", 9, topic_id=None, forgotten_topics_data=[{"topic_id": UNKNOWN_ID, "partitions": [0]}])
    fetch("wrong acknowledgements", 10, part(0, (0, 0, ACCEPT), (90, 91, ACCEPT)))
    fetch("nothing left", 11, topic_id=None, max_wait=5)
    epoch = 12
    if has_modes:
        renewal = {"is_renew_ack": True, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
        fetch("renew", 12, part(0, (5, 6, RENEW)), **renewal)
        fetch("renew and accept", 13, part(0, (5, 5, ACCEPT), (6, 6, RENEW)), **renewal)
        fetch("renew and fetch", 14, part(0, (6, 6, RENEW)), is_renew_ack=True)
        fetch("renew, but not say so", 14, part(0, (6, 6, RENEW)))
        epoch = 15
        story.produce(topic, batches.values(*"pqrst"), batches.values(*"uvwxy"))
        fetch("exactly seven records", 15, topic_id=None, max_records=7, share_acquire_mode=1)
        epoch = 16
    fetch("release all", epoch, part(0, (7, 9, RELEASE), (10, 14, RELEASE)), max_records=0)
    fetch("close", FINAL, part(0))
    fetch("the closed session", epoch + 1, topic_id=None)


@of_api("ShareAcknowledge", "records")
def share_acknowledge(story: Story) -> None:
    topic, group = begin(story)
    id, has_modes = story.topic_id(topic), story.version >= FIRST_WITH_MODES
    epoch = 1

    def acknowledge(step: str, *acknowledged: Acknowledged, index: int = 0, topic_id: UUID = id, **more: Any) -> None:
        nonlocal epoch
        epoch += 1
        story.request(step, **fields_of(group, epoch - 1, topic_id, part(index, *acknowledged), **more))

    fields = fields_of(group, NEW_SESSION, id, part(0, (0, 0, ACCEPT)))
    story.request("no group", **fields | {"group_id": None})
    story.request("no member", **fields | {"member_id": None})
    story.request("a new session", **fields)
    story.request("a session that does not exist", **fields | {"share_session_epoch": 1})
    story.request("close a session that does not exist", **fields | {"share_session_epoch": FINAL})

    def has_records(response: Response) -> bool:
        return any(row["acquired_records"] for topic in response["responses"] for row in topic["partitions"])

    story.call_until("ShareFetch", has_records, **fetch_fields(group, NEW_SESSION, id, part(0), max_wait=500))
    acknowledge("accept", (0, 4, ACCEPT))
    acknowledge("accept again", (0, 4, ACCEPT))
    acknowledge("one type for each", (5, 7, ACCEPT, REJECT, GAP))
    acknowledge("two batches", (8, 8, ACCEPT), (9, 9, REJECT))
    acknowledge("more than was acquired", (14, 20, ACCEPT))
    acknowledge("what was never there", (50, 51, ACCEPT))
    acknowledge("twice", (10, 11, ACCEPT), (11, 12, ACCEPT))
    acknowledge("not in order", (12, 12, ACCEPT), (10, 11, ACCEPT))
    acknowledge("too few types", (10, 12, ACCEPT, ACCEPT))
    acknowledge("no type", (10, 12))
    acknowledge("an unknown type", (10, 12, 9))
    acknowledge("a negative type", (10, 12, -1))
    acknowledge("an end before the start", (12, 10, ACCEPT))
    acknowledge("an unknown partition", (0, 0, ACCEPT), index=7)
    acknowledge("an unknown topic", (0, 0, ACCEPT), topic_id=UNKNOWN_ID)
    acknowledge("renew, but not say so", (10, 10, RENEW))
    if has_modes:
        acknowledge("renew", (10, 11, RENEW), is_renew_ack=True)
        acknowledge("renew and accept", (10, 10, ACCEPT), (11, 11, RENEW), is_renew_ack=True)
    story.request("an epoch too high", **fields_of(group, epoch + 1, id, part(0, (11, 11, ACCEPT))))
    other = fetch_fields(group, NEW_SESSION, id, part(0), member_id=OTHER)
    story.call("ShareFetch", **other)
    story.request("another member's", **fields_of(group, 1, id, part(0, (11, 12, ACCEPT)), member_id=OTHER))
    acknowledge("no acknowledgements")
    story.request("close", **fields_of(group, FINAL, id, part(0, (11, 11, ACCEPT))))
    story.request("the closed session", **fields_of(group, epoch, id, part(0, (12, 12, ACCEPT))))
