"""Members of classic groups: join, sync, heartbeat, leave."""

from tests.compat.wire.play import Answer, Play

RANGE = [{"name": "range", "metadata": b"r"}]
BOTH = [{"name": "range", "metadata": b"r"}, {"name": "roundrobin", "metadata": b"rr"}]
JOIN = {
    "session_timeout": 30_000,
    "rebalance_timeout": 30_000,
    "member_id": "",
    "protocol_type": "consumer",
    "protocols": RANGE,
}
KIND = {"protocol_type": "consumer", "protocol_name": "range"}
REBALANCING = "REBALANCE_IN_PROGRESS"


class Member:
    """A member of a group that the story prepares, in the highest versions."""

    def __init__(self, play: Play, group: str, instance: str | None = None) -> None:
        self.play, self.group, self.instance = play, group, instance
        self.id, self.generation = "", -1

    def named(self) -> "Member":
        """Asks for a member id (KIP-394); a static member gets one when it joins."""
        answer = self.play.try_("JoinGroup", **JOIN, group_id=self.group)
        assert answer["error_code"] == "MEMBER_ID_REQUIRED", answer
        self.id = answer["member_id"]
        self.play.learn("member_id", self.id)
        return self

    def join(self) -> "Member":
        if self.instance is None and not self.id:
            self.named()
        return self.joined(self.play.do("JoinGroup", **self.joining()))

    def joining(self, **more: object) -> dict[str, object]:
        """The fields of its JoinGroup."""
        asked = {**JOIN, "group_id": self.group, "member_id": self.id, **more}
        return asked | ({"group_instance_id": self.instance} if self.instance else {})

    def joined(self, answer: Answer) -> "Member":
        self.id, self.generation = answer["member_id"], answer["generation_id"]
        self.play.learn("member_id", self.id)
        return self

    def who(self, **more: object) -> dict[str, object]:
        """The fields by which the other requests name it."""
        asked = {"group_id": self.group, "generation_id": self.generation, "member_id": self.id, **more}
        return asked | ({"group_instance_id": self.instance} if self.instance else {})

    def sync(self, assignment: bytes = b"mine") -> "Member":
        rows = [{"member_id": self.id, "assignment": assignment}]
        self.play.do("SyncGroup", **self.who(), **KIND, assignments=rows)
        return self

    def stable(self) -> "Member":
        return self.join().sync()


def rebalancing(play: Play, member: Member) -> Member:
    """Another member that waits to be let in; returns when the group has noticed."""
    other = Member(play, member.group).named()
    play.begin_do("JoinGroup", **other.joining())
    play.until("Heartbeat", lambda answer: answer["error_code"] == REBALANCING, **member.who())
    return other


def join_group(play: Play) -> None:
    group = play.group("g")

    def ask(step: str, **more: object) -> Answer:
        return play.ask(step, **{**JOIN, "group_id": group, **more})

    ask("an empty group id", group_id="")
    ask("session too short", session_timeout=10)
    ask("session too long", session_timeout=10_000_000)
    ask("no protocols", protocols=[])
    ask("no protocol type", protocol_type="")
    nobody = {"member_id": "nobody", "group_id": play.name("unknown")}
    ask("unknown member of an unknown group", **nobody)
    ask("unknown member of an unknown group, no protocol type", **nobody, protocol_type="")
    ask("unknown member of an unknown group, no protocols", **nobody, protocols=[])
    first = ask("a new member")
    if first["error_code"] == "MEMBER_ID_REQUIRED":
        first = ask("a new member with its id", member_id=first["member_id"])
    member = Member(play, group).joined(first)
    ask("unknown member of a group", member_id="nobody")
    ask("unknown member of a group, no protocol type", member_id="nobody", protocol_type="")
    ask("unknown member of a group, no protocols", member_id="nobody", protocols=[])
    ask("other protocols", protocols=[{"name": "other", "metadata": b""}])
    ask("another protocol type", protocol_type="connect")
    ask("the leader again, before it has synced", member_id=member.id)
    again = Member(play, group)
    again.id = member.id
    again.joined(ask("the leader again with another protocol", member_id=member.id, protocols=BOTH))
    again.sync()
    ask("the leader again, stable", member_id=member.id, protocols=BOTH)
    two_members(play)
    if play.version >= 5:
        static_members(play)


