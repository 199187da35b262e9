"""Topics: Metadata, CreateTopics, DeleteTopics, CreatePartitions, DescribeTopicPartitions."""

from uuid import UUID

from tests.compat.wire.story import Response, Story, of_api

NO_ID, UNKNOWN_ID = UUID(int=0), UUID(int=1)
INVALID_NAMES = {"an empty name": "", "a dot": ".", "two dots": "..", "a space": "a b", "too long": "x" * 250}


@of_api("Metadata", "topics")
def metadata(story: Story) -> None:
    topic, other = story.create_topic("t", 3), story.create_topic("u")

    def request(step: str, *topics: object, **options: object) -> Response:
        rows = [{"name": row, "topic_id": NO_ID} if isinstance(row, str) else row for row in topics]
        return story.request(step, topics=rows, allow_auto_topic_creation=False, **options)

    request("a topic", topic)
    request("two topics", topic, other)
    request("the same topic twice", topic, topic)
    if story.version >= 4:
        request("an unknown topic", story.name("unknown"))
        for title, name in INVALID_NAMES.items():
            request(title, name)
        request("a reserved name", "__cluster_metadata")
    if story.version >= 1:
        request("no topics")
    request(
        "with operations", topic, include_topic_authorized_operations=True, include_cluster_authorized_operations=True
    )
    if story.version >= 10:
        by_id(story, topic, request)
    if story.version >= 4:
        created_by_metadata(story)
    if story.version >= 1:
        story.request_own("all topics", topics=None)
    else:
        story.request_own("all topics", topics=[])


def by_id(story: Story, topic: str, request: object) -> None:
    assert callable(request)
    request("by id", {"name": None, "topic_id": story.topic_id(topic)})
    request("by id and name", {"name": topic, "topic_id": story.topic_id(topic)})
    request("an unknown id", {"name": None, "topic_id": UNKNOWN_ID})
    request("neither id nor name", {"name": None, "topic_id": NO_ID})


def created_by_metadata(story: Story) -> None:
    """Auto-creation: until the topic exists, Kafka returns an error for it."""
    name = story.name("created")
    row = {"name": name, "topic_id": NO_ID}

    def is_created(response: Response) -> bool:
        row = response["topics"][0]
        return row["error_code"] == "NONE" and all(p["error_code"] == "NONE" for p in row["partitions"])

    story.record_only("partitions", "0")  # the number of partitions is the default of the broker
    story.request_until("created by asking", is_created, topics=[row], allow_auto_topic_creation=True)
    story.delete_topic(name)
    story.record_all("partitions")


@of_api("CreateTopics", "topics")
def create_topics(story: Story) -> None:
    def request(step: str, *specs: dict[str, object], validate_only: bool = False) -> None:
        base = {"num_partitions": 1, "replication_factor": 1, "configs": [], "assignments": []}
        rows = [{**base, **spec} for spec in specs]
        story.request(step, topics=rows, timeout=10_000, validate_only=validate_only)

    def own_topic(name: str, **spec: object) -> dict[str, object]:
        return {"name": story.own_topic_name(name), **spec}

    request("one", own_topic("a"))
    story.record_only("configs", "retention.ms", "cleanup.policy")
    request("it exists", own_topic("a"))
    request("with configs", own_topic("b", num_partitions=3, configs=[config("retention.ms", "1000")]))
    request("two, one exists", own_topic("a"), own_topic("c"))
    request("the same twice", own_topic("d"), own_topic("d"))
    request("only validated", own_topic("e", num_partitions=2), validate_only=True)
    request("only validated, exists", own_topic("a"), validate_only=True)
    request("default replication", own_topic("f", replication_factor=-1))
    request("default partitions", own_topic("e", num_partitions=-1, replication_factor=2))
    node = story.cluster.node[0]
    manual = {"num_partitions": -1, "replication_factor": -1}
    request("assigned", own_topic("g", **manual, assignments=[assignment(0, node), assignment(1, node)]))
    request("assigned to nobody", own_topic("h", **manual, assignments=[assignment(0)]))
    request("assigned to an unknown broker", own_topic("h", **manual, assignments=[assignment(0, 77)]))
    request("assigned twice to one", own_topic("h", **manual, assignments=[assignment(0, node, node)]))
    request("assigned with a gap", own_topic("h", **manual, assignments=[assignment(0, node), assignment(2, node)]))
    request(
        "a partition assigned twice", own_topic("h", **manual, assignments=[assignment(0, node), assignment(0, node)])
    )
    request("assigned and counted", own_topic("h", assignments=[assignment(0, node)]))
    request("no partitions", own_topic("h", num_partitions=0))
    request("-2 partitions", own_topic("h", num_partitions=-2))
    request("too many partitions", own_topic("h", num_partitions=10_001))
    request("replication factor 0", own_topic("h", replication_factor=0))
    request("replication factor 2", own_topic("h", replication_factor=2))
    request("an unknown config", own_topic("h", configs=[config("no.such", "1")]))
    request("a bad config value", own_topic("h", configs=[config("retention.ms", "x")]))
    request("a null config value", own_topic("h", configs=[config("retention.ms", None)]))
    request("a config twice", own_topic("h", configs=[config("retention.ms", "1"), config("retention.ms", "2")]))
    for title, name in INVALID_NAMES.items():
        request(title, {"name": name})
    request("a reserved name", {"name": "__cluster_metadata"})
    request("collides", own_topic("x.y"), own_topic("x_y"))
    request("nothing")


