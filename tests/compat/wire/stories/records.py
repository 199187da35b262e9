"""What is known of a partition's records: offsets by time and epoch, the log start, producers."""

from tests.compat.wire.batches import T0, values
from tests.compat.wire.play import Play
from tests.compat.wire.stories import transactional, transactions

SPECIAL = {"latest": -1, "earliest": -2, "max timestamp": -3, "earliest local": -4, "latest tiered": -5,
           "earliest pending upload": -6, "no such special": -7}  # fmt: skip


def list_offsets(play: Play) -> None:
    topic = play.topic("t", 2)
    play.produce(topic, values("a", "b", step_ms=10), values("c", "d", time_ms=T0 + 100, step_ms=-50))

    def ask(step: str, timestamp: int, partition: int = 0, name: str = topic, **more: object) -> None:
        row = {"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": -1, **more}
        play.ask(step, replica_id=-1, isolation_level=0, topics=[{"name": name, "partitions": [row]}])

    for title, timestamp in SPECIAL.items():
        ask(title, timestamp)
        ask(f"{title}, empty", timestamp, 1)
    for title, timestamp in {"before all": 0, "exact": T0 + 10, "between": T0 + 11, "unordered": T0 + 60}.items():
        ask(title, timestamp)
    ask("after all", T0 + 101)
    ask("empty", T0, 1)
    ask("unknown partition", -1, 7)
    ask("unknown topic", -1, 0, play.name("unknown"))
    ask("invalid topic", -1, 0, "a b")
    ask("current leader epoch", -1, current_leader_epoch=0)
    ask("later leader epoch", -1, current_leader_epoch=1)
    row = {"partition_index": 0, "timestamp": -1}
    play.ask("twice", replica_id=-1, topics=[{"name": topic, "partitions": [row, {**row, "timestamp": -2}]}])
    play.ask("read committed", replica_id=-1, isolation_level=1, topics=[{"name": topic, "partitions": [row]}])
    play.ask("isolation level 2", replica_id=-1, isolation_level=2, topics=[{"name": topic, "partitions": [row]}])
    play.ask("debugging consumer", replica_id=-2, topics=[{"name": topic, "partitions": [row]}])
    play.ask("no topics", replica_id=-1, topics=[])
    transactional.list_offsets(play)


def offset_for_leader_epoch(play: Play) -> None:
    topic = play.topic("t", 2)
    play.produce(topic, values("a", "b"))

    def ask(step: str, epoch: int, current: int = -1, partition: int = 0, name: str = topic, replica: int = -1) -> None:
        row = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
        play.ask(step, replica_id=replica, topics=[{"topic": name, "partitions": [row]}])

    ask("the epoch", 0)
    ask("a later epoch", 1)
    ask("no epoch", -1)
    ask("a partition without records", 0, partition=1)
    ask("current leader epoch", 0, 0)
    ask("later current leader epoch", 0, 1)
    ask("unknown partition", 0, partition=7)
    ask("unknown topic", 0, name=play.name("unknown"))
    ask("debugging consumer", 0, replica=-2)
    play.ask("no topics", replica_id=-1, topics=[])


def delete_records(play: Play) -> None:
    topic = play.topic("t", 2)
    play.produce(topic, values("a", "b"), values("c", "d"), values("e"))

    def ask(step: str, offset: int, partition: int = 0, name: str = topic) -> None:
        row = {"partition_index": partition, "offset": offset}
        play.ask(step, topics=[{"name": name, "partitions": [row]}], timeout=10_000)

    ask("up to an offset", 3)
    ask("below the log start", 1)
    ask("beyond the high watermark", 6)
    ask("negative", -2)
    ask("all", -1)
    ask("all of nothing", -1, 1)
    ask("unknown partition", 0, 7)
    ask("unknown topic", 0, name=play.name("unknown"))
    play.group("g")
    ask("an internal topic", 0, name="__consumer_offsets")
    row = {"partition_index": 0, "offset": 1}
    other = {"name": play.name("unknown"), "partitions": [row]}
    play.ask("two topics", topics=[{"name": topic, "partitions": [row]}, other], timeout=10_000)
    play.ask("no topics", topics=[], timeout=10_000)
    held = play.topic("held", cleanup_policy="compact")
    ask("a compacted topic", 0, name=held)
    play.note("log start", end_offset=play.end_offset(topic))
    transactional.delete_records(play)


def init_producer_id(play: Play) -> None:
    base = {"transactional_id": None, "transaction_timeout": 60_000}
    play.producer()
    first = play.ask("a producer", **base)["producer_id"]
    play.ask("another one", **base)
    play.ask("timeout 0", **{**base, "transaction_timeout": 0})
    play.ask("negative timeout", **{**base, "transaction_timeout": -1})
    play.ask("with its id and epoch", **base, producer_id=first, producer_epoch=0)
    play.ask("an unknown id", **base, producer_id=10**12, producer_epoch=3)
    play.ask("an id without an epoch", **base, producer_id=first, producer_epoch=-1)
    play.ask("an epoch without an id", **base, producer_id=-1, producer_epoch=0)
    play.ask("empty transactional id", transactional_id="", transaction_timeout=60_000)
    transactions.init_producer_id(play)


def describe_producers(play: Play) -> None:
    topic = play.topic("t", 2)
    first = play.producer()
    second = play.producer()
    play.produce(topic, values("a", "b", producer=(first, 0, 0)), values("c", producer=(first, 0, 2)))
    play.produce(topic, values("d", producer=(second, 3, 0)), values("no producer"))

    def ask(step: str, *partitions: int, name: str = topic) -> None:
        play.ask(step, topics=[{"name": name, "partition_indexes": list(partitions)}])

    ask("two producers", 0)
    ask("none", 1)
    ask("unknown partition", 7)
    ask("unknown topic", 0, name=play.name("unknown"))
    ask("invalid topic", 0, name="a b")
    ask("no partitions")
    play.ask("no topics", topics=[])
    transactional.describe_producers(play)
