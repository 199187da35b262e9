"""Offsets that are committed by transactions (KIP-447): who may, when they are visible, who waits for them."""

from tests.compat.wire.play import Play
from tests.compat.wire.stories import groups
from tests.compat.wire.stories.groups import commit
from tests.compat.wire.stories.membership import Member, rebalancing
from tests.compat.wire.stories.transactions import NEVER_GIVEN_OUT, Producer

ADDS_ITSELF = 5  # the version of TxnOffsetCommit that adds the group's partition to the transaction (KIP-890)
KNOWS_MEMBERS = 3


def row(topic: str, offset: int = 5, partition: int = 0, metadata: str | None = "m") -> dict[str, object]:
    one = {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata}
    return {"name": topic, "partitions": [{**one, "committed_leader_epoch": -1}]}


def add_group(play: Play, producer: Producer, group: str) -> None:
    play.do("AddOffsetsToTxn", **producer.who(group_id=group))


def commits(play: Play) -> None:
    """TxnOffsetCommit."""
    topic, group = play.topic("t", 2), play.group("g")
    v2 = play.version >= ADDS_ITSELF
    producer = Producer(play, "p", v2).init()

    def ask(step: str, *rows: dict[str, object], **more: object) -> None:
        asked = {**producer.who(group_id=group, generation_id=-1, member_id=""), **more}
        play.ask(step, **asked, topics=list(rows) if rows else [row(topic)])

    ask("the group's partition is not in the transaction")
    producer.note("was it added?")
    add_group(play, producer, group)
    ask("offsets", row(topic, 5), row(topic, 6, 1, None))
    seen(play, "pending", group, topic)
    ask("unknown topic and another one", row(play.name("unknown")), row(topic, 7))
    ask("unknown partition", row(topic, 5, 9))
    ask("too much metadata", row(topic, metadata="m" * 4097))
    ask("a negative offset", row(topic, -3, 1))
    play.ask("no topics", **producer.who(group_id=group, generation_id=-1, member_id=""), topics=[])
    ask("an empty group id", group_id="")
    strangers = {
        "an unknown transactional id": {"transactional_id": play.name("unknown")},
        "an empty transactional id": {"transactional_id": ""},
        "another producer id": {"producer_id": NEVER_GIVEN_OUT},
        "a negative producer id": {"producer_id": -1},
        "a later epoch": {"producer_epoch": producer.epoch + 1},
        "an earlier epoch": {"producer_epoch": producer.epoch - 1},
    }
    for title, who in strangers.items():
        ask(title, **who)
    was = producer.epoch
    producer.end()
    seen(play, "committed", group, topic)
    ask("after the end", producer_epoch=was)
    add_group(play, producer, group)
    ask("offsets that are aborted", row(topic, 99))
    seen(play, "pending again", group, topic)
    commit(play, group, topic, 8)
    seen(play, "pending, and committed otherwise", group, topic)
    producer.end(False)
    seen(play, "aborted", group, topic)
    order(play, topic)
    if play.version >= KNOWS_MEMBERS:
        members(play, topic)
    fenced(play, topic)


def seen(play: Play, step: str, group: str, topic: str) -> None:
    """What others find, those that wait for stable offsets and those that do not."""
    wanted = [{"name": topic, "topic_id": play.id(topic), "partition_indexes": [0, 1]}]
    for stable in (True, False):
        title = f"{step}{', stable' if stable else ''}"
        asked = {"require_stable": stable}
        play.note(title, **play.try_("OffsetFetch", groups=[{"group_id": group, "topics": wanted}], **asked))
    everything = [{"group_id": group, "topics": None}]
    play.note(f"{step}, all", **play.try_("OffsetFetch", groups=everything, require_stable=True))


