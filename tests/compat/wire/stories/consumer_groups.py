"""Groups of the consumer protocol (KIP-848): ConsumerGroupHeartbeat, ConsumerGroupDescribe."""

from typing import Any
from uuid import UUID

from tests.compat.wire.story import Response, Story, of_api

GROUP_RESOURCE = 32
CLIENT_MEMBER_ID_VERSION = 1
JOIN = {"member_epoch": 0, "rebalance_timeout": 30_000, "topic_partitions": []}


class ConsumerMember:
    """A member of a group; its requests are not recorded and have the highest version."""

    def __init__(self, story: Story, group: str, member_id: str) -> None:
        self.story, self.group, self.id, self.epoch = story, group, member_id, 0

    def heartbeat(self, **more: Any) -> Response:
        fields = {"group_id": self.group, "member_id": self.id, "member_epoch": self.epoch, **more}
        response = self.story.call("ConsumerGroupHeartbeat", **fields)
        self.epoch = response["member_epoch"]
        return response

    def join(self, *topics: str) -> "ConsumerMember":
        self.heartbeat(**JOIN, subscribed_topic_names=list(topics))
        return self

    def reconcile(self, **owned: Any) -> "ConsumerMember":
        self.heartbeat(**owned)
        return self


def assign_at_once(story: Story, group: str) -> None:
    """Let each change of a group have its assignment at once."""
    config = {"name": "consumer.assignment.interval.ms", "config_operation": 0, "value": "0"}
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": [config]}
    story.call("IncrementalAlterConfigs", resources=[resource])


def owned(topic_id: UUID, *partitions: int) -> list[dict[str, Any]]:
    return [{"topic_id": topic_id, "partitions": list(partitions)}]


@of_api("ConsumerGroupHeartbeat", "consumer groups")
def consumer_group_heartbeat(story: Story) -> None:
    topic, group = story.create_topic("t", 4), story.group("g")
    topic_id = story.topic_id(topic)
    assign_at_once(story, group)

    def request(step: str, **more: Any) -> Response:
        return story.request(step, **{"group_id": group, "member_id": "member-a", "member_epoch": 0, **more})

    join = JOIN | {"subscribed_topic_names": [topic]}
    request("an unknown group", member_epoch=1)
    request("an empty group id", **join, group_id="")
    request("no rebalance timeout", **{**join, "rebalance_timeout": -1})
    request("partitions when joining", **{**join, "topic_partitions": owned(topic_id, 0)})
    request("no subscription", **JOIN)
    request("an unknown assignor", **join, server_assignor="sticky")
    request("a static member without its instance", **{**join, "member_epoch": -2})
    if story.version >= CLIENT_MEMBER_ID_VERSION:
        request("no member id", **join, member_id="")
    else:
        response = request("the broker chooses a member id", **join, member_id="")
        request("it leaves", member_id=response["member_id"], member_epoch=-1)
        story.call("DeleteGroups", groups_names=[group])
    epoch = request("join", **join)["member_epoch"]
    request("stay", member_epoch=epoch)
    request("a full request", **{**join, "member_epoch": epoch, "topic_partitions": owned(topic_id, 0, 1, 2, 3)})
    request("a later epoch", member_epoch=epoch + 1)
    request("an unknown member", member_id="member-c", member_epoch=epoch)
    other = ConsumerMember(story, group, "member-b").join(topic)
    request("partitions to revoke", member_epoch=epoch, topic_partitions=owned(topic_id, 0, 1, 2, 3))
    request("revoked", member_epoch=epoch, topic_partitions=owned(topic_id, 0, 1))
    request("an epoch that was before, without the partitions", member_epoch=epoch)
    request("an epoch that was before", member_epoch=epoch, topic_partitions=owned(topic_id, 0, 1))
    other.reconcile()
    request("join again", **join)
    request("a static member", **{**join, "member_id": "member-c"}, instance_id="i", rack_id="r")
    request("its instance is in use", **{**join, "member_id": "member-d"}, instance_id="i")
    request("another subscription", member_epoch=epoch + 2, subscribed_topic_names=[])
    if story.version >= 1:
        request("a regular expression", **{**JOIN, "member_id": "member-e"}, subscribed_topic_regex=f"{topic}.*")
    for member_id in ("member-a", "member-b", "member-e"):
        story.try_call("ConsumerGroupHeartbeat", group_id=group, member_id=member_id, member_epoch=-1)
    request("a static member leaves for a moment", member_id="member-c", instance_id="i", member_epoch=-2)
    request("a static member leaves", member_id="member-c", instance_id="i", member_epoch=-1)
    request("nobody leaves", member_epoch=-1)
    story.call("DeleteGroups", groups_names=[group])


@of_api("ConsumerGroupDescribe", "group admin")
def consumer_group_describe(story: Story) -> None:
    topic, group = story.create_topic("t", 4), story.group("g")
    topic_id = story.topic_id(topic)
    assign_at_once(story, group)

    def request(step: str, *groups: str, **more: Any) -> None:
        story.request(step, group_ids=list(groups), **more)

    first = ConsumerMember(story, group, "member-a").join(topic)
    request("one member", group)
    second = ConsumerMember(story, group, "member-b").join(topic)
    request("a member without partitions", group)
    first.heartbeat(topic_partitions=owned(topic_id, 0, 1, 2, 3))
    request("partitions to revoke", group)
    first.heartbeat(topic_partitions=owned(topic_id, 0, 1))
    second.reconcile()
    request("stable", group, include_authorized_operations=True)
    second.heartbeat(member_epoch=-1)
    request("a member has left", group)
    first.heartbeat(member_epoch=-1)
    request("empty", group)
    request("unknown", story.name("unknown"), include_authorized_operations=True)
    request("an empty id", "")
    request("two", group, story.name("unknown"))
    request("the same twice", group, group)
    request("none")
    story.call("DeleteGroups", groups_names=[group])
