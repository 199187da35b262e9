"""Topics and their records."""

from typing import Any
from uuid import UUID

from tests.compat.security.authorization.case import Case, World, of_api, preparation
from tests.compat.wire import batches

KNOWN, HIDDEN, PRODUCED = "in.t", "out.t", "in.p"
EMPTY, HIDDEN_EMPTY = "in.e", "out.e"
MISSING, HIDDEN_MISSING = "in.missing", "out.missing"
TOPICS = (KNOWN, HIDDEN, MISSING, HIDDEN_MISSING)
UNKNOWN_PRODUCER_ID = 10**12
FIRST_WITH_IDS = {"Metadata": 10, "Fetch": 13, "Produce": 13, "DeleteTopics": 6}


@preparation
def topics(world: World) -> None:
    for topic in (KNOWN, HIDDEN, PRODUCED, EMPTY, HIDDEN_EMPTY):
        id = world.ensure_topic(topic, 2)
        if topic not in (EMPTY, HIDDEN_EMPTY):
            data = {"index": 0, "records": batches.values("a", "b")}
            row = {"topic_id": id, "partition_data": [data]}
            world.call_until_done("Produce", acks=-1, timeout=10_000, topic_data=[row])


@of_api("Produce", "WRITE topic", "WRITE transactional-id")
def produce(case: Case) -> None:
    case.mask("base_offset")

    def request(step: str, *topics: str, transactional_id: str | None = None, **options: Any) -> None:
        data = [{"index": 0, "records": batches.values("c", **options)}]
        rows = [case.topic_fields(topic, partition_data=data) for topic in topics]
        case.request(step, acks=-1, timeout=10_000, topic_data=rows, transactional_id=transactional_id)

    request("a topic", PRODUCED)
    request("another topic", "out.p")
    request("all topics", PRODUCED, MISSING, HIDDEN_MISSING)
    request("an idempotent producer", PRODUCED, producer=(UNKNOWN_PRODUCER_ID, 0, 0))
    transaction = {"producer": (UNKNOWN_PRODUCER_ID, 0, 0), "transactional": True}
    request("a transaction", PRODUCED, MISSING, transactional_id="in.x", **transaction)
    request("another transaction", PRODUCED, transactional_id="out.x", **transaction)


@preparation
def hidden_topic_to_produce_to(world: World) -> None:
    world.ensure_topic("out.p")


@of_api("Fetch", "READ topic")
def fetch(case: Case) -> None:
    def request(step: str, *topics: str, **more: Any) -> None:
        parts = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]
        rows = [case.topic_fields(topic, partitions=parts) for topic in topics]
        fields = {"max_wait": 0, "min_bytes": 0, "replica_id": -1, **more}
        case.request(step, topics=rows, **fields)

    request("a topic", KNOWN)
    request("all topics", *TOPICS)


@of_api("ListOffsets", "DESCRIBE topic")
def list_offsets(case: Case) -> None:
    parts = [{"partition_index": 0, "timestamp": -1}]
    case.request("topics", replica_id=-1, topics=[{"name": topic, "partitions": parts} for topic in TOPICS])


@of_api("OffsetForLeaderEpoch", "DESCRIBE topic")
def offset_for_leader_epoch(case: Case) -> None:
    parts = [{"partition": 0, "leader_epoch": 0}]
    rows = [{"topic": topic, "partitions": parts} for topic in TOPICS]
    case.request("topics", replica_id=-1, topics=rows)
    if case.version >= 3:
        case.request("topics of a follower", replica_id=-2, topics=rows)


@of_api("Metadata", "DESCRIBE topic", "CREATE topic")
def metadata(case: Case) -> None:
    case.record_only("topics", *TOPICS, "in.auto", *map(str, case.world.topic_ids.values()))

    def request(step: str, *topics: str, creates: bool = False, **more: Any) -> None:
        rows = [{"name": topic, "topic_id": UUID(int=0)} for topic in topics]
        case.request(step, topics=rows, allow_auto_topic_creation=creates, **more)

    case.request("all", topics=[] if case.version == 0 else None, allow_auto_topic_creation=False)
    if case.version >= 4:
        request("topics", *TOPICS)
        created = case.fresh("in.auto")
        case.normalizer.recorded_items["topics"].add(created)
        request("a new topic", created, creates=True)
        case.world.try_call("DeleteTopics", topics=[{"name": created, "topic_id": UUID(int=0)}], timeout=10_000)
    if case.version >= 8:
        operations = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
        request("operations", KNOWN, HIDDEN, MISSING, **operations)
    if case.version >= 12:
        ids = [case.topic_id(KNOWN), case.topic_id(HIDDEN), UUID(int=7)]
        case.normalizer.recorded_items["topics"] |= {str(ids[-1]), "None"}
        case.request("ids", topics=[{"name": None, "topic_id": id} for id in ids], allow_auto_topic_creation=False)


@of_api("DescribeTopicPartitions", "DESCRIBE topic")
def describe_topic_partitions(case: Case) -> None:
    case.record_only("topics", *TOPICS)
    case.request("topics", topics=[{"name": topic} for topic in TOPICS], response_partition_limit=2000)
    case.request("all", topics=[], response_partition_limit=2000)


@of_api("CreateTopics", "CREATE topic", "DESCRIBE_CONFIGS topic")
def create_topics(case: Case) -> None:
    case.record_only("configs", "retention.bytes")
    names = ("in.new", "out.new", KNOWN, HIDDEN)
    rows = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]
    case.request("topics", topics=rows, timeout=10_000, validate_only=True)
    case.request("a reserved name", topics=[rows[0] | {"name": "__cluster_metadata"}], timeout=10_000)


@of_api("DeleteTopics", "DELETE topic", "DESCRIBE topic")
def delete_topics(case: Case) -> None:
    def request(step: str, by_id: bool, *topics: str) -> None:
        for topic in ("in.d", "out.d"):
            case.world.ensure_topic(topic)
        rows = [case.topic_fields(topic) for topic in topics]
        for row in rows:
            row |= {"name": None} if by_id else {"topic_id": UUID(int=0)}
        response = case.request(step, topics=rows, topic_names=list(topics), timeout=10_000)
        for topic, row in zip(topics, rows, strict=True):
            for result in response["responses"]:
                is_it = result.get("name") == topic or result.get("topic_id") == str(row["topic_id"])
                if is_it and result["error_code"] == "NONE":
                    del case.world.topic_ids[topic]

    request("topics", False, "in.d", "out.d", MISSING, HIDDEN_MISSING)
    if case.version >= FIRST_WITH_IDS["DeleteTopics"]:
        request("ids", True, "in.d", "out.d", MISSING)


@of_api("DeleteRecords", "DELETE topic")
def delete_records(case: Case) -> None:
    parts = [{"partition_index": 0, "offset": 0}]
    case.request("topics", topics=[{"name": topic, "partitions": parts} for topic in TOPICS], timeout=10_000)


@of_api("CreatePartitions", "ALTER topic")
def create_partitions(case: Case) -> None:
    rows = [{"name": topic, "count": 3, "assignments": None} for topic in TOPICS]
    case.request("topics", topics=rows, timeout=10_000, validate_only=True)


@of_api("DescribeProducers", "READ topic")
def describe_producers(case: Case) -> None:
    case.request("topics", topics=[{"name": topic, "partition_indexes": [1]} for topic in TOPICS])
