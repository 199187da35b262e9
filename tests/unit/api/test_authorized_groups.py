"""The gate around groups and their offsets. tests/compat/security compares all APIs with Apache Kafka."""

import asyncio
from typing import Any

from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k08_offset_commits import OffsetCommitRequestPartition, OffsetCommitRequestTopic
from protocol.messages.k09_offset_fetch import OffsetFetchRequestGroup
from protocol.messages.k47_offset_delete import OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from protocol.messages.k88_streams_groups import HeartbeatSubtopology, HeartbeatTopology, StreamsTopicInfo
from protocol.messages.k90_share_group_offsets import (
    DeleteShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsRequestGroup,
)
from tests.unit.support.client import Client, batch
from tests.unit.support.secured_broker import ROOT, ask, login, secured, use_rules
from tests.unit.support.share_consumer import ShareConsumer, StateCoordinator, acquired, alter_group, install
from tests.unit.support.simulated_broker import Machine

GROUP, TOPIC = ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED
LONG_MS, NO_OPERATIONS = 60_000, -(2**31)


async def started(m: Machine, *rules: str) -> tuple[Client, Client]:
    """Return the clients of root and alice, who has these rights; groups g and h have offsets of both topics."""
    root = await login(m, ROOT)
    for topic in ("t", "hidden"):
        await root.create_topic(topic)
    for group in ("g", "h"):
        await ask(root, ApiKey.FIND_COORDINATOR, coordinator_keys=[group])
        assert await commit(root, group, "t", "hidden") == {"t": 0, "hidden": 0}
    use_rules(m, *rules)
    return root, await login(m, "alice")


async def commit(client: Client, group: str, *topics: str) -> dict[str, int]:
    rows = [OffsetCommitRequestPartition(partition_index=0, committed_offset=0)]
    request = [OffsetCommitRequestTopic(name=topic, partitions=rows) for topic in topics]
    response = await ask(client, ApiKey.OFFSET_COMMIT, 9, group_id=group, topics=request)
    return {topic.name: topic.partitions[0].error_code for topic in response.topics}


@secured
async def test_a_commit_needs_the_group_and_each_topic(m: Machine) -> None:
    _, alice = await started(m, "alice READ TOPIC t", "alice READ GROUP g", "alice DESCRIBE TOPIC hidden")
    assert await commit(alice, "g", "hidden", "t", "nothere") == {"t": 0, "hidden": TOPIC, "nothere": TOPIC}
    assert await commit(alice, "h", "t", "hidden") == {"t": GROUP, "hidden": GROUP}


@secured
async def test_offsets_of_other_groups_and_topics_are_not_shown(m: Machine) -> None:
    _, alice = await started(m, "alice DESCRIBE GROUP g", "alice DESCRIBE TOPIC t")
    groups = [OffsetFetchRequestGroup(group_id=group, topics=None) for group in ("g", "h")]
    for asked in (groups, groups[:1]):
        response = await ask(alice, ApiKey.OFFSET_FETCH, 9, groups=asked)
        found = {row.group_id: (row.error_code, [topic.name for topic in row.topics]) for row in response.groups}
        assert found == {"g": (0, ["t"]), "h": (GROUP, [])} if len(asked) > 1 else {"g": (0, ["t"])}


@secured
async def test_only_groups_with_the_right_are_described_listed_and_deleted(m: Machine) -> None:
    _, alice = await started(m, "alice DESCRIBE GROUP g")
    described = await ask(alice, ApiKey.DESCRIBE_GROUPS, groups=["h", "g"], include_authorized_operations=True)
    operations = [(row.group_id, row.error_code, row.authorized_operations) for row in described.groups]
    assert operations == [("h", GROUP, NO_OPERATIONS), ("g", 0, 1 << 8)]
    assert [row.group_id for row in (await ask(alice, ApiKey.LIST_GROUPS)).groups] == ["g"]
    deleted = await ask(alice, ApiKey.DELETE_GROUPS, groups_names=["g", "h"])
    assert [row.error_code for row in deleted.results] == [GROUP, GROUP]
    use_rules(m, "alice DESCRIBE CLUSTER", "alice DELETE GROUP h")
    assert {row.group_id for row in (await ask(alice, ApiKey.LIST_GROUPS)).groups} == {"g", "h"}
    deleted = await ask(alice, ApiKey.DELETE_GROUPS, groups_names=["g", "h"])
    assert [(row.group_id, row.error_code) for row in deleted.results] == [("g", GROUP), ("h", 0)]


