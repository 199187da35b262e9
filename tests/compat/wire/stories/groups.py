"""Groups as a whole: found, described, listed, deleted; and their offsets."""

from uuid import UUID

from tests.compat.wire.play import Answer, Play
from tests.compat.wire.stories.membership import Member, rebalancing

UNKNOWN_ID = UUID(int=1)


def find_coordinator(play: Play) -> None:
    group = play.group("g")
    kinds = {"group": 0, "transaction": 1, "share": 2, "no such kind": 3, "negative": -1}
    for title, kind in kinds.items():
        if kind == 0 or play.version >= 1:
            play.ask_until(title, settled, key=group, coordinator_keys=[group], key_type=kind)
    play.ask("an empty key", key="", coordinator_keys=[""], key_type=0)
    if play.version >= 1:
        play.ask_until("an empty transactional id", settled, key="", coordinator_keys=[""], key_type=1)
    if play.version >= 4:
        play.ask("two keys", coordinator_keys=[group, play.name("h")], key_type=0)
        play.ask("no key", coordinator_keys=[], key_type=0)


def settled(answer: Answer) -> bool:
    """Not while Kafka still makes the internal topic."""
    return "COORDINATOR_NOT_AVAILABLE" not in str(answer)


def describe_groups(play: Play) -> None:
    def ask(step: str, *groups: str, **more: object) -> None:
        play.ask(step, groups=list(groups), **more)

    stable = Member(play, play.group("stable")).stable()
    joined = Member(play, play.group("joined")).join()
    static = Member(play, play.group("static"), "one").stable()
    empty = play.group("empty")
    commit(play, empty, play.topic("t"), 1)
    ask("stable", stable.group)
    ask("joined, without its assignment yet", joined.group)
    ask("a static member", static.group)
    ask("only offsets", empty)
    ask("unknown", play.name("unknown"))
    ask("an empty id", "")
    ask("two", stable.group, empty)
    ask("the same twice", empty, empty)
    ask("none")
    ask("with operations", empty, include_authorized_operations=True)
    waiting = rebalancing(play, stable)
    play.learn("member_id", waiting.id)
    ask("rebalancing", stable.group)


def list_groups(play: Play) -> None:
    Member(play, play.group("stable")).stable()
    commit(play, play.group("empty"), play.topic("t"), 1)
    play.ask_own("all")
    for title, states in {
        "stable": ["Stable"],
        "empty": ["Empty"],
        "two states": ["Empty", "Stable"],
        "lower case": ["stable"],
        "no such state": ["Happy"],
        "dead": ["Dead"],
    }.items():
        if play.version >= 4:
            play.ask_own(title, states_filter=states)
    for title, kinds in {
        "classic": ["classic"],
        "capital": ["Classic"],
        "consumer": ["consumer"],
        "no such type": ["kind"],
    }.items():
        if play.version >= 5:
            play.ask_own(title, types_filter=kinds)
            play.ask_own(f"{title}, stable", types_filter=kinds, states_filter=["Stable"])


def delete_groups(play: Play) -> None:
    def ask(step: str, *groups: str) -> None:
        play.ask(step, groups_names=list(groups))

    topic = play.topic("t")
    for name in ("a", "b"):
        commit(play, play.group(name), topic, 1)
    member = Member(play, play.group("full")).stable()
    ask("one", play.name("a"))
    ask("it is gone", play.name("a"))
    ask("unknown", play.name("unknown"))
    ask("an empty id", "")
    ask("with a member", member.group)
    ask("two, one with a member", play.name("b"), member.group)
    ask("none")
    play.do("LeaveGroup", group_id=member.group, members=[{"member_id": member.id}])
    ask("the member has left", member.group)


def commit(play: Play, group: str, topic: str, offset: int) -> None:
    """An offset for partition 0, without a member."""
    rows = [{"partition_index": 0, "committed_offset": offset, "committed_metadata": "m"}]
    named = {"name": topic, "topic_id": play.id(topic), "partitions": rows}
    play.do("OffsetCommit", group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=[named])