def order(play: Play, topic: str) -> None:
    """The offset that was written last is the group's, whoever ended first."""
    group = play.group("order")
    first, second = Producer(play, "first").init(), Producer(play, "second").init()
    for producer, offset in ((first, 10), (second, 20)):
        add_group(play, producer, group)
        asked = producer.who(group_id=group, generation_id=-1, member_id="", topics=[row(topic, offset)])
        play.ask(f"{offset} of two transactions", **asked)
    second.end()
    seen(play, "the second is committed", group, topic)
    first.end()
    seen(play, "both are committed", group, topic)
    add_group(play, first, group)
    play.do("TxnOffsetCommit", **first.who(group_id=group, generation_id=-1, member_id="", topics=[row(topic, 30)]))
    commit(play, group, topic, 40)
    first.end()
    seen(play, "an ordinary commit came later", group, topic)
    add_group(play, first, group)
    play.do("TxnOffsetCommit", **first.who(group_id=group, generation_id=-1, member_id="", topics=[row(topic, 50)]))
    partitions = [{"partition_index": 0}]
    play.do("OffsetDelete", group_id=group, topics=[{"name": topic, "partitions": partitions}])
    seen(play, "deleted while it was pending", group, topic)
    first.end()
    seen(play, "committed after it was deleted", group, topic)
    add_group(play, first, group)
    play.do("TxnOffsetCommit", **first.who(group_id=group, generation_id=-1, member_id="", topics=[row(topic, 60)]))
    play.note("the group, while an offset is pending", **play.try_("DescribeGroups", groups=[group]))
    play.note("it is deleted", **play.try_("DeleteGroups", groups_names=[group]))
    seen(play, "the group was deleted while it was pending", group, topic)
    first.end()
    seen(play, "committed after the group was deleted", group, topic)


def members(play: Play, topic: str) -> None:
    """Who names the group's generation must be a member of it."""
    member = Member(play, play.group("full")).join()
    producer = Producer(play, "member").init()
    add_group(play, producer, member.group)
    mine = {"group_id": member.group, "member_id": member.id, "generation_id": member.generation}

    def ask(step: str, **more: object) -> None:
        play.ask(f"member: {step}", **producer.who(), **{**mine, **more}, topics=[row(topic)])

    ask("before the assignment")
    member.sync()
    ask("stable")
    ask("an old generation", generation_id=member.generation - 1)
    ask("a later generation", generation_id=member.generation + 1)
    ask("an unknown member", member_id="nobody")
    ask("nobody", member_id="", generation_id=-1)
    ask("a generation and nobody", member_id="")
    ask("a member without a generation", generation_id=-1)
    ask("an unknown instance", group_instance_id="two")
    add_group(play, producer, play.group("unknown"))
    ask("an unknown group", group_id=play.name("unknown"))
    static = Member(play, play.group("static"), "one").stable()
    mine = {"group_id": static.group, "member_id": static.id, "generation_id": static.generation}
    add_group(play, producer, static.group)
    ask("static", group_instance_id="one")
    ask("static without its instance")
    ask("static with another instance", group_instance_id="two")
    ask("an instance and another member", member_id="nobody", group_instance_id="one")
    mine = {"group_id": member.group, "member_id": member.id, "generation_id": member.generation}
    rebalancing(play, member)
    ask("while the group rebalances")
    producer.end()
    seen(play, "member: committed", member.group, topic)


def fenced(play: Play, topic: str) -> None:
    group = play.group("fenced")
    old = Producer(play, "fenced").init()
    add_group(play, old, group)
    Producer(play, "fenced").init()
    asked = old.who(group_id=group, generation_id=-1, member_id="", topics=[row(topic)])
    play.ask("a fenced producer", **asked)
    seen(play, "of a fenced producer", group, topic)


def offset_fetch(play: Play) -> None:
    """OffsetFetch, also while transactional offsets are pending."""
    groups.offset_fetch(play)
    topic, group, other = play.topic("pending", 3), play.group("pending"), play.group("pending.other")
    producer = Producer(play, "p").init()
    commit(play, group, topic, 3)
    for name in (group, other):
        rows = [row(topic, 5), row(topic, 6, 1)]
        asked = producer.who(group_id=name, generation_id=-1, member_id="")
        play.do("TxnOffsetCommit", **asked, topics=rows)

    def ask(step: str, *groups: str, everything: bool = False, stable: bool = True) -> None:
        named = [{"name": topic, "topic_id": play.id(topic), "partition_indexes": [0, 1, 2]}]
        asked = [{"group_id": name, "topics": None if everything else named} for name in groups]
        more = {"require_stable": True} if stable and play.version >= 7 else {}
        play.ask(f"pending: {step}", groups=asked, **asked[0], **more)

    ask("stable", group)
    ask("not stable", group, stable=False)
    if play.version >= 2:
        ask("all", group, everything=True)
        ask("all of a group that has nothing else", other, everything=True)
        ask("all, not stable", group, everything=True, stable=False)
    if play.version >= 8:
        ask("two groups", group, other)
    producer.end()
    ask("committed", group)
