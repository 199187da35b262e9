"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords, InitProducerId without a transaction, DescribeProducers."""

from tests.compat.wire.batches import T0, values
from tests.compat.wire.stories import transactional, transactions
from tests.compat.wire.story import Story, of_api

SPECIAL = {"latest": -1, "earliest": -2, "max timestamp": -3, "earliest local": -4, "latest tiered": -5,
           "earliest pending upload": -6, "no such special": -7}  # fmt: skip


@of_api("ListOffsets", "offsets")
def list_offsets(story: Story) -> None:
    topic = story.create_topic("t", 2)
    story.produce(topic, values("a", "b", step_ms=10), values("c", "d", time_ms=T0 + 100, step_ms=-50))

    def request(step: str, timestamp: int, partition: int = 0, name: str = topic, **more: object) -> None:
        row = {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": -1, **more}
        story.request(step, replica_id=-1, isolation_level=0, topics=[{"name": name, "partitions": [row]}])

    for title, timestamp in SPECIAL.items():
        request(title, timestamp)
        request(f"{title}, empty", timestamp, 1)
    for title, timestamp in {"before all": 0, "exact": T0 + 10, "between": T0 + 11, "unordered": T0 + 60}.items():
        request(title, timestamp)
    request("after all", T0 + 101)
    request("empty", T0, 1)
    request("unknown partition", -1, 7)
    request("unknown topic", -1, 0, story.name("unknown"))
    request("invalid topic", -1, 0, "a b")
    request("current leader epoch", -1, current_leader_epoch=0)
    request("later leader epoch", -1, current_leader_epoch=1)
    row = {"partition_index": 0, "timestamp": -1}
    story.request("twice", replica_id=-1, topics=[{"name": topic, "partitions": [row, {**row, "timestamp": -2}]}])
    story.request("read committed", replica_id=-1, isolation_level=1, topics=[{"name": topic, "partitions": [row]}])
    story.request("isolation level 2", replica_id=-1, isolation_level=2, topics=[{"name": topic, "partitions": [row]}])
    story.request("debugging consumer", replica_id=-2, topics=[{"name": topic, "partitions": [row]}])
    story.request("no topics", replica_id=-1, topics=[])
    transactional.list_offsets(story)


@of_api("OffsetForLeaderEpoch", "offsets")
def offset_for_leader_epoch(story: Story) -> None:
    topic = story.create_topic("t", 2)
    story.produce(topic, values("a", "b"))

    def request(
        step: str, epoch: int, current: int = -1, partition: int = 0, name: str = topic, replica: int = -1
    ) -> None:
        row = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
        story.request(step, replica_id=replica, topics=[{"topic": name, "partitions": [row]}])

    request("the epoch", 0)
    request("a later epoch", 1)
    request("no epoch", -1)
    request("a partition without records", 0, partition=1)
    request("current leader epoch", 0, 0)
    request("later current leader epoch", 0, 1)
    request("unknown partition", 0, partition=7)
    request("unknown topic", 0, name=story.name("unknown"))
    request("debugging consumer", 0, replica=-2)
    story.request("no topics", replica_id=-1, topics=[])


@of_api("DeleteRecords", "delete records")
def delete_records(story: Story) -> None:
    topic = story.create_topic("t", 2)
    story.produce(topic, values("a", "b"), values("c", "d"), values("e"))

    def request(step: str, offset: int, partition: int = 0, name: str = topic) -> None:
        row = {"partition_index": partition, "offset": offset}
        story.request(step, topics=[{"name": name, "partitions": [row]}], timeout=10_000)

    request("up to an offset", 3)
    request("below the log start", 1)
    request("beyond the high watermark", 6)
    request("negative", -2)
    request("all", -1)
    request("all of nothing", -1, 1)
    request("unknown partition", 0, 7)
    request("unknown topic", 0, name=story.name("unknown"))
    story.group("g")
    request("an internal topic", 0, name="__consumer_offsets")
    row = {"partition_index": 0, "offset": 1}
    other = {"name": story.name("unknown"), "partitions": [row]}
    story.request("two topics", topics=[{"name": topic, "partitions": [row]}, other], timeout=10_000)
    story.request("no topics", topics=[], timeout=10_000)
    compacted = story.create_topic("held", cleanup_policy="compact")
    request("a compacted topic", 0, name=compacted)
    story.record("log start", end_offset=story.end_offset(topic))
    transactional.delete_records(story)


@of_api("InitProducerId", "idempotence")
def init_producer_id(story: Story) -> None:
    base = {"transactional_id": None, "transaction_timeout": 60_000}
    story.producer_id()
    first = story.request("a producer", **base)["producer_id"]
    story.request("another one", **base)
    story.request("timeout 0", **{**base, "transaction_timeout": 0})
    story.request("negative timeout", **{**base, "transaction_timeout": -1})
    story.request("with its id and epoch", **base, producer_id=first, producer_epoch=0)
    story.request("an unknown id", **base, producer_id=10**12, producer_epoch=3)
    story.request("an id without an epoch", **base, producer_id=first, producer_epoch=-1)
    story.request("an epoch without an id", **base, producer_id=-1, producer_epoch=0)
    story.request("empty transactional id", transactional_id="", transaction_timeout=60_000)
    transactions.init_producer_id(story)


@of_api("DescribeProducers", "idempotence")
def describe_producers(story: Story) -> None:
    topic = story.create_topic("t", 2)
    first = story.producer_id()
    second = story.producer_id()
    story.produce(topic, values("a", "b", producer=(first, 0, 0)), values("c", producer=(first, 0, 2)))
    story.produce(topic, values("d", producer=(second, 3, 0)), values("no producer"))

    def request(step: str, *partitions: int, name: str = topic) -> None:
        story.request(step, topics=[{"name": name, "partition_indexes": list(partitions)}])

    request("two producers", 0)
    request("none", 1)
    request("unknown partition", 7)
    request("unknown topic", 0, name=story.name("unknown"))
    request("invalid topic", 0, name="a b")
    request("no partitions")
    story.request("no topics", topics=[])
    transactional.describe_producers(story)