def two_members(play: Play) -> None:
    """The leader learns of both, the other one only of itself."""
    leader = Member(play, play.group("two")).stable()
    other = Member(play, leader.group).named()
    waiting = play.begin("the other of two", **other.joining())
    play.until("Heartbeat", lambda answer: answer["error_code"] == REBALANCING, **leader.who())
    play.ask("the leader of two", **leader.joining())
    waiting()


def static_members(play: Play) -> None:
    group = play.group("static")

    def ask(step: str, **more: object) -> Answer:
        return play.ask(step, **{**JOIN, "group_id": group, "group_instance_id": "one", **more})

    first = ask("static member")
    Member(play, group, "one").joined(first).sync()
    second = ask("static member, started anew")
    ask("static member with its old id", member_id=first["member_id"])
    ask("static member with its id", member_id=second["member_id"])
    ask("static member, unknown id", member_id="nobody")
    ask("unknown instance with an id", member_id=second["member_id"], group_instance_id="two")
    ask("static member, other protocols", protocols=[{"name": "other", "metadata": b""}])


def sync_group(play: Play) -> None:
    member = Member(play, play.group("g")).join()
    mine = {"assignments": [{"member_id": member.id, "assignment": b"mine"}]}

    def ask(step: str, **more: object) -> None:
        play.ask(step, **{**member.who(), **KIND, "assignments": [], **more})

    ask("an empty group id", group_id="")
    ask("unknown group", group_id=play.name("unknown"))
    ask("unknown member", member_id="nobody")
    ask("no member", member_id="")
    ask("old generation", generation_id=0)
    ask("later generation", generation_id=2)
    if play.version >= 5:
        ask("another protocol type", protocol_type="connect")
        ask("another protocol", protocol_name="roundrobin")
        ask("neither type nor name", protocol_type=None, protocol_name=None, **mine)
    ask("the leader", **mine)
    ask("once more")
    ask("once more, another assignment", assignments=[{"member_id": member.id, "assignment": b"other"}])
    rebalancing(play, member)
    ask("while the group rebalances")
    if play.version >= 3:
        static = Member(play, play.group("static"), "one").join()
        member = static
        ask("static member", group_instance_id="one", assignments=[{"member_id": static.id, "assignment": b"s"}])
        ask("static member, another id", group_instance_id="one", member_id="nobody")
        ask("unknown instance", group_instance_id="two")


def heartbeat(play: Play) -> None:
    member = Member(play, play.group("g")).join()

    def ask(step: str, **more: object) -> None:
        play.ask(step, **{**member.who(), **more})

    ask("before the assignment")
    member.sync()
    ask("a member")
    ask("an empty group id", group_id="")
    ask("unknown group", group_id=play.name("unknown"))
    ask("unknown member", member_id="nobody")
    ask("no member", member_id="")
    ask("old generation", generation_id=0)
    ask("later generation", generation_id=2)
    ask("no generation", generation_id=-1)
    rebalancing(play, member)
    ask("while the group rebalances")
    ask("old generation while the group rebalances", generation_id=0)
    if play.version >= 3:
        member = Member(play, play.group("static"), "one").stable()
        ask("static member")
        ask("static member, another id", member_id="nobody")
        ask("unknown instance", group_instance_id="two")


def leave_group(play: Play) -> None:
    def ask(step: str, group: str, *members: tuple[str, str | None]) -> None:
        rows = [{"member_id": member, "group_instance_id": instance} for member, instance in members]
        play.ask(step, group_id=group, member_id=members[0][0] if members else "", members=rows)

    member = Member(play, play.group("g")).stable()
    ask("an empty group id", "", (member.id, None))
    ask("unknown group", play.name("unknown"), ("nobody", None))
    ask("unknown member", member.group, ("nobody", None))
    ask("no member", member.group, ("", None))
    ask("a member", member.group, (member.id, None))
    ask("it has left", member.group, (member.id, None))
    if play.version >= 3:
        static = Member(play, play.group("static"), "one").stable()
        ask("nobody", static.group)
        ask("another id of an instance", static.group, ("nobody", "one"))
        ask("unknown instance", static.group, ("", "two"))
        ask("an instance without its id, and nobody", static.group, ("", "one"), ("nobody", None))
        again = Member(play, static.group, "one").stable()
        ask("an instance with its id", static.group, (again.id, "one"))
        last = Member(play, static.group, "one").stable()
        ask("an instance by its member id", static.group, (last.id, None))
