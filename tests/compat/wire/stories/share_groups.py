"""Share groups (KIP-932): their members, their start offsets, and the states of their partitions."""

from base64 import urlsafe_b64encode
from typing import Any
from uuid import UUID

from tests.compat.wire import batches
from tests.compat.wire.story import Response, Story, error_codes, of_api

GROUP_RESOURCE = 32
SHARE_COORDINATOR = 2
UNKNOWN_ID = UUID(int=1)


def share_group(story: Story, name: str, topic: str) -> str:
    """Return a group for which each change has its assignment at once, when the share coordinator is ready."""
    group = story.group(name)
    config = {"name": "share.assignment.interval.ms", "config_operation": 0, "value": "0"}
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": [config]}
    story.call("IncrementalAlterConfigs", resources=[resource])
    key = f"{group}:{urlsafe_b64encode(story.topic_id(topic).bytes).decode().rstrip('=')}:0"
    story.call_until("FindCoordinator", has_no_errors, key_type=SHARE_COORDINATOR, coordinator_keys=[key])
    story.call_until("ReadShareGroupStateSummary", has_no_errors, **state_of(story, topic, group))
    return group


def has_no_errors(response: Response) -> bool:
    return set(error_codes(response)) == {"NONE"}


def state_of(story: Story, topic: str, group: str, partition: int = 0, **fields: Any) -> dict[str, Any]:
    """Return the fields of a request for the state of one share partition."""
    row = {"partition": partition, **fields}
    return {"group_id": group, "topics": [{"topic_id": story.topic_id(topic), "partitions": [row]}]}


def initialize(story: Story, topic: str, group: str, state_epoch: int = 0, start_offset: int = 0) -> None:
    fields = state_of(story, topic, group, state_epoch=state_epoch, start_offset=start_offset)
    story.call("InitializeShareGroupState", **fields)


class ShareMember:
    """A member of a group; its requests are not recorded."""

    def __init__(self, story: Story, group: str, member_id: str) -> None:
        self.story, self.group, self.id, self.epoch = story, group, member_id, 0

    def heartbeat(self, **more: Any) -> Response:
        fields = {"group_id": self.group, "member_id": self.id, "member_epoch": self.epoch, **more}
        response = self.story.call("ShareGroupHeartbeat", **fields)
        self.epoch = response["member_epoch"]
        return response

    def join(self, *topics: str) -> "ShareMember":
        """Join, and wait until partitions are assigned."""
        self.heartbeat(subscribed_topic_names=list(topics))
        while not (self.heartbeat(subscribed_topic_names=list(topics))["assignment"] or {})["topic_partitions"]:
            pass
        return self

    def leave(self) -> None:
        self.epoch = -1
        self.heartbeat()


@of_api("ShareGroupHeartbeat", "consumer groups")
def share_group_heartbeat(story: Story) -> None:
    topic = story.create_topic("t", 2)
    group = share_group(story, "g", topic)

    def request(step: str, **more: Any) -> Response:
        return story.request(step, **{"group_id": group, "member_id": "member-a", "member_epoch": 0, **more})

    request("an unknown group", member_epoch=1)
    request("leave an unknown group", member_epoch=-1)
    request("no member id", member_id="", subscribed_topic_names=[topic])
    request("no group id", group_id="", subscribed_topic_names=[topic])
    request("an empty rack", rack_id="", subscribed_topic_names=[topic])
    request("no subscription")
    request("an empty subscription", subscribed_topic_names=[])
    request("an invalid epoch", member_epoch=-2)
    epoch = request("join", subscribed_topic_names=[topic], rack_id="r")["member_epoch"]

    def is_assigned(response: Response) -> bool:
        return bool(response["assignment"] and response["assignment"]["topic_partitions"])

    same = {"group_id": group, "member_id": "member-a", "member_epoch": epoch}
    epoch = story.request_until("assigned", is_assigned, **same)["member_epoch"]
    request("stay", member_epoch=epoch)
    request("the epoch before", member_epoch=epoch - 1)
    request("a full request", member_epoch=epoch, subscribed_topic_names=[topic])
    request("a later epoch", member_epoch=epoch + 1)
    request("an epoch before that", member_epoch=1)
    request("an unknown member", member_id="member-c", member_epoch=epoch)
    other = ShareMember(story, group, "member-b")
    other.heartbeat(subscribed_topic_names=[topic])
    # Which partition is Kafka's choice, by the random topic id.
    shared = story.call("ShareGroupHeartbeat", **{**same, "member_epoch": epoch})
    assert [len(row["partitions"]) for row in shared["assignment"]["topic_partitions"]] == [1]
    other.leave()
    request("a partition more", member_epoch=shared["member_epoch"])
    request("join again", subscribed_topic_names=[topic])
    request("another subscription", member_epoch=shared["member_epoch"] + 1, subscribed_topic_names=[])
    request("leave", member_epoch=-1)
    request("nobody leaves", member_epoch=-1)
    story.call("DeleteGroups", groups_names=[group])


