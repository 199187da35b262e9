"""Groups of all kinds: classic, consumer, share and streams groups, and their offsets."""

from base64 import urlsafe_b64encode
from functools import partial
from typing import Any
from uuid import UUID

from tests.compat.security.authorization.case import Case, World, known_fields, of_api, preparation
from tests.compat.security.authorization.rows.topics import EMPTY, HIDDEN, HIDDEN_EMPTY, KNOWN, MISSING, TOPICS
from tests.compat.security.authorization.users import SUPER, only, without
from tests.compat.support import eventually
from tests.compat.wire.stories.streams_groups import NO_TASKS, subtopology, topology

# in.g and out.g have offsets of both topics; the others a member that subscribes to one topic or to both.
GROUP, HIDDEN_GROUP = "in.g", "out.g"
UNKNOWN_GROUPS = ("in.missing", "out.missing")
CONSUMER, CONSUMER_OF_HIDDEN = "in.consumer", "in.consumer-hidden"
SHARE, SHARE_OF_HIDDEN = "in.share", "in.share-hidden"
STREAMS, STREAMS_OF_HIDDEN = "in.streams", "in.streams-hidden"
NOT_SHARED = "in.not-shared"
FETCHED = (EMPTY, HIDDEN_EMPTY)
STATE = {"state_epoch": 0, "start_offset": 0}
GROUPS = (GROUP, HIDDEN_GROUP, CONSUMER, SHARE, STREAMS)
KINDS = ("consumer", "share", "streams")
MEMBER = "member-of-group"


def share_key(world: World, group: str, topic: str) -> str:
    return f"{group}:{urlsafe_b64encode(world.topic_ids[topic].bytes).decode().rstrip('=')}:0"


@preparation
def groups(world: World) -> None:
    offsets = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    rows = [{"topic_id": world.topic_ids[topic], "partitions": [offsets]} for topic in (KNOWN, HIDDEN)]
    for group in (GROUP, HIDDEN_GROUP):
        world.call_until_done("FindCoordinator", key_type=0, coordinator_keys=[group])
        fields = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
        world.call_until_done("OffsetCommit", **fields, topics=rows)
    for kind in KINDS:
        for group in (f"in.{kind}", f"in.{kind}-hidden"):
            configs = {"session.timeout.ms": "60000", "assignment.interval.ms": "0"}
            if kind == "streams":
                configs["initial.rebalance.delay.ms"] = "0"
            rows = [
                {"name": f"{kind}.{name}", "config_operation": 0, "value": value} for name, value in configs.items()
            ]
            resource = {"resource_type": 32, "resource_name": group, "configs": rows}
            world.call("IncrementalAlterConfigs", resources=[resource])
    world.call_until_done("FindCoordinator", key_type=2, coordinator_keys=[share_key(world, SHARE, KNOWN)])
    for kind in KINDS:
        join(world, kind)


def join(world: World, kind: str) -> None:
    """Let the members of the groups of a kind join, or join again if their sessions have ended."""
    for group, topics in {f"in.{kind}": [KNOWN], f"in.{kind}-hidden": [KNOWN, HIDDEN]}.items():
        fields: dict[str, Any] = {"group_id": group, "member_id": MEMBER, "rebalance_timeout": 60_000}
        fields |= {"subscribed_topic_names": topics, "topic_partitions": [], "process_id": "p", **NO_TASKS}
        fields |= {"topology": topology(subtopology("s", *topics))}
        api = f"{kind.capitalize()}GroupHeartbeat"

        def is_assigned(api: str = api, fields: dict[str, Any] = fields) -> bool:
            return "'partitions'" in str(world.call_until_done(api, **known_fields(api, {**fields, "member_epoch": 0})))

        eventually(is_assigned, f"an assignment of {group}", 30, 0.02)


def commit_rows(case: Case, *topics: str) -> list[dict[str, Any]]:
    row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    return [case.topic_fields(topic, partitions=[row]) for topic in topics]


