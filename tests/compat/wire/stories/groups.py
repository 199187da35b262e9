"""Consumer groups: FindCoordinator, DescribeGroups, ListGroups, DeleteGroups, OffsetCommit, OffsetDelete."""

from collections.abc import Callable
from uuid import UUID

from tests.compat.wire.stories.consumer_groups import ConsumerMember, assign_at_once, owned
from tests.compat.wire.stories.membership import Member, rebalancing
from tests.compat.wire.story import Response, Story, of_api

UNKNOWN_ID = UUID(int=1)


@of_api("FindCoordinator", "consumer groups")
def find_coordinator(story: Story) -> None:
    group = story.group("g")
    kinds = {"group": 0, "transaction": 1, "share": 2, "no such kind": 3, "negative": -1}
    for title, kind in kinds.items():
        if kind == 0 or story.version >= 1:
            story.request_until(title, is_ready, key=group, coordinator_keys=[group], key_type=kind)
    story.request("an empty key", key="", coordinator_keys=[""], key_type=0)
    if story.version >= 1:
        story.request_until("an empty transactional id", is_ready, key="", coordinator_keys=[""], key_type=1)
        key = f"{group}:AAAAAAAAAAAAAAAAAAAAAQ:0"
        story.request_until("a share partition", is_ready, key=key, coordinator_keys=[key], key_type=2)
    if story.version >= 4:
        story.request("two keys", coordinator_keys=[group, story.name("h")], key_type=0)
        story.request("no key", coordinator_keys=[], key_type=0)


def is_ready(response: Response) -> bool:
    """Return whether Kafka has created the internal topic."""
    return "COORDINATOR_NOT_AVAILABLE" not in str(response)


@of_api("DescribeGroups", "group admin")
def describe_groups(story: Story) -> None:
    def request(step: str, *groups: str, **more: object) -> None:
        story.request(step, groups=list(groups), **more)

    stable = Member(story, story.group("stable")).stable()
    joined = Member(story, story.group("joined")).join()
    static = Member(story, story.group("static"), "one").stable()
    empty = story.group("empty")
    commit(story, empty, story.create_topic("t"), 1)
    request("stable", stable.group)
    request("joined, without its assignment yet", joined.group)
    request("a static member", static.group)
    request("only offsets", empty)
    request("unknown", story.name("unknown"))
    request("an empty id", "")
    request("two", stable.group, empty)
    request("the same twice", empty, empty)
    request("none")
    request("with operations", empty, include_authorized_operations=True)
    waiting = rebalancing(story, stable)
    story.assign_placeholder("member_id", waiting.id)
    request("rebalancing", stable.group)


@of_api("ListGroups", "group admin")
def list_groups(story: Story) -> None:
    Member(story, story.group("stable")).stable()
    commit(story, story.group("empty"), story.create_topic("t"), 1)
    story.request_own("all")
    for title, states in {
        "stable": ["Stable"],
        "empty": ["Empty"],
        "two states": ["Empty", "Stable"],
        "lower case": ["stable"],
        "no such state": ["Happy"],
        "dead": ["Dead"],
    }.items():
        if story.version >= 4:
            story.request_own(title, states_filter=states)
    for title, kinds in {
        "classic": ["classic"],
        "capital": ["Classic"],
        "consumer": ["consumer"],
        "no such type": ["kind"],
    }.items():
        if story.version >= 5:
            story.request_own(title, types_filter=kinds)
            story.request_own(f"{title}, stable", types_filter=kinds, states_filter=["Stable"])


@of_api("DeleteGroups", "group admin")
def delete_groups(story: Story) -> None:
    def request(step: str, *groups: str) -> None:
        story.request(step, groups_names=list(groups))

    topic = story.create_topic("t")
    for name in ("a", "b"):
        commit(story, story.group(name), topic, 1)
    member = Member(story, story.group("full")).stable()
    request("one", story.name("a"))
    request("it is gone", story.name("a"))
    request("unknown", story.name("unknown"))
    request("an empty id", "")
    request("with a member", member.group)
    request("two, one with a member", story.name("b"), member.group)
    request("none")
    story.call("LeaveGroup", group_id=member.group, members=[{"member_id": member.id}])
    request("the member has left", member.group)


