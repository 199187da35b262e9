"""Topics: made, described, enlarged, deleted."""

from uuid import UUID

from tests.compat.wire.play import Answer, Play

NO_ID, UNKNOWN_ID = UUID(int=0), UUID(int=1)
INVALID_NAMES = {"an empty name": "", "a dot": ".", "two dots": "..", "a space": "a b", "too long": "x" * 250}


def metadata(play: Play) -> None:
    topic, other = play.topic("t", 3), play.topic("u")

    def ask(step: str, *topics: object, **how: object) -> Answer:
        rows = [{"name": row, "topic_id": NO_ID} if isinstance(row, str) else row for row in topics]
        return play.ask(step, topics=rows, allow_auto_topic_creation=False, **how)

    ask("a topic", topic)
    ask("two topics", topic, other)
    ask("the same topic twice", topic, topic)
    if play.version >= 4:
        ask("an unknown topic", play.name("unknown"))
        for title, name in INVALID_NAMES.items():
            ask(title, name)
        ask("a reserved name", "__cluster_metadata")
        ask("an internal topic that is not there", "__share_group_state")
    if play.version >= 1:
        ask("no topics")
    ask(
        "with operations",
        topic,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    if play.version >= 10:
        ids(play, topic, ask)
    if play.version >= 4:
        created(play)
    if play.version >= 1:
        play.ask_own("all topics", topics=None)
    else:
        play.ask_own("all topics", topics=[])


def ids(play: Play, topic: str, ask: object) -> None:
    assert callable(ask)
    ask("by id", {"name": None, "topic_id": play.id(topic)})
    ask("by id and name", {"name": topic, "topic_id": play.id(topic)})
    ask("an unknown id", {"name": None, "topic_id": UNKNOWN_ID})
    ask("neither id nor name", {"name": None, "topic_id": NO_ID})


def created(play: Play) -> None:
    """Auto-creation: Kafka answers that there is no such topic until there is one."""
    name = play.name("created")
    row = {"name": name, "topic_id": NO_ID}

    def there(answer: Answer) -> bool:
        found = answer["topics"][0]
        return found["error_code"] == "NONE" and all(p["error_code"] == "NONE" for p in found["partitions"])

    play.show_only("partitions", "0")  # of as many as the broker makes by default
    play.ask_until("created by asking", there, topics=[row], allow_auto_topic_creation=True)
    play.drop_topic(name)
    play.show_all("partitions")


def create_topics(play: Play) -> None:
    def ask(step: str, *specs: dict[str, object], validate_only: bool = False) -> None:
        base = {"num_partitions": 1, "replication_factor": 1, "configs": [], "assignments": []}
        rows = [{**base, **spec} for spec in specs]
        play.ask(step, topics=rows, timeout=10_000, validate_only=validate_only)

    def named(name: str, **spec: object) -> dict[str, object]:
        return {"name": play.made(name), **spec}

    ask("one", named("a"))
    play.show_only("configs", "retention.ms", "cleanup.policy")
    ask("it exists", named("a"))
    ask("with configs", named("b", num_partitions=3, configs=[config("retention.ms", "1000")]))
    ask("two, one exists", named("a"), named("c"))
    ask("the same twice", named("d"), named("d"))
    ask("only validated", named("e", num_partitions=2), validate_only=True)
    ask("only validated, exists", named("a"), validate_only=True)
    ask("default replication", named("f", replication_factor=-1))
    ask("default partitions", named("e", num_partitions=-1, replication_factor=2))
    node = play.cluster.node[0]
    manual = {"num_partitions": -1, "replication_factor": -1}
    ask("assigned", named("g", **manual, assignments=[assigned(0, node), assigned(1, node)]))
    ask("assigned to nobody", named("h", **manual, assignments=[assigned(0)]))
    ask("assigned to an unknown broker", named("h", **manual, assignments=[assigned(0, 77)]))
    ask("assigned twice to one", named("h", **manual, assignments=[assigned(0, node, node)]))
    ask("assigned with a gap", named("h", **manual, assignments=[assigned(0, node), assigned(2, node)]))
    ask("a partition assigned twice", named("h", **manual, assignments=[assigned(0, node), assigned(0, node)]))
    ask("assigned and counted", named("h", assignments=[assigned(0, node)]))
    ask("no partitions", named("h", num_partitions=0))
    ask("-2 partitions", named("h", num_partitions=-2))
    ask("too many partitions", named("h", num_partitions=10_001))
    ask("replication factor 0", named("h", replication_factor=0))
    ask("replication factor 2", named("h", replication_factor=2))
    ask("an unknown config", named("h", configs=[config("no.such", "1")]))
    ask("a bad config value", named("h", configs=[config("retention.ms", "x")]))
    ask("a null config value", named("h", configs=[config("retention.ms", None)]))
    ask("a config twice", named("h", configs=[config("retention.ms", "1"), config("retention.ms", "2")]))
    for title, name in INVALID_NAMES.items():
        ask(title, {"name": name})
    ask("a reserved name", {"name": "__cluster_metadata"})
    ask("collides", named("x.y"), named("x_y"))
    ask("nothing")


def config(name: str, value: str | None) -> dict[str, object]:
    return {"name": name, "value": value}


def assigned(partition: int, *brokers: int) -> dict[str, object]:
    return {"partition_index": partition, "broker_ids": list(brokers)}


def delete_topics(play: Play) -> None:
    def ask(step: str, *topics: tuple[str | None, UUID]) -> None:
        rows = [{"name": name, "topic_id": topic_id} for name, topic_id in topics]
        play.ask(step, topic_names=[name or "" for name, _ in topics], topics=rows, timeout=10_000)

    first, second, third = (play.topic(name) for name in "abc")
    ask("one", (first, NO_ID))
    ask("it is gone", (first, NO_ID))
    ask("one that never was", (play.name("unknown"), NO_ID))
    ask("the same twice", (second, NO_ID), (second, NO_ID))
    ask("two, one unknown", (second, NO_ID), (play.name("unknown"), NO_ID))
    ask("invalid", ("a b", NO_ID))
    ask("nothing")
    if play.version >= 6:
        ask("an unknown id", (None, UNKNOWN_ID))
        ask("neither id nor name", (None, NO_ID))
        ask("id and name", (third, play.id(third)))
        ask("the same by name and id", (third, NO_ID), (None, play.id(third)))
        ask("by id", (None, play.id(third)))


def create_partitions(play: Play) -> None:
    topic = play.topic("t")
    node = play.cluster.node[0]

    def ask(step: str, count: int, *assignments: list[int], name: str = topic, validate_only: bool = False) -> None:
        rows = [{"broker_ids": brokers} for brokers in assignments] or None
        row = {"name": name, "count": count, "assignments": rows}
        play.ask(step, topics=[row], timeout=10_000, validate_only=validate_only)

    ask("only validated", 3, validate_only=True)
    ask("one more", 2)
    ask("as many", 2)
    ask("fewer", 1)
    ask("none", 0)
    ask("negative", -1)
    ask("assigned", 4, [node], [node])
    ask("too few assigned", 6, [node])
    ask("too many assigned", 5, [node], [node])
    ask("assigned to an unknown broker", 5, [77])
    ask("assigned to nobody", 5, [])
    ask("assigned twice to one", 5, [node, node])
    ask("unknown topic", 2, name=play.name("unknown"))
    row = {"name": topic, "count": 6, "assignments": None}
    play.ask("the same twice", topics=[row, row], timeout=10_000)
    play.ask("nothing", topics=[], timeout=10_000)
    play.wait_for(topic, 4)


def describe_topic_partitions(play: Play) -> None:
    first, second = play.topic("a", 3), play.topic("b", 2)
    wanted = [{"name": first}, {"name": second}]
    play.ask("a topic", topics=[{"name": first}], response_partition_limit=100)
    play.ask("two topics", topics=wanted, response_partition_limit=100)
    play.ask("an unknown topic", topics=[{"name": play.name("unknown")}], response_partition_limit=100)
    play.ask("an invalid topic", topics=[{"name": "a b"}], response_partition_limit=100)
    play.ask("the same twice", topics=[{"name": first}] * 2, response_partition_limit=100)
    play.ask("cut within a topic", topics=wanted, response_partition_limit=2)
    cursor = {"topic_name": first, "partition_index": 2}
    play.ask("from a cursor", topics=wanted, response_partition_limit=2, cursor=cursor)
    cursor = {"topic_name": second, "partition_index": 0}
    play.ask("from the second topic", topics=wanted, response_partition_limit=100, cursor=cursor)
    cursor = {"topic_name": first, "partition_index": 9}
    play.ask("from beyond the topic", topics=wanted, response_partition_limit=100, cursor=cursor)
    cursor = {"topic_name": first, "partition_index": -1}
    play.ask("from a negative partition", topics=wanted, response_partition_limit=100, cursor=cursor)
    play.ask("limit 0", topics=wanted, response_partition_limit=0)
    play.ask("a negative limit", topics=wanted, response_partition_limit=-1)
    play.ask_own("all", topics=[], response_partition_limit=2000)