@of_api("OffsetCommit", "READ group", "READ topic")
def offset_commit(case: Case) -> None:
    simple = {"generation_id_or_member_epoch": -1, "member_id": "", "retention_time": -1}
    case.request("a topic", group_id=GROUP, **simple, topics=commit_rows(case, KNOWN))
    case.request("topics", group_id=GROUP, **simple, topics=commit_rows(case, *TOPICS))
    case.request("hidden topics", group_id=GROUP, **simple, topics=commit_rows(case, HIDDEN))
    case.request("a hidden group", group_id=HIDDEN_GROUP, **simple, topics=commit_rows(case, *TOPICS))


@of_api("OffsetFetch", "DESCRIBE group", "DESCRIBE topic")
def offset_fetch(case: Case) -> None:
    def request(step: str, *groups: str, topics: tuple[str, ...] | None) -> None:
        rows = None if topics is None else [case.topic_fields(topic, partition_indexes=[0]) for topic in topics]
        case.request(step, groups=[{"group_id": group, "topics": rows} for group in groups], group_id=groups[0],
                     topics=rows or [])  # fmt: skip

    request("topics", GROUP, topics=TOPICS)
    request("a hidden group", HIDDEN_GROUP, topics=(KNOWN,))
    if case.version >= 8:
        request("two groups", GROUP, HIDDEN_GROUP, topics=(KNOWN, HIDDEN))
        request("all topics", GROUP, HIDDEN_GROUP, topics=None)
        request("an unknown group", "in.missing", topics=None)


@of_api("FindCoordinator", "DESCRIBE group", "DESCRIBE transactional-id", "CLUSTER_ACTION cluster")
def find_coordinator(case: Case) -> None:
    def request(step: str, kind: int, *keys: str) -> None:
        case.request(step, key_type=kind, coordinator_keys=list(keys), key=keys[0])

    request("a group", 0, GROUP)
    request("a hidden group", 0, HIDDEN_GROUP)
    if case.version >= 1:
        request("a transactional id", 1, "in.x")
        request("a hidden transactional id", 1, "out.x")
    if case.version >= 4:
        request("groups", 0, GROUP, HIDDEN_GROUP)
    if case.version >= 6:
        keys = [share_key(case.world, SHARE, KNOWN), share_key(case.world, "out.share", HIDDEN)]
        for number, key in enumerate(keys):
            case.normalizer.replace_text(key, f"<share key {number}>")
        request("share partitions", 2, *keys)


@of_api("JoinGroup", "READ group")
def join_group(case: Case) -> None:
    protocols = [{"name": "range", "metadata": b""}]
    fields = {"session_timeout": 10_000, "rebalance_timeout": 10_000, "member_id": "", "protocol_type": "consumer"}
    for title, group in {"a new group": case.fresh("in.j"), "a hidden group": case.fresh("out.j")}.items():
        case.request(title, group_id=group, **fields, protocols=protocols)


@of_api("Heartbeat", "READ group")
def heartbeat(case: Case) -> None:
    for group in (GROUP, HIDDEN_GROUP):
        case.request(group, group_id=group, generation_id=1, member_id="nobody")


@of_api("LeaveGroup", "READ group")
def leave_group(case: Case) -> None:
    for group in (GROUP, HIDDEN_GROUP):
        case.request(group, group_id=group, member_id="nobody", members=[{"member_id": "nobody"}])


@of_api("SyncGroup", "READ group")
def sync_group(case: Case) -> None:
    for group in (GROUP, HIDDEN_GROUP):
        fields = {"generation_id": 1, "member_id": "nobody", "protocol_type": "consumer", "protocol_name": "range"}
        case.request(group, group_id=group, **fields, assignments=[])


@of_api("DescribeGroups", "DESCRIBE group")
def describe_groups(case: Case) -> None:
    for title, operations in {"groups": False, "operations": True}.items():
        groups = [HIDDEN_GROUP, GROUP, *UNKNOWN_GROUPS]
        case.request(title, groups=groups, include_authorized_operations=operations)


@of_api("ListGroups", "DESCRIBE group")
def list_groups(case: Case) -> None:
    for kind in KINDS:
        join(case.world, kind)
    case.record_only("groups", *GROUPS)
    case.request("all")


@of_api("DeleteGroups", "DELETE group")
def delete_groups(case: Case) -> None:
    join(case.world, "consumer")
    case.request("groups", groups_names=["out.missing", "in.missing", CONSUMER])