def commit(story: Story, group: str, topic: str, offset: int) -> None:
    """Commit an offset for partition 0 without a member."""
    rows = [{"partition_index": 0, "committed_offset": offset, "committed_metadata": "m"}]
    fields_of_topic = {"name": topic, "topic_id": story.topic_id(topic), "partitions": rows}
    story.call("OffsetCommit", group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=[fields_of_topic])


@of_api("OffsetCommit", "commits")
def offset_commit(story: Story) -> None:
    topic, group = story.create_topic("t", 2), story.group("g")
    story.group("h")

    def request(step: str, partition: int = 0, name: str = topic, metadata: str | None = "", **more: object) -> None:
        row = {"partition_index": partition, "committed_offset": 5, "committed_metadata": metadata}
        row |= {"committed_leader_epoch": -1}
        fields_of_topic = {
            "name": name,
            "topic_id": story.topic_id(name) if story.has_topic(name) else UNKNOWN_ID,
            "partitions": [row],
        }
        identity = {"group_id": group, "member_id": "", **generation_field(-1)}
        story.request(step, **{**identity, "retention_time": -1, "topics": [fields_of_topic], **more})

    request("without a member")
    request("metadata", metadata="m")
    request("null metadata", metadata=None)
    request("too much metadata", metadata="m" * 4097)
    request("unknown partition", 7)
    request("negative partition", -1)
    request("unknown topic", name=story.name("unknown"))
    request("an empty group id", group_id="")
    request("a member of an empty group", member_id="nobody")
    request("a generation of an empty group", **generation_field(1))
    request("a generation of an unknown group", group_id=story.name("h"), **generation_field(1))
    request("no topics", topics=[])
    member = Member(story, story.group("full")).join()
    member_fields = {"group_id": member.group, "member_id": member.id, **generation_field(member.generation)}
    request("before the assignment", **member_fields)
    member.sync()
    request("a member", **member_fields)
    request("an old generation", **{**member_fields, **generation_field(member.generation - 1)})
    request("a later generation", **{**member_fields, **generation_field(member.generation + 1)})
    request("an unknown member", **{**member_fields, "member_id": "nobody"})
    request("nobody, while there is a member", group_id=member.group)
    if story.version >= 7:
        request("an unknown instance", **member_fields, group_instance_id="two")
    rebalancing(story, member)
    request("while the group rebalances", **member_fields)
    commits_in_a_consumer_group(story, topic, request)
    story.try_call("DeleteGroups", groups_names=[""])
    record_offsets(story, "what was stored", group, topic)
    record_offsets(story, "what was stored by the member", member.group, topic)


def commits_in_a_consumer_group(story: Story, topic: str, request: Callable[..., None]) -> None:
    """Commits of members in the epoch that they are in, in others, and for partitions that they have no longer."""
    topic_id, group = story.topic_id(topic), story.group("consumers")
    assign_at_once(story, group)
    first = ConsumerMember(story, group, "member-a").join(topic)
    epoch = first.epoch
    fields = {"group_id": group, "member_id": first.id}
    request("a member of a consumer group", **fields, **generation_field(epoch))
    request("a later epoch", **fields, **generation_field(epoch + 1))
    request("an unknown member of a consumer group", group_id=group, member_id="nobody", **generation_field(epoch))
    request("nobody, while the consumer group has a member", group_id=group)
    second = ConsumerMember(story, group, "member-b").join(topic)
    first.heartbeat(topic_partitions=owned(topic_id, 0, 1))
    request("a partition to revoke", 1, **fields, **generation_field(epoch))
    first.heartbeat(topic_partitions=owned(topic_id, 0))
    request("the epoch before, for a partition that was kept", **fields, **generation_field(epoch))
    request("the epoch before, for a partition that was revoked", 1, **fields, **generation_field(epoch))
    second.reconcile()
    request("another member's partition in the current epoch", 1, **fields, **generation_field(epoch + 1))
    for member in (first, second):
        member.heartbeat(member_epoch=-1)
    request("a member that has left", **fields, **generation_field(epoch + 1))
    story.call("DeleteGroups", groups_names=[group])


def generation_field(number: int) -> dict[str, object]:
    return {"generation_id_or_member_epoch": number}


