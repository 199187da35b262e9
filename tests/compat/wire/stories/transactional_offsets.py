"""Offsets committed in transactions (KIP-447): TxnOffsetCommit, and OffsetFetch while they are pending."""

from tests.compat.wire.stories import groups
from tests.compat.wire.stories.groups import commit
from tests.compat.wire.stories.membership import Member, rebalancing
from tests.compat.wire.stories.transactions import UNKNOWN_PRODUCER_ID, Producer
from tests.compat.wire.story import Story, of_api

FIRST_VERSION_2 = 5  # the version of TxnOffsetCommit that adds the group's partition to the transaction (KIP-890)
FIRST_VERSION_WITH_MEMBERS = 3


def row(story: Story, topic: str, offset: int = 5, partition: int = 0, metadata: str | None = "m") -> dict[str, object]:
    partition = {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata}
    topic_id = story.topic_id(topic) if story.has_topic(topic) else groups.UNKNOWN_ID
    return {"name": topic, "topic_id": topic_id, "partitions": [{**partition, "committed_leader_epoch": -1}]}


def generation(number: int) -> dict[str, int]:
    """Return the field, which has another name from version 6 on."""
    return {"generation_id": number, "generation_id_or_member_epoch": number}


NOBODY = {**generation(-1), "member_id": ""}


def add_group(story: Story, producer: Producer, group: str) -> None:
    story.call("AddOffsetsToTxn", **producer.identity(group_id=group))


@of_api("TxnOffsetCommit", "transactions")
def txn_offset_commit(story: Story) -> None:
    """TxnOffsetCommit, in a transaction of the producer."""
    topic, group = story.create_topic("t", 2), story.group("g")
    v2 = story.version >= FIRST_VERSION_2
    producer = Producer(story, "p", v2).init()

    def request(step: str, *rows: dict[str, object], **more: object) -> None:
        fields = {**producer.identity(group_id=group, **NOBODY), **more}
        story.request(step, **fields, topics=list(rows) if rows else [row(story, topic)])

    request("the group's partition is not in the transaction")
    producer.record("was it added?")
    add_group(story, producer, group)
    request("offsets", row(story, topic, 5), row(story, topic, 6, 1, None))
    record_offsets(story, "pending", group, topic)
    request("unknown topic and another one", row(story, story.name("unknown")), row(story, topic, 7))
    request("unknown partition", row(story, topic, 5, 9))
    request("too much metadata", row(story, topic, metadata="m" * 4097))
    request("a negative offset", row(story, topic, -3, 1))
    story.request("no topics", **producer.identity(group_id=group, **NOBODY), topics=[])
    request("an empty group id", group_id="")
    wrong_identities = {
        "an unknown transactional id": {"transactional_id": story.name("unknown")},
        "an empty transactional id": {"transactional_id": ""},
        "another producer id": {"producer_id": UNKNOWN_PRODUCER_ID},
        "a negative producer id": {"producer_id": -1},
        "a later epoch": {"producer_epoch": producer.epoch + 1},
        "an earlier epoch": {"producer_epoch": producer.epoch - 1},
    }
    for title, identity in wrong_identities.items():
        request(title, **identity)
    previous_epoch = producer.epoch
    producer.end()
    record_offsets(story, "committed", group, topic)
    request("after the end", producer_epoch=previous_epoch)
    add_group(story, producer, group)
    request("offsets that are aborted", row(story, topic, 99))
    record_offsets(story, "pending again", group, topic)
    commit(story, group, topic, 8)
    record_offsets(story, "pending, and committed otherwise", group, topic)
    producer.end(False)
    record_offsets(story, "aborted", group, topic)
    order_of_commits(story, topic)
    if story.version >= FIRST_VERSION_WITH_MEMBERS:
        group_members(story, topic)
    fenced(story, topic)


def record_offsets(story: Story, step: str, group: str, topic: str) -> None:
    """Record the offsets that OffsetFetch returns, with and without require_stable."""
    topics = [{"name": topic, "topic_id": story.topic_id(topic), "partition_indexes": [0, 1]}]
    for stable in (True, False):
        title = f"{step}{', stable' if stable else ''}"
        fields = {"require_stable": stable}
        story.record(title, **story.try_call("OffsetFetch", groups=[{"group_id": group, "topics": topics}], **fields))
    everything = [{"group_id": group, "topics": None}]
    story.record(f"{step}, all", **story.try_call("OffsetFetch", groups=everything, require_stable=True))