@secured
async def test_offsets_of_refused_topics_are_not_deleted(m: Machine) -> None:
    _, alice = await started(m, "alice DELETE GROUP g", "alice DELETE GROUP nothere", "alice READ TOPIC t")
    rows = [OffsetDeleteRequestPartition(partition_index=0)]
    topics = [OffsetDeleteRequestTopic(name=topic, partitions=rows) for topic in ("hidden", "t")]

    async def delete(group: str, *rows: OffsetDeleteRequestTopic) -> tuple[int, dict[str, int]]:
        response = await ask(alice, ApiKey.OFFSET_DELETE, group_id=group, topics=list(rows))
        return response.error_code, {row.name: row.partitions[0].error_code for row in response.topics}

    assert await delete("g", *topics) == (0, {"t": 0, "hidden": TOPIC})
    assert await delete("h", *topics) == (GROUP, {})
    # As in Kafka the group is looked up even if no topic is left.
    assert await delete("nothere", topics[0]) == (ErrorCode.GROUP_ID_NOT_FOUND, {})


@secured
async def test_who_may_not_describe_a_group_cannot_let_the_offsets_topic_be_created(m: Machine) -> None:
    alice = await login(m, "alice")
    refused = await ask(alice, ApiKey.FIND_COORDINATOR, coordinator_keys=["g"])
    assert [row.error_code for row in refused.coordinators] == [GROUP]
    assert not m.broker.services.metadata.topics
    use_rules(m, "alice READ GROUP g")
    found = await ask(alice, ApiKey.FIND_COORDINATOR, coordinator_keys=["g", "h"])
    assert [row.error_code for row in found.coordinators] == [0, GROUP]


async def consume(client: Client, **fields: Any) -> Any:
    """Join a consumer group, or send a heartbeat."""
    fields = {"group_id": "c", "member_id": "m", "rebalance_timeout_ms": LONG_MS, "topic_partitions": [], **fields}
    return await ask(client, ApiKey.CONSUMER_GROUP_HEARTBEAT, **fields)


@secured
async def test_a_regular_expression_matches_what_the_member_may_describe(m: Machine) -> None:
    root, alice = await started(m, "alice READ GROUP c", "alice DESCRIBE TOPIC t")
    await alter_group(root, "c", consumer_assignment_interval_ms="0")

    async def topics_of(client: Client) -> set[str]:
        for _ in range(4):
            await asyncio.sleep(11)
            response = await consume(client, subscribed_topic_regex="t|hidden|new")
        names = m.broker.services.metadata.topics_by_id
        return {names[row.topic_id].name for row in response.assignment.topic_partitions}

    await consume(alice, subscribed_topic_regex="t|hidden|new")
    assert await topics_of(alice) == {"t"}
    # Other rights count soon, as new topics do.
    use_rules(m, "alice READ GROUP c", "alice DESCRIBE TOPIC hidden")
    assert await topics_of(alice) == {"hidden"}


@secured
async def test_a_group_with_a_hidden_topic_is_not_described(m: Machine) -> None:
    root, alice = await started(m, "alice DESCRIBE GROUP c", "alice DESCRIBE TOPIC t", "alice READ GROUP c")
    await alter_group(root, "c", consumer_assignment_interval_ms="0")
    assert (await consume(alice, subscribed_topic_names=["t", "hidden"])).error_code == TOPIC
    assert (await consume(root, subscribed_topic_names=["t", "hidden"])).error_code == 0
    [group] = (await ask(alice, ApiKey.CONSUMER_GROUP_DESCRIBE, group_ids=["c"])).groups
    assert (group.error_code, group.members, group.group_state) == (TOPIC, [], "")
    use_rules(m, "alice DESCRIBE GROUP c", "alice DESCRIBE TOPIC t", "alice DESCRIBE TOPIC hidden")
    [group] = (await ask(alice, ApiKey.CONSUMER_GROUP_DESCRIBE, group_ids=["c"])).groups
    assert [member.member_id for member in group.members] == ["m"]