@of_api("ShareGroupDescribe", "group admin")
def share_group_describe(story: Story) -> None:
    topic = story.create_topic("t", 2)
    group = share_group(story, "g", topic)
    member = ShareMember(story, group, "member-a").join(topic)
    simple = story.group("simple")
    offsets = {"partition_index": 0, "committed_offset": 1}
    row = {"name": topic, "topic_id": story.topic_id(topic), "partitions": [offsets]}
    story.call("OffsetCommit", group_id=simple, generation_id_or_member_epoch=-1, topics=[row])

    def request(step: str, *groups: str, **more: Any) -> None:
        story.request(step, group_ids=list(groups), **more)

    request("a member", group)
    request("with operations", group, include_authorized_operations=True)
    request("the same twice", group, group)
    request("unknown", story.name("unknown"))
    request("an empty id", "")
    request("another kind", simple)
    request("none")
    member.leave()
    request("no member", group)
    story.call("DeleteGroups", groups_names=[group, simple])


@of_api("DescribeShareGroupOffsets", "group admin")
def describe_share_group_offsets(story: Story) -> None:
    topic = story.create_topic("t", 2)
    group = share_group(story, "g", topic)
    story.produce(topic, batches.values(*map(str, range(10))))

    def request(step: str, *partitions: int, name: str = topic, group: str = group) -> None:
        topics = [{"topic_name": name, "partitions": list(partitions)}]
        story.request(step, groups=[{"group_id": group, "topics": topics}])

    request("an unknown group", 0)
    initialize(story, topic, group, start_offset=-1)
    request("not determined", 0)
    initialize(story, topic, group, start_offset=2, state_epoch=1)
    request("a start offset", 0, 1)
    write = {"state_epoch": 1, "start_offset": 4, "delivery_complete_count": 3}
    story.call("WriteShareGroupState", **state_of(story, topic, group, **write))
    request("records that are completed", 0)
    request("no partitions")
    request("an unknown topic", 0, name=story.name("unknown"))
    story.request("all topics of an unknown group", groups=[{"group_id": story.name("unknown"), "topics": None}])
    story.request("no groups", groups=[])
    member = ShareMember(story, group, "member-a").join(topic)
    story.request("all topics", groups=[{"group_id": group, "topics": None}])
    member.leave()
    story.call("DeleteGroups", groups_names=[group])


@of_api("AlterShareGroupOffsets", "group admin")
def alter_share_group_offsets(story: Story) -> None:
    topic = story.create_topic("t", 2)
    group = share_group(story, "g", topic)

    def request(step: str, *offsets: tuple[int, int], name: str = topic, group: str = group) -> None:
        partitions = [{"partition_index": index, "start_offset": offset} for index, offset in offsets]
        story.request(step, group_id=group, topics=[{"topic_name": name, "partitions": partitions}])

    request("a new group", (0, 3))
    request("two partitions, one unknown", (0, 4), (7, 4))
    request("an unknown topic", (0, 4), name=story.name("unknown"))
    request("no group id", (0, 4), group="")
    story.request("no topics", group_id=group, topics=[])
    member = ShareMember(story, group, "member-a").join(topic)
    request("a group with members", (0, 5))
    member.leave()
    request("an empty group", (0, 6), (1, 0))
    story.call("DeleteGroups", groups_names=[group])


@of_api("DeleteShareGroupOffsets", "group admin")
def delete_share_group_offsets(story: Story) -> None:
    topic = story.create_topic("t", 2)
    group = share_group(story, "g", topic)

    def request(step: str, *topics: str, group: str = group) -> None:
        story.request(step, group_id=group, topics=[{"topic_name": name} for name in topics])

    request("an unknown group", topic)
    member = ShareMember(story, group, "member-a").join(topic)
    request("a group with members", topic)
    member.leave()
    request("no group id", topic, group="")
    request("an unknown topic", story.name("unknown"))
    request("a topic", topic)
    request("again", topic)
    request("no topics")
    story.call("DeleteGroups", groups_names=[group])


@of_api("InitializeShareGroupState", "consumer groups")
def initialize_share_group_state(story: Story) -> None:
    topic = story.create_topic("t", 2)
    group = share_group(story, "g", topic)
    topic_id = story.topic_id(topic)

    def request(step: str, partition: int = 0, topic_id: UUID = topic_id, group: str = group, **fields: Any) -> None:
        row = {"partition": partition, "state_epoch": 2, "start_offset": 5, **fields}
        story.request(step, group_id=group, topics=[{"topic_id": topic_id, "partitions": [row]}])

    request("first")
    request("the same epoch", start_offset=1)
    request("a higher epoch", state_epoch=3, start_offset=-1)
    request("a lower epoch")
    request("a negative epoch", state_epoch=-1)
    request("an unknown partition", partition=2)
    request("a negative partition", partition=-1)
    request("an unknown topic", topic_id=UNKNOWN_ID)
    request("no group id", group="")
    story.request("no topics", group_id=group, topics=[])
    story.request("no partitions", group_id=group, topics=[{"topic_id": topic_id, "partitions": []}])