def order_of_commits(story: Story, topic: str) -> None:
    """The last written offset wins, in whichever order the transactions end."""
    group = story.group("order")
    first, second = Producer(story, "first").init(), Producer(story, "second").init()
    for producer, offset in ((first, 10), (second, 20)):
        add_group(story, producer, group)
        fields = producer.identity(group_id=group, **NOBODY, topics=[row(story, topic, offset)])
        story.request(f"{offset} of two transactions", **fields)
    second.end()
    record_offsets(story, "the second is committed", group, topic)
    first.end()
    record_offsets(story, "both are committed", group, topic)
    add_group(story, first, group)
    story.call("TxnOffsetCommit", **first.identity(group_id=group, **NOBODY, topics=[row(story, topic, 30)]))
    commit(story, group, topic, 40)
    first.end()
    record_offsets(story, "an ordinary commit came later", group, topic)
    add_group(story, first, group)
    story.call("TxnOffsetCommit", **first.identity(group_id=group, **NOBODY, topics=[row(story, topic, 50)]))
    partitions = [{"partition_index": 0}]
    story.call("OffsetDelete", group_id=group, topics=[{"name": topic, "partitions": partitions}])
    record_offsets(story, "deleted while it was pending", group, topic)
    first.end()
    record_offsets(story, "committed after it was deleted", group, topic)
    add_group(story, first, group)
    story.call("TxnOffsetCommit", **first.identity(group_id=group, **NOBODY, topics=[row(story, topic, 60)]))
    story.record("the group, while an offset is pending", **story.try_call("DescribeGroups", groups=[group]))
    story.record("it is deleted", **story.try_call("DeleteGroups", groups_names=[group]))
    record_offsets(story, "the group was deleted while it was pending", group, topic)
    first.end()
    record_offsets(story, "committed after the group was deleted", group, topic)


def group_members(story: Story, topic: str) -> None:
    """A request with a generation id must be from a member of the group."""
    member = Member(story, story.group("full")).join()
    producer = Producer(story, "member").init()
    add_group(story, producer, member.group)
    member_fields = {"group_id": member.group, "member_id": member.id, **generation(member.generation)}

    def request(step: str, **more: object) -> None:
        story.request(f"member: {step}", **producer.identity(), **{**member_fields, **more}, topics=[row(story, topic)])

    request("before the assignment")
    member.sync()
    request("stable")
    request("an old generation", **generation(member.generation - 1))
    request("a later generation", **generation(member.generation + 1))
    request("an unknown member", member_id="nobody")
    request("nobody", **NOBODY)
    request("a generation and nobody", member_id="")
    request("a member without a generation", **generation(-1))
    request("an unknown instance", group_instance_id="two")
    add_group(story, producer, story.group("unknown"))
    request("an unknown group", group_id=story.name("unknown"))
    static = Member(story, story.group("static"), "one").stable()
    member_fields = {"group_id": static.group, "member_id": static.id, **generation(static.generation)}
    add_group(story, producer, static.group)
    request("static", group_instance_id="one")
    request("static without its instance")
    request("static with another instance", group_instance_id="two")
    request("an instance and another member", member_id="nobody", group_instance_id="one")
    member_fields = {"group_id": member.group, "member_id": member.id, **generation(member.generation)}
    rebalancing(story, member)
    request("while the group rebalances")
    producer.end()
    record_offsets(story, "member: committed", member.group, topic)


def fenced(story: Story, topic: str) -> None:
    group = story.group("fenced")
    old = Producer(story, "fenced").init()
    add_group(story, old, group)
    Producer(story, "fenced").init()
    fields = old.identity(group_id=group, **NOBODY, topics=[row(story, topic)])
    story.request("a fenced producer", **fields)
    record_offsets(story, "of a fenced producer", group, topic)


@of_api("OffsetFetch", "commits")
def offset_fetch(story: Story) -> None:
    """OffsetFetch, also while transactional offsets are pending."""
    groups.offset_fetch(story)
    topic, group, other = story.create_topic("pending", 3), story.group("pending"), story.group("pending.other")
    producer = Producer(story, "p").init()
    commit(story, group, topic, 3)
    for name in (group, other):
        rows = [row(story, topic, 5), row(story, topic, 6, 1)]
        fields = producer.identity(group_id=name, **NOBODY)
        story.call("TxnOffsetCommit", **fields, topics=rows)

    def request(step: str, *groups: str, everything: bool = False, stable: bool = True) -> None:
        topics = [{"name": topic, "topic_id": story.topic_id(topic), "partition_indexes": [0, 1, 2]}]
        fields = [{"group_id": name, "topics": None if everything else topics} for name in groups]
        options = {"require_stable": True} if stable and story.version >= 7 else {}
        story.request(f"pending: {step}", groups=fields, **fields[0], **options)

    request("stable", group)
    request("not stable", group, stable=False)
    if story.version >= 2:
        request("all", group, everything=True)
        request("all of a group that has nothing else", other, everything=True)
        request("all, not stable", group, everything=True, stable=False)
    if story.version >= 8:
        request("two groups", group, other)
    producer.end()
    request("committed", group)