def record_offsets(story: Story, step: str, group: str, topic: str) -> None:
    rows = [{"name": topic, "topic_id": story.topic_id(topic), "partition_indexes": [0, 1, 7]}]
    story.record(step, **story.call("OffsetFetch", groups=[{"group_id": group, "topics": rows}]))


def offset_fetch(story: Story) -> None:
    topic, other = story.create_topic("t", 2), story.create_topic("u")
    group, second = story.group("g"), story.group("h")
    commit(story, group, topic, 5)
    commit(story, second, other, 6)

    def request(step: str, groups: dict[str, object], **more: object) -> None:
        """`groups`: {group: [(topic, partition, ...), ...] or None for all}."""
        fields = [
            {"group_id": name, "topics": None if topics is None else [offset_topic(story, *row) for row in topics]}
            for name, topics in groups.items()
        ]
        story.request(step, groups=fields, **(fields[0] if fields else {"group_id": ""}), **more)

    request("a partition", {group: [(topic, 0)]})
    request("one that has no offset", {group: [(topic, 1)]})
    request("unknown partition", {group: [(topic, 7)]})
    request("unknown topic", {group: [(story.name("unknown"), 0)]})
    request("unknown group", {story.name("unknown"): [(topic, 0)]})
    request("an empty group id", {"": [(topic, 0)]})
    request("no topics", {group: []})
    request("the same topic twice", {group: [(topic, 0), (topic, 1)]})
    if story.version >= 2:
        request("all", {group: None})
        request("all of an unknown group", {story.name("unknown"): None})
    if story.version >= 7:
        request("stable", {group: [(topic, 0)]}, require_stable=True)
    if story.version >= 8:
        request("two groups", {group: [(topic, 0)], second: None})
        request("no groups", {})
    if story.version >= 9:
        member = [
            {"group_id": group, "member_id": "nobody", "member_epoch": 0, "topics": [offset_topic(story, topic, 0)]}
        ]
        story.request("as a member", groups=member)
        fetches_in_a_consumer_group(story, topic)


def fetches_in_a_consumer_group(story: Story, topic: str) -> None:
    """Only a member in its current epoch may fetch, and clients that say nothing about themselves."""
    group = story.group("consumers")
    assign_at_once(story, group)
    member = ConsumerMember(story, group, "member-a").join(topic)
    for step, member_id, epoch in (
        ("a member of a consumer group", member.id, member.epoch),
        ("the epoch before", member.id, member.epoch - 1),
        ("a later epoch", member.id, member.epoch + 1),
        ("an unknown member", "nobody", member.epoch),
        ("nobody", None, -1),
    ):
        topics = [offset_topic(story, topic, 0)]
        fields = {"group_id": group, "member_id": member_id, "member_epoch": epoch, "topics": topics}
        story.request(step, groups=[fields])
    member.heartbeat(member_epoch=-1)
    story.call("DeleteGroups", groups_names=[group])


def offset_topic(story: Story, topic: str, *partitions: int) -> dict[str, object]:
    topic_id = story.topic_id(topic) if story.has_topic(topic) else UNKNOWN_ID
    return {"name": topic, "topic_id": topic_id, "partition_indexes": list(partitions)}


@of_api("OffsetDelete", "commits")
def offset_delete(story: Story) -> None:
    topic, other = story.create_topic("t", 2), story.create_topic("u")
    group = story.group("g")
    commit(story, group, topic, 5)

    def request(step: str, partition: int = 0, name: str = topic, group: str = group) -> None:
        row = {"name": name, "partitions": [{"partition_index": partition}]}
        story.request(step, group_id=group, topics=[row])

    request("a partition")
    request("it is gone")
    request("unknown partition", 7)
    request("unknown topic", name=story.name("unknown"))
    request("unknown group", group=story.name("unknown"))
    request("an empty group id", group="")
    story.request("no topics", group_id=group, topics=[])
    subscription = b"\0\0" + b"\0\0\0\1" + len(topic).to_bytes(2, "big") + topic.encode() + b"\xff\xff\xff\xff"
    member = Member(story, story.group("full"))
    fields = member.request_member_id().join_fields(protocols=[{"name": "range", "metadata": subscription}])
    member.set_from_response(story.call("JoinGroup", **fields))
    member.sync()
    request("a topic that a member is subscribed to", group=member.group)
    request("a topic that no member is subscribed to", name=other, group=member.group)