@of_api("ReadShareGroupState", "consumer groups")
def read_share_group_state(story: Story) -> None:
    topic = story.create_topic("t", 2)
    group = share_group(story, "g", topic)

    def request(step: str, partition: int = 0, group: str = group, **fields: Any) -> None:
        story.request(step, **state_of(story, topic, group, partition, **fields))

    request("not initialized")
    initialize(story, topic, group, state_epoch=1, start_offset=5)
    request("initialized")
    ranges = [
        {"first_offset": 5, "last_offset": 7, "delivery_state": 2, "delivery_count": 1},
        {"first_offset": 8, "last_offset": 8, "delivery_state": 0, "delivery_count": 3},
    ]
    write: dict[str, Any] = {"start_offset": -1, "delivery_complete_count": 3, "state_batches": ranges}
    story.call("WriteShareGroupState", **state_of(story, topic, group, state_epoch=1, **write))
    request("ranges")
    request("a higher leader epoch", leader_epoch=4)
    request("a lower leader epoch", leader_epoch=3)
    request("a negative leader epoch", leader_epoch=-1)
    request("an unknown partition", partition=2)
    request("a negative partition", partition=-1)
    request("no group id", group="")
    story.request("no topics", group_id=group, topics=[])


@of_api("WriteShareGroupState", "consumer groups")
def write_share_group_state(story: Story) -> None:
    topic = story.create_topic("t", 2)
    group = share_group(story, "g", topic)

    def request(step: str, partition: int = 0, group: str = group, **fields: Any) -> None:
        ranges = [{"first_offset": 5, "last_offset": 7, "delivery_state": 2, "delivery_count": 1}]
        row = {"state_epoch": 1, "start_offset": -1, "delivery_complete_count": 3, "state_batches": ranges, **fields}
        story.request(step, **state_of(story, topic, group, partition, **row))

    request("not initialized")
    initialize(story, topic, group, state_epoch=1, start_offset=5)
    request("a range")
    request("a start offset", start_offset=8, state_batches=[])
    request("a lower start offset", start_offset=6)
    story.call("ReadShareGroupState", **state_of(story, topic, group, leader_epoch=4))
    request("a lower leader epoch", leader_epoch=3)
    request("a negative leader epoch", leader_epoch=-1)
    request("a lower state epoch", leader_epoch=4, state_epoch=0)
    request("a negative state epoch", leader_epoch=4, state_epoch=-1)
    request("an unknown partition", partition=2)
    request("a negative partition", partition=-1)
    request("no group id", group="")
    story.request("no topics", group_id=group, topics=[])
    state = story.call("ReadShareGroupState", **state_of(story, topic, group, leader_epoch=4))
    story.record("the state", **state["results"][0]["partitions"][0])


@of_api("DeleteShareGroupState", "consumer groups")
def delete_share_group_state(story: Story) -> None:
    topic = story.create_topic("t", 2)
    group = share_group(story, "g", topic)
    topic_id = story.topic_id(topic)

    def request(step: str, partition: int = 0, topic_id: UUID = topic_id, group: str = group) -> None:
        story.request(step, group_id=group, topics=[{"topic_id": topic_id, "partitions": [{"partition": partition}]}])

    request("not initialized")
    initialize(story, topic, group)
    request("initialized")
    request("an unknown partition", partition=2)
    request("a negative partition", partition=-1)
    request("an unknown topic", topic_id=UNKNOWN_ID)
    request("no group id", group="")
    story.request("no topics", group_id=group, topics=[])


@of_api("ReadShareGroupStateSummary", "consumer groups")
def read_share_group_state_summary(story: Story) -> None:
    topic = story.create_topic("t", 2)
    group = share_group(story, "g", topic)

    def request(step: str, partition: int = 0, group: str = group, **fields: Any) -> None:
        story.request(step, **state_of(story, topic, group, partition, **fields))

    request("not initialized")
    initialize(story, topic, group, state_epoch=1, start_offset=5)
    request("initialized")
    story.call("ReadShareGroupState", **state_of(story, topic, group, leader_epoch=4))
    write = {"leader_epoch": 4, "state_epoch": 1, "start_offset": 6, "delivery_complete_count": 2}
    story.call("WriteShareGroupState", **state_of(story, topic, group, **write))
    request("written")
    request("an unknown partition", partition=2)
    request("a negative partition", partition=-1)
    request("no group id", group="")
    story.request("no topics", group_id=group, topics=[])