@of_api("OffsetDelete", "DELETE group", "READ topic")
def offset_delete(case: Case) -> None:
    """The offsets of the other partitions stay."""
    rows = [{"name": topic, "partitions": [{"partition_index": 1}]} for topic in TOPICS]
    case.request("topics", group_id=GROUP, topics=rows)
    case.request("a hidden topic", group_id=GROUP, topics=rows[1:2])
    case.request("a hidden group", group_id=HIDDEN_GROUP, topics=rows)
    case.request("an unknown group", group_id="in.missing", topics=rows)


def leave(case: Case, group: str) -> None:
    case.world.try_call(case.api, group_id=group, member_id=MEMBER, member_epoch=-1)


@of_api("ConsumerGroupHeartbeat", "READ group", "DESCRIBE topic")
def consumer_group_heartbeat(case: Case) -> None:
    case.mask("member_epoch")
    group, hidden = case.fresh("in.c"), case.fresh("out.c")

    def request(step: str, group: str, *topics: str, **more: Any) -> None:
        fields = {"group_id": group, "member_id": MEMBER, "member_epoch": 0, "rebalance_timeout": 30_000}
        response = case.request(step, **fields, topic_partitions=[], subscribed_topic_names=list(topics), **more)
        if response["error_code"] == "NONE":
            leave(case, group)

    request("a topic", group, EMPTY)
    request("topics", group, KNOWN, MISSING)
    request("a hidden topic", group, KNOWN, HIDDEN)
    request("a hidden topic that does not exist", group, "out.missing")
    request("no topic", group)
    request("a hidden group", hidden, KNOWN)
    case.request("another heartbeat", group_id=group, member_id=MEMBER, member_epoch=1)
    if case.version >= 1:
        # Who has no topic cannot wait for it, and gets the error of an invalid expression.
        has_topic = case.user in (SUPER, only("READ group", "DESCRIBE topic"), without("DESCRIBE topic"))
        group = case.fresh("in.r")
        fields = {"group_id": group, "member_id": MEMBER, "member_epoch": 0, "rebalance_timeout": 30_000}
        fields |= {"topic_partitions": [], "subscribed_topic_regex": r"(in|out)\.[te]" if has_topic else "("}

        def is_complete(response: dict[str, Any]) -> bool:
            return not has_topic or "'partitions'" in str(response)

        case.request_until("an expression", is_complete, **fields)
        leave(case, group)


@of_api("ConsumerGroupDescribe", "DESCRIBE group", "DESCRIBE topic")
def consumer_group_describe(case: Case) -> None:
    case.mask("group_epoch", "assignment_epoch", "member_epoch")
    join(case.world, "consumer")
    groups = [CONSUMER, CONSUMER_OF_HIDDEN, GROUP, *UNKNOWN_GROUPS]
    case.request("groups", group_ids=groups)
    case.request("operations", group_ids=groups, include_authorized_operations=True)


@of_api("ShareGroupHeartbeat", "READ group", "DESCRIBE topic")
def share_group_heartbeat(case: Case) -> None:
    case.mask("member_epoch")
    group, hidden = case.fresh("in.s"), case.fresh("out.s")

    def request(step: str, group: str, *topics: str) -> None:
        fields = {"group_id": group, "member_id": MEMBER, "member_epoch": 0}
        response = case.request(step, **fields, subscribed_topic_names=list(topics))
        if response["error_code"] == "NONE":
            leave(case, group)

    request("topics", group, MISSING)
    request("a hidden topic", group, MISSING, HIDDEN)
    request("no topic", group)
    request("a hidden group", hidden, KNOWN)


@of_api("ShareGroupDescribe", "DESCRIBE group", "DESCRIBE topic")
def share_group_describe(case: Case) -> None:
    case.mask("group_epoch", "assignment_epoch", "member_epoch")
    join(case.world, "share")
    groups = [SHARE, SHARE_OF_HIDDEN, GROUP, *UNKNOWN_GROUPS]
    case.request("groups", group_ids=groups)
    case.request("operations", group_ids=groups, include_authorized_operations=True)


