"""Members of classic groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""

from tests.compat.wire.story import Response, Story, of_api

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
    """A member of a group; its requests are not recorded and have the highest versions."""

    def __init__(self, story: Story, group: str, instance: str | None = None) -> None:
        self.story, self.group, self.instance = story, group, instance
        self.id, self.generation = "", -1

    def request_member_id(self) -> "Member":
        """Request a member id (KIP-394); a static member gets one when it joins."""
        response = self.story.try_call("JoinGroup", **JOIN, group_id=self.group)
        assert response["error_code"] == "MEMBER_ID_REQUIRED", response
        self.id = response["member_id"]
        self.story.assign_placeholder("member_id", self.id)
        return self

    def join(self) -> "Member":
        if self.instance is None and not self.id:
            self.request_member_id()
        return self.set_from_response(self.story.call("JoinGroup", **self.join_fields()))

    def join_fields(self, **more: object) -> dict[str, object]:
        """Return the fields of its JoinGroup request."""
        fields = {**JOIN, "group_id": self.group, "member_id": self.id, **more}
        return fields | ({"group_instance_id": self.instance} if self.instance else {})

    def set_from_response(self, response: Response) -> "Member":
        self.id, self.generation = response["member_id"], response["generation_id"]
        self.story.assign_placeholder("member_id", self.id)
        return self

    def identity(self, **more: object) -> dict[str, object]:
        """Return the fields of the other requests that identify the member."""
        fields = {"group_id": self.group, "generation_id": self.generation, "member_id": self.id, **more}
        return fields | ({"group_instance_id": self.instance} if self.instance else {})

    def sync(self, assignment: bytes = b"mine") -> "Member":
        rows = [{"member_id": self.id, "assignment": assignment}]
        self.story.call("SyncGroup", **self.identity(), **KIND, assignments=rows)
        return self

    def stable(self) -> "Member":
        return self.join().sync()


def rebalancing(story: Story, member: Member) -> Member:
    """Start the join of another member; returns when the group is rebalancing."""
    other = Member(story, member.group).request_member_id()
    story.start_call("JoinGroup", **other.join_fields())
    story.call_until("Heartbeat", lambda response: response["error_code"] == REBALANCING, **member.identity())
    return other


@of_api("JoinGroup", "consumer groups")
def join_group(story: Story) -> None:
    group = story.group("g")

    def request(step: str, **more: object) -> Response:
        return story.request(step, **{**JOIN, "group_id": group, **more})

    request("an empty group id", group_id="")
    request("session too short", session_timeout=10)
    request("session too long", session_timeout=10_000_000)
    request("no protocols", protocols=[])
    request("no protocol type", protocol_type="")
    unknown_member = {"member_id": "nobody", "group_id": story.name("unknown")}
    request("unknown member of an unknown group", **unknown_member)
    request("unknown member of an unknown group, no protocol type", **unknown_member, protocol_type="")
    request("unknown member of an unknown group, no protocols", **unknown_member, protocols=[])
    first = request("a new member")
    if first["error_code"] == "MEMBER_ID_REQUIRED":
        first = request("a new member with its id", member_id=first["member_id"])
    member = Member(story, group).set_from_response(first)
    request("unknown member of a group", member_id="nobody")
    request("unknown member of a group, no protocol type", member_id="nobody", protocol_type="")
    request("unknown member of a group, no protocols", member_id="nobody", protocols=[])
    request("other protocols", protocols=[{"name": "other", "metadata": b""}])
    request("another protocol type", protocol_type="connect")
    request("the leader again, before it has synced", member_id=member.id)
    again = Member(story, group)
    again.id = member.id
    again.set_from_response(request("the leader again with another protocol", member_id=member.id, protocols=BOTH))
    again.sync()
    request("the leader again, stable", member_id=member.id, protocols=BOTH)
    two_members(story)
    if story.version >= 5:
        static_members(story)


def two_members(story: Story) -> None:
    """Only the leader gets the list of members."""
    leader = Member(story, story.group("two")).stable()
    other = Member(story, leader.group).request_member_id()
    waiting = story.start_request("the other of two", **other.join_fields())
    story.call_until("Heartbeat", lambda response: response["error_code"] == REBALANCING, **leader.identity())
    story.request("the leader of two", **leader.join_fields())
    waiting()


def static_members(story: Story) -> None:
    group = story.group("static")

    def request(step: str, **more: object) -> Response:
        return story.request(step, **{**JOIN, "group_id": group, "group_instance_id": "one", **more})

    first = request("static member")
    Member(story, group, "one").set_from_response(first).sync()
    second = request("static member, started anew")
    request("static member with its old id", member_id=first["member_id"])
    request("static member with its id", member_id=second["member_id"])
    request("static member, unknown id", member_id="nobody")
    request("unknown instance with an id", member_id=second["member_id"], group_instance_id="two")
    request("static member, other protocols", protocols=[{"name": "other", "metadata": b""}])


@of_api("SyncGroup", "consumer groups")
def sync_group(story: Story) -> None:
    member = Member(story, story.group("g")).join()
    own_assignment = {"assignments": [{"member_id": member.id, "assignment": b"mine"}]}

    def request(step: str, **more: object) -> None:
        story.request(step, **{**member.identity(), **KIND, "assignments": [], **more})

    request("an empty group id", group_id="")
    request("unknown group", group_id=story.name("unknown"))
    request("unknown member", member_id="nobody")
    request("no member", member_id="")
    request("old generation", generation_id=0)
    request("later generation", generation_id=2)
    if story.version >= 5:
        request("another protocol type", protocol_type="connect")
        request("another protocol", protocol_name="roundrobin")
        request("neither type nor name", protocol_type=None, protocol_name=None, **own_assignment)
    request("the leader", **own_assignment)
    request("once more")
    request("once more, another assignment", assignments=[{"member_id": member.id, "assignment": b"other"}])
    rebalancing(story, member)
    request("while the group rebalances")
    if story.version >= 3:
        static = Member(story, story.group("static"), "one").join()
        member = static
        request("static member", group_instance_id="one", assignments=[{"member_id": static.id, "assignment": b"s"}])
        request("static member, another id", group_instance_id="one", member_id="nobody")
        request("unknown instance", group_instance_id="two")


@of_api("Heartbeat", "consumer groups")
def heartbeat(story: Story) -> None:
    member = Member(story, story.group("g")).join()

    def request(step: str, **more: object) -> None:
        story.request(step, **{**member.identity(), **more})

    request("before the assignment")
    member.sync()
    request("a member")
    request("an empty group id", group_id="")
    request("unknown group", group_id=story.name("unknown"))
    request("unknown member", member_id="nobody")
    request("no member", member_id="")
    request("old generation", generation_id=0)
    request("later generation", generation_id=2)
    request("no generation", generation_id=-1)
    rebalancing(story, member)
    request("while the group rebalances")
    request("old generation while the group rebalances", generation_id=0)
    if story.version >= 3:
        member = Member(story, story.group("static"), "one").stable()
        request("static member")
        request("static member, another id", member_id="nobody")
        request("unknown instance", group_instance_id="two")


@of_api("LeaveGroup", "consumer groups")
def leave_group(story: Story) -> None:
    def request(step: str, group: str, *members: tuple[str, str | None]) -> None:
        rows = [{"member_id": member, "group_instance_id": instance} for member, instance in members]
        story.request(step, group_id=group, member_id=members[0][0] if members else "", members=rows)

    member = Member(story, story.group("g")).stable()
    request("an empty group id", "", (member.id, None))
    request("unknown group", story.name("unknown"), ("nobody", None))
    request("unknown member", member.group, ("nobody", None))
    request("no member", member.group, ("", None))
    request("a member", member.group, (member.id, None))
    request("it has left", member.group, (member.id, None))
    if story.version >= 3:
        static = Member(story, story.group("static"), "one").stable()
        request("nobody", static.group)
        request("another id of an instance", static.group, ("nobody", "one"))
        request("unknown instance", static.group, ("", "two"))
        request("an instance without its id, and nobody", static.group, ("", "one"), ("nobody", None))
        again = Member(story, static.group, "one").stable()
        request("an instance with its id", static.group, (again.id, "one"))
        last = Member(story, static.group, "one").stable()
        request("an instance by its member id", static.group, (last.id, None))
