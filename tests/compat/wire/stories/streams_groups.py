"""Streams groups (KIP-1071): their members, topologies and tasks."""

from typing import Any

from tests.compat.wire.story import Response, Story, of_api

GROUP_RESOURCE = 32
NO_TASKS: dict[str, Any] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}


def streams_group(story: Story, name: str) -> str:
    """Return a group for which each change has its assignment at once."""
    group = story.group(name)
    configs = ("streams.assignment.interval.ms", "streams.initial.rebalance.delay.ms")
    rows = [{"name": config, "config_operation": 0, "value": "0"} for config in configs]
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": rows}
    story.call("IncrementalAlterConfigs", resources=[resource])
    return group


def topology(*subtopologies: dict[str, Any], epoch: int = 0) -> dict[str, Any]:
    return {"epoch": epoch, "subtopologies": list(subtopologies)}


def subtopology(name: str, *sources: str, **more: Any) -> dict[str, Any]:
    return {
        "subtopology_id": name,
        "source_topics": list(sources),
        "source_topic_regex": [],
        "state_changelog_topics": [],
        "repartition_sink_topics": [],
        "repartition_source_topics": [],
        "copartition_groups": [],
        **more,
    }


def owned(name: str, *partitions: int) -> dict[str, Any]:
    return {**NO_TASKS, "active_tasks": [{"subtopology_id": name, "partitions": list(partitions)}]}


class StreamsMember:
    """A member of a group; its requests are not recorded."""

    def __init__(self, story: Story, group: str, member_id: str, **metadata: Any) -> None:
        self.story, self.group, self.id, self.epoch, self.metadata = story, group, member_id, 0, metadata

    def heartbeat(self, **more: Any) -> Response:
        fields = {"group_id": self.group, "member_id": self.id, "member_epoch": self.epoch, **more}
        response = self.story.call("StreamsGroupHeartbeat", **fields)
        self.epoch = response["member_epoch"]
        return response

    def join(self, joined: dict[str, Any]) -> "StreamsMember":
        self.heartbeat(rebalance_timeout=60_000, process_id=self.id, topology=joined, **NO_TASKS, **self.metadata)
        return self

    def leave(self) -> None:
        self.epoch = -1
        self.heartbeat()


@of_api("StreamsGroupHeartbeat", "consumer groups")
def streams_group_heartbeat(story: Story) -> None:
    topic, other = story.create_topic("t", 2), story.create_topic("u", 3)
    group = streams_group(story, "g")
    source = topology(subtopology("s", topic))
    join = {"rebalance_timeout": 60_000, "process_id": "p", **NO_TASKS}

    def request(step: str, **more: Any) -> Response:
        return story.request(step, **{"group_id": group, "member_id": "member-a", "member_epoch": 0, **more})

    request("an unknown group", member_epoch=1)
    request("leave an unknown group", member_epoch=-1)
    request("no member id", member_id="", topology=source, **join)
    request("no group id", group_id="", topology=source, **join)
    request("no topology", **join)
    request("a time that is missing", topology=source, **{**join, "rebalance_timeout": -1})
    request("tasks of a new member", topology=source, **{**join, **owned("s", 0)})
    request("an invalid epoch", member_epoch=-3)
    request("no instance id", member_epoch=-2)
    request("a pattern", topology=topology(subtopology("s", topic, source_topic_regex=["a.*"])), **join)
    request("a reserved topic", topology=topology(subtopology("s", "__consumer_offsets")), **join)
    request("an invalid name", topology=topology(subtopology("s", "a b")), **join)
    changelog = {"name": "c", "partitions": 3, "replication_factor": 0, "topic_configs": []}
    counted = subtopology("s", topic, state_changelog_topics=[changelog])
    request("a changelog with partitions", topology=topology(counted), **join)
    pairs = [{"source_topics": [0, 1], "source_topic_regex": [], "repartition_source_topics": []}]
    joined = subtopology("s", topic, other, copartition_groups=pairs)
    mismatch = request("topics of different sizes", group_id=story.name("m"), topology=topology(joined), **join)
    missing = topology(subtopology("s", story.name("missing")), epoch=2)
    request("a missing topic", group_id=story.name("missing"), topology=missing, **join)
    tags = [{"key": "zone", "value": "a"}]
    endpoint = {"host": "h", "port": 80}
    epoch = request("join", topology=source, client_tags=tags, user_endpoint=endpoint, **join)["member_epoch"]
    request("stay", member_epoch=epoch)
    request("the endpoints", member_epoch=epoch, endpoint_information_epoch=-1)
    request("all tasks", member_epoch=epoch, **owned("s", 0, 1))
    request("a task that does not exist", member_epoch=epoch, **owned("s", 2))
    request("tasks of one kind", member_epoch=epoch, active_tasks=[])
    offsets = [{"subtopology_id": "s", "partition": 0, "offset": 5}]
    request("offsets", member_epoch=epoch, task_offsets=offsets, task_end_offsets=offsets)
    request("a later epoch", member_epoch=epoch + 1)
    request("an earlier epoch", member_epoch=epoch - 1)
    request("an unknown member", member_id="member-c", member_epoch=epoch)
    request("another topology", topology=topology(subtopology("s", topic, other)), **join)
    member = StreamsMember(story, group, "member-b").join(source)
    request("a task to revoke", member_epoch=epoch, **owned("s", 0, 1))
    later = request("revoked", member_epoch=epoch, **owned("s", 0))["member_epoch"]
    request("stop all", member_epoch=later, shutdown_application=True)
    member.leave()
    request("a task more", member_epoch=later)
    request("leave", member_epoch=-1)
    request("nobody leaves", member_epoch=-1)
    static = {"instance_id": "i", "topology": source, **join}
    request("a static member", **static)
    request("its instance again", **{**static, "member_id": "member-s"})
    request("it leaves for a moment", instance_id="i", member_epoch=-2)
    request("its successor", **{**static, "member_id": "member-s", "process_id": "q"})
    request("the former one", instance_id="i", member_epoch=1)
    request("it leaves", member_id="member-s", instance_id="i", member_epoch=-1)
    assert mismatch["member_epoch"] > 0


@of_api("StreamsGroupDescribe", "group admin")
def streams_group_describe(story: Story) -> None:
    topic = story.create_topic("t", 2)
    group = streams_group(story, "g")
    tags, endpoint = [{"key": "zone", "value": "a"}], {"host": "h", "port": 80}
    member = StreamsMember(story, group, "member-a", client_tags=tags, user_endpoint=endpoint, rack_id="r")
    member.join(topology(subtopology("s", topic)))
    simple = story.group("simple")
    offsets = {"partition_index": 0, "committed_offset": 1}
    row = {"name": topic, "topic_id": story.topic_id(topic), "partitions": [offsets]}
    story.call("OffsetCommit", group_id=simple, generation_id_or_member_epoch=-1, topics=[row])

    def request(step: str, *groups: str, **more: Any) -> None:
        story.request(step, group_ids=list(groups), **more)

    request("a member", group)
    request("with operations", group, include_authorized_operations=True)
    request("with the description of its topology", group, include_topology_description=True)
    request("the same twice", group, group)
    request("unknown", story.name("unknown"))
    request("an empty id", "")
    request("another kind", simple)
    request("none")
    member.leave()
    request("no member", group)
    story.call("DeleteGroups", groups_names=[group, simple])