def share_fetch_fields(case: Case, group: str, epoch: int, *topics: str, **more: Any) -> dict[str, Any]:
    parts = [{"partition_index": 0, "acknowledgement_batches": []}]
    rows = [case.topic_fields(topic, partitions=parts) for topic in topics]
    limits = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1000, "max_records": 10, "batch_size": 10}
    member_id = str(case.fresh_uuid())
    return {"group_id": group, "member_id": member_id, "share_session_epoch": epoch, **limits, "topics": rows, **more}


@of_api("ShareFetch", "READ group", "READ topic")
def share_fetch(case: Case) -> None:
    case.request("topics", **share_fetch_fields(case, SHARE, 0, *FETCHED))
    case.request("again", **share_fetch_fields(case, SHARE, 1))
    case.request("close", **share_fetch_fields(case, SHARE, -1))
    case.request("a hidden group", **share_fetch_fields(case, "out.share", 0, EMPTY))
    case.request("close the other session", **share_fetch_fields(case, "out.share", -1))
    case.request("an unknown topic", **share_fetch_fields(case, SHARE, 0, MISSING))
    case.request("close the last session", **share_fetch_fields(case, SHARE, -1))


@of_api("ShareAcknowledge", "READ group", "READ topic")
def share_acknowledge(case: Case) -> None:
    """In a session of a ShareFetch request."""
    fetch = partial(case.world.client(case.user).request, "ShareFetch", case.world.highest("ShareFetch"))
    batch = {"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}
    parts = [{"partition_index": 0, "acknowledgement_batches": [batch]}]
    rows = [case.topic_fields(topic, partitions=parts) for topic in FETCHED]
    for group in (SHARE, "out.share"):
        fields = share_fetch_fields(case, group, 0, *FETCHED)
        fetch(**known_fields("ShareFetch", fields))
        case.request(group, **fields | {"share_session_epoch": 1, "topics": rows})
        fetch(**known_fields("ShareFetch", fields | {"share_session_epoch": -1, "topics": []}))


def state(case: Case, **fields: Any) -> dict[str, Any]:
    row = {"topic_id": case.topic_id(EMPTY), "partitions": [{"partition": 0, **fields}]}
    return {"group_id": f"in.state-{case.api}", "topics": [row]}


@preparation
def share_partitions(world: World) -> None:
    """Let brokers load the share partitions that are fetched."""
    for group in (SHARE, "out.share"):
        topics = [{"topic_id": world.topic_ids[name], "partitions": [{"partition": 0, **STATE}]} for name in FETCHED]
        world.call_until_done("InitializeShareGroupState", group_id=group, topics=topics)
        fetched = [{"topic_id": world.topic_ids[name], "partitions": [{"partition_index": 0}]} for name in FETCHED]
        fields = {"group_id": group, "member_id": str(UUID(int=1)), "max_wait": 500, "max_bytes": 1000}
        fields |= {"max_records": 10, "batch_size": 10, "min_bytes": 1, "share_session_epoch": 0, "topics": fetched}

        def are_loaded(fields: dict[str, Any] = fields) -> bool:
            return str(world.call_until_done("ShareFetch", **fields)).count("partition_index") == len(FETCHED)

        eventually(are_loaded, f"the share partitions of {group}", 30, 0.02)
        world.call_until_done("ShareFetch", **fields | {"share_session_epoch": -1, "topics": []})


@preparation
def share_states(world: World) -> None:
    for api in ("InitializeShareGroupState", "ReadShareGroupState", "WriteShareGroupState", "DeleteShareGroupState",
                "ReadShareGroupStateSummary"):  # fmt: skip
        row = {"topic_id": world.topic_ids[EMPTY], "partitions": [{"partition": 0, **STATE}]}
        world.call_until_done("InitializeShareGroupState", group_id=f"in.state-{api}", topics=[row])


@of_api("InitializeShareGroupState", "CLUSTER_ACTION cluster")
def initialize_share_group_state(case: Case) -> None:
    case.request("a partition", **state(case, **STATE))


@of_api("ReadShareGroupState", "CLUSTER_ACTION cluster")
def read_share_group_state(case: Case) -> None:
    case.request("a partition", **state(case, leader_epoch=0))


@of_api("WriteShareGroupState", "CLUSTER_ACTION cluster")
def write_share_group_state(case: Case) -> None:
    case.request("a partition", **state(case, **STATE, leader_epoch=0, state_batches=[]))


@of_api("DeleteShareGroupState", "CLUSTER_ACTION cluster")
def delete_share_group_state(case: Case) -> None:
    fields = state(case, **STATE)
    case.world.call("InitializeShareGroupState", **fields)
    case.request("a partition", **state(case))


@of_api("ReadShareGroupStateSummary", "CLUSTER_ACTION cluster")
def read_share_group_state_summary(case: Case) -> None:
    case.request("a partition", **state(case, leader_epoch=0))


@of_api("StreamsGroupHeartbeat", "READ group", "DESCRIBE topic", "CREATE topic")
def streams_group_heartbeat(case: Case) -> None:
    """Each in a new group, since a topology stays."""

    def request(step: str, prefix: str, *topics: str, **more: Any) -> None:
        group = case.fresh(f"{prefix}{len(case.steps)}")
        fields = {"group_id": group, "member_id": MEMBER, "member_epoch": 0, "rebalance_timeout": 30_000}
        described = topology(subtopology("s", *topics, **more))
        response = case.request(step, **fields, process_id="p", topology=described, **NO_TASKS)
        if response["error_code"] == "NONE":
            leave(case, group)

    request("topics", "in.k", MISSING)
    request("a hidden topic", "in.k", MISSING, HIDDEN)
    request("a hidden group", "out.k", KNOWN)
    changelog = {"partitions": 0, "replication_factor": 0, "topic_configs": []}
    for title, name in {"a changelog": "in.l", "a hidden changelog": "out.l"}.items():
        request(title, "in.k", KNOWN, state_changelog_topics=[{**changelog, "name": case.fresh(name)}])


@of_api("StreamsGroupDescribe", "DESCRIBE group", "DESCRIBE topic")
def streams_group_describe(case: Case) -> None:
    case.mask("group_epoch", "assignment_epoch", "member_epoch")
    join(case.world, "streams")
    groups = [STREAMS, STREAMS_OF_HIDDEN, GROUP, *UNKNOWN_GROUPS]
    case.request("groups", group_ids=groups)
    case.request("operations", group_ids=groups, include_authorized_operations=True)


@of_api("DescribeShareGroupOffsets", "DESCRIBE group", "DESCRIBE topic")
def describe_share_group_offsets(case: Case) -> None:
    rows = [{"topic_name": topic, "partitions": [0]} for topic in TOPICS]
    groups = (SHARE, "out.share", "in.missing")
    case.request("topics", groups=[{"group_id": group, "topics": rows} for group in groups])
    case.request("all topics", groups=[{"group_id": group, "topics": None} for group in groups])


@of_api("AlterShareGroupOffsets", "READ group", "READ topic")
def alter_share_group_offsets(case: Case) -> None:
    rows = [{"topic_name": topic, "partitions": [{"partition_index": 0, "start_offset": 0}]} for topic in TOPICS]
    group = case.fresh("in.offsets")
    case.request("topics", group_id=group, topics=rows)
    case.request("a hidden topic", group_id=group, topics=rows[1:2])
    case.request("a hidden group", group_id="out.share", topics=rows)
    join(case.world, "share")
    case.request("a group with a member", group_id=SHARE, topics=rows)


@of_api("DeleteShareGroupOffsets", "DELETE group", "READ topic")
def delete_share_group_offsets(case: Case) -> None:
    rows = [{"topic_name": topic} for topic in TOPICS]
    shared = [{"topic_name": topic, "partitions": [{"partition_index": 0, "start_offset": 0}]} for topic in TOPICS[:2]]
    for group in (NOT_SHARED, "out.not-shared"):
        case.world.call_until_done("AlterShareGroupOffsets", group_id=group, topics=shared)
    case.request("topics", group_id=NOT_SHARED, topics=rows)
    case.request("a hidden topic", group_id=NOT_SHARED, topics=rows[1:2])
    case.request("a hidden group", group_id="out.not-shared", topics=rows)
    join(case.world, "share")
    case.request("a group with a member", group_id=SHARE, topics=rows)