def offset_commit(play: Play) -> None:
    topic, group = play.topic("t", 2), play.group("g")
    play.group("h")

    def ask(step: str, partition: int = 0, name: str = topic, metadata: str | None = "", **more: object) -> None:
        row = {"partition_index": partition, "committed_offset": 5, "committed_metadata": metadata}
        row |= {"committed_leader_epoch": -1}
        named = {"name": name, "topic_id": play.id(name) if play.has(name) else UNKNOWN_ID, "partitions": [row]}
        who = {"group_id": group, "member_id": "", **generation(-1)}
        play.ask(step, **{**who, "retention_time": -1, "topics": [named], **more})

    ask("without a member")
    ask("metadata", metadata="m")
    ask("null metadata", metadata=None)
    ask("too much metadata", metadata="m" * 4097)
    ask("unknown partition", 7)
    ask("negative partition", -1)
    ask("unknown topic", name=play.name("unknown"))
    ask("an empty group id", group_id="")
    ask("a member of an empty group", member_id="nobody")
    ask("a generation of an empty group", **generation(1))
    ask("a generation of an unknown group", group_id=play.name("h"), **generation(1))
    ask("no topics", topics=[])
    member = Member(play, play.group("full")).join()
    mine = {"group_id": member.group, "member_id": member.id, **generation(member.generation)}
    ask("before the assignment", **mine)
    member.sync()
    ask("a member", **mine)
    ask("an old generation", **{**mine, **generation(member.generation - 1)})
    ask("a later generation", **{**mine, **generation(member.generation + 1)})
    ask("an unknown member", **{**mine, "member_id": "nobody"})
    ask("nobody, while there is a member", group_id=member.group)
    if play.version >= 7:
        ask("an unknown instance", **mine, group_instance_id="two")
    rebalancing(play, member)
    ask("while the group rebalances", **mine)
    play.try_("DeleteGroups", groups_names=[""])
    stored(play, "what was stored", group, topic)
    stored(play, "what was stored by the member", member.group, topic)


def generation(number: int) -> dict[str, object]:
    return {"generation_id_or_member_epoch": number}


def stored(play: Play, step: str, group: str, topic: str) -> None:
    rows = [{"name": topic, "topic_id": play.id(topic), "partition_indexes": [0, 1, 7]}]
    play.note(step, **play.do("OffsetFetch", groups=[{"group_id": group, "topics": rows}]))


def offset_fetch(play: Play) -> None:
    topic, other = play.topic("t", 2), play.topic("u")
    group, second = play.group("g"), play.group("h")
    commit(play, group, topic, 5)
    commit(play, second, other, 6)

    def ask(step: str, groups: dict[str, object], **more: object) -> None:
        """`groups`: {group: [(topic, partition, ...), ...] or None for all}."""
        asked = [
            {"group_id": name, "topics": None if wanted is None else [_wanted(play, *row) for row in wanted]}
            for name, wanted in groups.items()
        ]
        play.ask(step, groups=asked, **(asked[0] if asked else {"group_id": ""}), **more)

    ask("a partition", {group: [(topic, 0)]})
    ask("one that has no offset", {group: [(topic, 1)]})
    ask("unknown partition", {group: [(topic, 7)]})
    ask("unknown topic", {group: [(play.name("unknown"), 0)]})
    ask("unknown group", {play.name("unknown"): [(topic, 0)]})
    ask("an empty group id", {"": [(topic, 0)]})
    ask("no topics", {group: []})
    ask("the same topic twice", {group: [(topic, 0), (topic, 1)]})
    if play.version >= 2:
        ask("all", {group: None})
        ask("all of an unknown group", {play.name("unknown"): None})
    if play.version >= 7:
        ask("stable", {group: [(topic, 0)]}, require_stable=True)
    if play.version >= 8:
        ask("two groups", {group: [(topic, 0)], second: None})
        ask("no groups", {})
    if play.version >= 9:
        member = [{"group_id": group, "member_id": "nobody", "member_epoch": 0, "topics": [_wanted(play, topic, 0)]}]
        play.ask("as a member", groups=member)


def _wanted(play: Play, topic: str, *partitions: int) -> dict[str, object]:
    topic_id = play.id(topic) if play.has(topic) else UNKNOWN_ID
    return {"name": topic, "topic_id": topic_id, "partition_indexes": list(partitions)}


def offset_delete(play: Play) -> None:
    topic, other = play.topic("t", 2), play.topic("u")
    group = play.group("g")
    commit(play, group, topic, 5)

    def ask(step: str, partition: int = 0, name: str = topic, group: str = group) -> None:
        row = {"name": name, "partitions": [{"partition_index": partition}]}
        play.ask(step, group_id=group, topics=[row])

    ask("a partition")
    ask("it is gone")
    ask("unknown partition", 7)
    ask("unknown topic", name=play.name("unknown"))
    ask("unknown group", group=play.name("unknown"))
    ask("an empty group id", group="")
    play.ask("no topics", group_id=group, topics=[])
    subscribed = b"\0\0" + b"\0\0\0\1" + len(topic).to_bytes(2, "big") + topic.encode() + b"\xff\xff\xff\xff"
    member = Member(play, play.group("full"))
    member.named().joined(play.do("JoinGroup", **member.joining(protocols=[{"name": "range", "metadata": subscribed}])))
    member.sync()
    ask("a topic that a member is subscribed to", group=member.group)
    ask("a topic that no member is subscribed to", name=other, group=member.group)