@secured
async def test_internal_topics_of_streams_need_create(m: Machine) -> None:
    _, alice = await started(m, "alice READ GROUP k", "alice READ TOPIC t", "alice DESCRIBE TOPIC k-changelog")
    subtopology = HeartbeatSubtopology(
        subtopology_id="s", source_topics=["t"], state_changelog_topics=[StreamsTopicInfo(name="k-changelog")]
    )

    async def join(topology: HeartbeatSubtopology) -> Any:
        tasks = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
        fields = {"group_id": "k", "member_id": "m", "process_id": "p", "rebalance_timeout_ms": LONG_MS, **tasks}
        described = HeartbeatTopology(subtopologies=[topology])
        return await ask(alice, ApiKey.STREAMS_GROUP_HEARTBEAT, topology=described, **fields)

    hidden = HeartbeatSubtopology(subtopology_id="s", source_topics=["t", "hidden"])
    assert (await join(hidden)).error_code == TOPIC
    status = [row.status_detail for row in (await join(subtopology)).status]
    assert any(detail.endswith("; Unauthorized to CREATE on topics k-changelog.") for detail in status), status
    await asyncio.sleep(10)
    assert "k-changelog" not in m.broker.services.metadata.topics
    use_rules(m, "alice READ GROUP k", "alice READ TOPIC t", "alice CREATE TOPIC k-changelog",
              "alice DESCRIBE TOPIC k-changelog")  # fmt: skip
    await join(subtopology)
    await asyncio.sleep(10)
    assert "k-changelog" in m.broker.services.metadata.topics


@secured
async def test_a_share_fetch_that_waits_is_checked_again(m: Machine) -> None:
    install(m, StateCoordinator())
    root = await login(m, ROOT)
    topic_id = await root.create_topic("t")
    await alter_group(root, "g", share_auto_offset_reset="earliest")
    both = ("alice READ GROUP g", "alice READ TOPIC t")
    use_rules(m, *both)
    consumer = ShareConsumer(await login(m, "alice"), topic_id, "g", "m")
    await root.produce("t", batch(b"a"))
    assert acquired(await consumer.fetch(max_wait_ms=500)) == [(0, 0, 1)]
    waiting = consumer.send_fetch(max_wait_ms=LONG_MS)
    await asyncio.sleep(1)
    use_rules(m, *both[:1])
    await root.produce("t", batch(b"b"))
    [data] = (await waiting).responses[0].partitions
    assert (data.error_code, acquired(data)) == (TOPIC, [])
    # Nor may it acknowledge what it has.
    assert (await consumer.acknowledge((0, 0, 1))).error_code == TOPIC
    use_rules(m, *both[1:])
    assert (await consumer.send_fetch()).error_code == GROUP


@secured
async def test_share_offsets_of_refused_topics_are_neither_described_nor_deleted(m: Machine) -> None:
    _, alice = await started(m, "alice DELETE GROUP s", "alice READ TOPIC t", "alice DESCRIBE GROUP s")
    deleted = [DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in ("t", "hidden")]

    async def delete(group: str) -> tuple[int, dict[str, int]]:
        response = await ask(alice, ApiKey.DELETE_SHARE_GROUP_OFFSETS, group_id=group, topics=deleted)
        return response.error_code, {row.topic_name: row.error_code for row in response.responses}

    assert await delete("other") == (GROUP, {})
    groups = [DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None) for group in ("s", "other")]
    described = (await ask(alice, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, groups=groups)).groups
    assert [(row.error_code, row.topics) for row in described] == [(0, []), (GROUP, [])]