def config(name: str, value: str | None) -> dict[str, object]:
    return {"name": name, "value": value}


def assignment(partition: int, *brokers: int) -> dict[str, object]:
    return {"partition_index": partition, "broker_ids": list(brokers)}


@of_api("DeleteTopics", "topics")
def delete_topics(story: Story) -> None:
    def request(step: str, *topics: tuple[str | None, UUID]) -> None:
        rows = [{"name": name, "topic_id": topic_id} for name, topic_id in topics]
        story.request(step, topic_names=[name or "" for name, _ in topics], topics=rows, timeout=10_000)

    first, second, third = (story.create_topic(name) for name in "abc")
    request("one", (first, NO_ID))
    request("it is gone", (first, NO_ID))
    request("one that never was", (story.name("unknown"), NO_ID))
    request("the same twice", (second, NO_ID), (second, NO_ID))
    request("two, one unknown", (second, NO_ID), (story.name("unknown"), NO_ID))
    request("invalid", ("a b", NO_ID))
    request("nothing")
    if story.version >= 6:
        request("an unknown id", (None, UNKNOWN_ID))
        request("neither id nor name", (None, NO_ID))
        request("id and name", (third, story.topic_id(third)))
        request("the same by name and id", (third, NO_ID), (None, story.topic_id(third)))
        request("by id", (None, story.topic_id(third)))


@of_api("CreatePartitions", "topics")
def create_partitions(story: Story) -> None:
    topic = story.create_topic("t")
    node = story.cluster.node[0]

    def request(step: str, count: int, *assignments: list[int], name: str = topic, validate_only: bool = False) -> None:
        rows = [{"broker_ids": brokers} for brokers in assignments] or None
        row = {"name": name, "count": count, "assignments": rows}
        story.request(step, topics=[row], timeout=10_000, validate_only=validate_only)

    request("only validated", 3, validate_only=True)
    request("one more", 2)
    request("as many", 2)
    request("fewer", 1)
    request("none", 0)
    request("negative", -1)
    request("assigned", 4, [node], [node])
    request("too few assigned", 6, [node])
    request("too many assigned", 5, [node], [node])
    request("assigned to an unknown broker", 5, [77])
    request("assigned to nobody", 5, [])
    request("assigned twice to one", 5, [node, node])
    request("unknown topic", 2, name=story.name("unknown"))
    row = {"name": topic, "count": 6, "assignments": None}
    story.request("the same twice", topics=[row, row], timeout=10_000)
    story.request("nothing", topics=[], timeout=10_000)
    story.wait_for_topic(topic, 4)


@of_api("DescribeTopicPartitions", "topics")
def describe_topic_partitions(story: Story) -> None:
    first, second = story.create_topic("a", 3), story.create_topic("b", 2)
    topics = [{"name": first}, {"name": second}]
    story.request("a topic", topics=[{"name": first}], response_partition_limit=100)
    story.request("two topics", topics=topics, response_partition_limit=100)
    story.request("an unknown topic", topics=[{"name": story.name("unknown")}], response_partition_limit=100)
    story.request("an invalid topic", topics=[{"name": "a b"}], response_partition_limit=100)
    story.request("the same twice", topics=[{"name": first}] * 2, response_partition_limit=100)
    story.request("cut within a topic", topics=topics, response_partition_limit=2)
    cursor = {"topic_name": first, "partition_index": 2}
    story.request("from a cursor", topics=topics, response_partition_limit=2, cursor=cursor)
    cursor = {"topic_name": second, "partition_index": 0}
    story.request("from the second topic", topics=topics, response_partition_limit=100, cursor=cursor)
    cursor = {"topic_name": first, "partition_index": 9}
    story.request("from beyond the topic", topics=topics, response_partition_limit=100, cursor=cursor)
    cursor = {"topic_name": first, "partition_index": -1}
    story.request("from a negative partition", topics=topics, response_partition_limit=100, cursor=cursor)
    story.request("limit 0", topics=topics, response_partition_limit=0)
    story.request("a negative limit", topics=topics, response_partition_limit=-1)
    story.request_own("all", topics=[], response_partition_limit=2000)
