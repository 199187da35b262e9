"""Transactions in partitions: batches, markers, the last stable offset, aborted transactions in responses."""

from tests.compat.wire.batches import CONTROL, T0, TRANSACTIONAL, modify, values
from tests.compat.wire.stories.transactions import UNKNOWN_PRODUCER_ID, Producer, fetch_result
from tests.compat.wire.story import Story, now_ms, of_api

EVERYTHING = 1 << 20
COMMITTED, UNCOMMITTED = 1, 0
FIRST_VERSION_2 = 12  # the version of Produce that adds its partitions to the transaction (KIP-890)
SEGMENTS = {"segment_ms": "9000000000000"}  # so large that no record time rolls the log


def produce(story: Story) -> None:
    """Produce with a transactional id."""
    topic = story.create_topic("transactional", 4, **SEGMENTS)
    producer = Producer(story, "p", v2=story.version >= FIRST_VERSION_2).init()

    def send(step: str, records: bytes | None, partition: int = 0, **options: object) -> None:
        fields = {"acks": -1, "timeout": 10_000, "transactional_id": producer.transactional_id, **options}
        data = [{"index": partition, "records": records}]
        sent = {"name": topic, "topic_id": story.topic_id(topic), "partition_data": data}
        story.request(f"transactional: {step}", **fields, topic_data=[sent])

    send("a partition outside of the transaction", producer.batch("a"))
    producer.record("transactional: was it added?")
    if not producer.v2:
        producer.add(topic, 0)
    first = 1 if producer.v2 else 0
    send("a partition of the transaction", producer.batch("b", sequence=first))
    send("the same again", producer.batch("b", sequence=first))
    send("a gap", producer.batch("b", sequence=9))
    other_batches(story, producer, first + 1, send)
    wrong_identities(producer, first + 2, send)
    story.request("transactional: two partitions, one unknown", **two_partitions(story, producer, topic))
    mixed_requests(story, producer, topic)
    producer.record("transactional: at the end")
    story.record("transactional: stored", **fetch_result(story, topic, isolation=UNCOMMITTED))
    previous_epoch = producer.epoch
    producer.end()
    ended = Producer(story, "p", producer.v2).use(producer.id, previous_epoch)
    send("after the end, its epoch", ended.batch("a", sequence=20))
    send("after the end, its epoch, another partition", ended.batch("a"), 3)
    send("a new epoch that begins not with sequence 0", producer.batch("a", sequence=30))
    if not producer.v2:
        producer.add(topic, 0)
    next_sequence = 0 if producer.v2 else first + 4
    send("a new transaction", producer.batch("a", sequence=next_sequence))
    Producer(story, "p").init()
    send("fenced", producer.batch("z", sequence=next_sequence + 1))
    send("fenced, another partition", producer.batch("z", sequence=0), 3)
    story.record("transactional: committed", **fetch_result(story, topic))


def other_batches(story: Story, producer: Producer, sequence: int, send: object) -> None:
    """Send non-transactional and inconsistent batches while a transaction is open."""
    assert callable(send)
    plain = producer.batch("n", sequence=sequence, transactional=False)
    send("a batch of its producer that is not transactional", plain)
    send("the same without a transactional id", plain, transactional_id=None)
    send("such a batch in another partition", producer.batch("n", sequence=0, transactional=False), 3)
    send("no transactional id", producer.batch("n", sequence=sequence), transactional_id=None)
    send("a batch without a producer", values("other", time_ms=now_ms()))
    send("a batch without a producer and without the id", values("plain", time_ms=now_ms()), transactional_id=None)
    send("a batch without a producer, another partition", values("plain", time_ms=now_ms()), 2)
    none = modify(values("n"), attributes=TRANSACTIONAL)
    send("transactional without a producer", none)
    send("transactional without a sequence", producer.batch("n", sequence=-1))
    send("a control batch", modify(producer.batch("n", sequence=sequence), attributes=TRANSACTIONAL | CONTROL))
    send("acks 1", producer.batch("n", sequence=sequence), acks=1)
    send("no records", b"")
    send("a damaged batch, another partition", modify(producer.batch("n", sequence=0), crc=1), 3)
    producer.record("transactional: was the partition of the damaged one added?")


def wrong_identities(producer: Producer, next_sequence: int, send: object) -> None:
    assert callable(send)
    for partition, where in {0: "its partition", 1: "another partition"}.items():
        sequence = next_sequence if partition == 0 else 0
        own = producer.batch("s", sequence=sequence)
        send(f"{where}: another id in the request", own, partition, transactional_id="wire.unknown")
        send(f"{where}: an empty id", producer.batch("s", sequence=sequence + 1), partition, transactional_id="")
        for title, (number, epoch) in {
            "an unknown producer": (UNKNOWN_PRODUCER_ID, producer.epoch),
            "a later epoch": (producer.id, producer.epoch + 1),
            "a negative epoch": (producer.id, -1),
        }.items():
            batch = values("s", time_ms=now_ms(), transactional=True, producer=(number, epoch, 0))
            send(f"{where}: {title}", batch, partition)


def mixed_requests(story: Story, producer: Producer, topic: str) -> None:
    """Send requests whose batches have different producers; they must have one, as they have one transactional id."""
    other = Producer(story, "other", producer.v2).init()
    later = Producer(story, "later", producer.v2).use(producer.id, producer.epoch + 1)
    batches = {
        "two producers": other.batch("m"),
        "two epochs": later.batch("m"),
        "not transactional beside": values("m", time_ms=now_ms()),
    }
    for title, batch in batches.items():
        data = [{"index": 3, "records": producer.batch("m", sequence=7)}, {"index": 1, "records": batch}]
        sent = {"name": topic, "topic_id": story.topic_id(topic), "partition_data": data}
        fields = {"acks": -1, "timeout": 10_000, "transactional_id": producer.transactional_id}
        story.request(f"transactional: {title} in a request", **fields, topic_data=[sent])


def two_partitions(story: Story, producer: Producer, topic: str) -> dict[str, object]:
    if not producer.v2:
        producer.add(topic, 3)
    data = [{"index": 3, "records": producer.batch("two", sequence=0)}, {"index": 9, "records": producer.batch("two")}]
    sent = {"name": topic, "topic_id": story.topic_id(topic), "partition_data": data}
    return {"acks": -1, "timeout": 10_000, "transactional_id": producer.transactional_id, "topic_data": [sent]}


def fetch(story: Story) -> None:
    """Fetch with both isolation levels, while transactions are open and after their end."""
    topic = story.create_topic("transactional", **SEGMENTS)
    first, second, third = (Producer(story, name).init() for name in ("one", "two", "three"))
    first.send(topic, "a", "b").end()
    second.send(topic, "c", "d")
    third.send(topic, "e")
    story.produce(topic, values("plain", time_ms=now_ms()))
    second.send(topic, "f").end(False)
    third.end(False)
    first.send(topic, "g").end(False)
    second.send(topic, "h").end()
    first.send(topic, "i")
    second.send(topic, "j").end(False)
    story.produce(topic, values("behind", time_ms=now_ms()))
    end = story.end_offset(topic)

    def request(step: str, offset: int, isolation: int = COMMITTED, size: int = EVERYTHING, **options: object) -> None:
        row = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": size, "log_start_offset": -1}
        fields = {
            "replica_id": -1,
            "max_wait": 0,
            "min_bytes": 0,
            "max_bytes": EVERYTHING,
            "isolation_level": isolation,
        }
        fetch_fields = {"topic": topic, "topic_id": story.topic_id(topic), "partitions": [row]}
        story.request(f"transactions: {step}", **{**fields, "topics": [fetch_fields], **options})

    request("uncommitted", 0, UNCOMMITTED)
    for offset in (0, 2, 4, 8, 9, 10, 13, 14, 17, end):
        request(f"committed from {offset}", offset)
    request("committed, beyond the end", end + 1)
    for offset in (0, 3, 5, 9):
        request(f"one batch from {offset}", offset, size=1)
    request("300 bytes", 3, size=300)
    waiting_fetch(story, topic, first, end)
    request("committed, when all are ended", 0)
    if story.version >= 7:
        session(story, topic, first)
    after_delete_records(story, request, topic)
    across_segments(story)


def fetch_fields(story: Story, topic: str, offset: int) -> dict[str, object]:
    row = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": EVERYTHING, "log_start_offset": -1}
    fields = {"replica_id": -1, "max_wait": 10_000, "min_bytes": 1, "max_bytes": EVERYTHING}
    topics = [{"topic": topic, "topic_id": story.topic_id(topic), "partitions": [row]}]
    return {**fields, "isolation_level": COMMITTED, "topics": topics}


def waiting_fetch(story: Story, topic: str, producer: Producer, end: int) -> None:
    """A fetch at the last stable offset waits until the transaction there ends."""
    stable = fetch_result(story, topic)["last_stable_offset"]
    assert stable < end
    finish = story.start_request("transactions: a fetch that waits for the end", **fetch_fields(story, topic, stable))
    producer.end(False)
    finish()


def session(story: Story, topic: str, producer: Producer) -> None:
    """In a session, a partition is returned when its last stable offset moves, not when only records are added."""
    start = story.end_offset(topic)
    no_wait = {"max_wait": 0, "min_bytes": 0}
    fields = {**fetch_fields(story, topic, start), **no_wait}
    opened = story.request("transactions: a session", **fields, session_id=0, session_epoch=0)
    next_fields = {**fields, "topics": [], "session_id": opened["session_id"]}
    producer.send(topic, "in a session")
    story.request("transactions: a session, records were added", **next_fields, session_epoch=1)
    story.request("transactions: a session, nothing is new", **next_fields, session_epoch=2)
    producer.end()
    story.request("transactions: a session, it was committed", **next_fields, session_epoch=3)


def after_delete_records(story: Story, request: object, topic: str) -> None:
    """The log start offset is within an aborted transaction, then within an open one."""
    assert callable(request)
    rows = [{"partition_index": 0, "offset": 4}]
    story.call("DeleteRecords", topics=[{"name": topic, "partitions": rows}], timeout=10_000)
    request("after DeleteRecords, below the log start", 3)
    request("after DeleteRecords", 4)
    open_producer = Producer(story, "deleted").init().send(topic, "x").send(topic, "y")
    rows = [{"partition_index": 0, "offset": -1}]
    story.call("DeleteRecords", topics=[{"name": topic, "partitions": rows}], timeout=10_000)
    request("all of an open transaction is deleted", story.end_offset(topic))
    open_producer.send(topic, "z")
    request("it goes on", story.end_offset(topic) - 1)
    open_producer.end(False)
    request("it is aborted", story.end_offset(topic) - 2)


def across_segments(story: Story) -> None:
    """Old records and new markers are in different segments, as the log rolls by time."""
    topic = story.create_topic("segments")
    aborted, committed = Producer(story, "old").init(), Producer(story, "older").init()
    aborted.send(topic, "a", time_ms=T0)
    committed.send(topic, "b", time_ms=T0).end()
    aborted.send(topic, "c", time_ms=T0).end(False)
    committed.send(topic, "d", time_ms=T0).end(False)
    for offset in range(story.end_offset(topic)):
        story.record(f"transactions: across segments, {offset}", **fetch_result(story, topic, offset=offset))


def list_offsets(story: Story) -> None:
    topic = story.create_topic("transactional", 2, **SEGMENTS)
    producer, other = Producer(story, "p").init(), Producer(story, "q").init()
    story.produce(topic, values("a", "b", step_ms=10))
    producer.send(topic, "c", "d", time_ms=T0 + 100, step_ms=10)
    other.send(topic, "e", time_ms=T0 + 50).end(False)
    times = {"latest": -1, "earliest": -2, "max timestamp": -3, "earliest local": -4, "before the transaction": T0 + 5,
             "in the transaction": T0 + 100, "behind it": T0 + 105, "all": 0}  # fmt: skip

    def request(title: str, isolation: int) -> None:
        for when, timestamp in times.items():
            row = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
            fields = {"replica_id": -1, "isolation_level": isolation}
            story.request(f"{title}: {when}", **fields, topics=[{"name": topic, "partitions": [row]}])

    request("open, committed", COMMITTED)
    request("open, uncommitted", UNCOMMITTED)
    producer.end(False)
    del times["max timestamp"]  # that of the markers, which is the time of the run
    request("aborted, committed", COMMITTED)


def describe_producers(story: Story) -> None:
    topic = story.create_topic("transactional", 2, **SEGMENTS)
    producer = Producer(story, "p", v2=False).init()

    def request(step: str) -> None:
        story.request(f"transactional: {step}", topics=[{"name": topic, "partition_indexes": [0, 1]}])

    producer.add(topic, 0, 1)
    request("partitions without records")
    producer.send(topic, "a", "b")
    request("open")
    producer.send(topic, "c")
    request("more records")
    producer.end()
    request("committed, one partition without records")
    producer.v2 = True
    producer.send(topic, "d")
    request("open again")
    producer.end(False)
    request("aborted by a client of 4.0")
    Producer(story, "p").init()
    request("begun anew")


def delete_records(story: Story) -> None:
    topic = story.create_topic("transactional", **SEGMENTS)
    producer = Producer(story, "p").init().send(topic, "a", "b")
    story.produce(topic, values("c", time_ms=now_ms()))
    for offset in (1, 2, -1):
        rows = [{"partition_index": 0, "offset": offset}]
        story.request(f"an open transaction, {offset}", topics=[{"name": topic, "partitions": rows}], timeout=10_000)
        story.record(f"an open transaction, {offset}: read", **fetch_result(story, topic, offset=max(offset, 0)))
    producer.end()


@of_api("WriteTxnMarkers", "transactions")
def write_markers(story: Story) -> None:
    """WriteTxnMarkers, sent by brokers, and by administrators to end hanging transactions."""
    topic = story.create_topic("t", 4, **SEGMENTS)

    def marker(producer: tuple[int, int], *partitions: int, name: str = topic, committed: bool = True,
               coordinator: int = 0, version: int = 0) -> dict[str, object]:  # fmt: skip
        topics = [{"name": name, "partition_indexes": list(partitions)}]
        ends = {"producer_id": producer[0], "producer_epoch": producer[1], "transaction_result": committed}
        return {**ends, "topics": topics, "coordinator_epoch": coordinator, "transaction_version": version}

    def request(step: str, *markers: dict[str, object]) -> None:
        story.request(step, markers=list(markers))

    def record_partition(step: str, partition: int) -> None:
        rows = [{"name": topic, "partition_indexes": [partition]}]
        story.record(f"{step}: producers", **story.try_call("DescribeProducers", topics=rows))
        story.record(f"{step}: log", **fetch_result(story, topic, partition))

    producer_id = UNKNOWN_PRODUCER_ID
    request("nothing was written", marker((producer_id, 3), 0))
    request("again", marker((producer_id, 3), 0))
    request("abort", marker((producer_id, 3), 0, committed=False))
    request("a later epoch", marker((producer_id, 5), 0))
    request("an earlier epoch", marker((producer_id, 4), 0))
    request("a later coordinator", marker((producer_id, 5), 0, coordinator=7))
    request("an earlier coordinator", marker((producer_id, 5), 0, coordinator=6))
    request("another producer, an earlier coordinator", marker((producer_id + 1, 0), 0, coordinator=6))
    request("no coordinator epoch", marker((producer_id + 2, 0), 0, coordinator=-1))
    record_partition("markers alone", 0)
    request("unknown partition", marker((producer_id, 5), 1, 9))
    request("unknown topic", marker((producer_id, 5), 0, name=story.name("unknown")))
    request("a negative producer id", marker((-1, 0), 1))
    request("a negative epoch", marker((producer_id, -1), 1))
    request("no markers")
    request("no partitions", marker((producer_id, 5)))
    request("no topics", {**marker((producer_id, 5)), "topics": []})
    request("two producers", marker((producer_id, 9), 2), marker((producer_id + 1, 9), 2, 3))
    request("one producer twice", marker((producer_id, 10), 2), marker((producer_id, 10), 3, committed=False))
    record_partition("several markers", 2)
    for version in (0, 1, 2) if story.version >= 2 else (0,):
        to_open_transactions(story, topic, marker, request, record_partition, version)
    if story.version >= 2:
        request("transaction version 3", marker((producer_id, 20), 3, version=3))
        request("transaction version -1", marker((producer_id, 20), 3, version=-1))


def to_open_transactions(
    story: Story, topic: str, marker: object, request: object, record_partition: object, version: int
) -> None:
    assert callable(marker)
    assert callable(request)
    assert callable(record_partition)
    title = f"transaction version {version}"
    Producer(story, f"p{version}").init()
    producer = Producer(story, f"p{version}").init().send(topic, "a", partition=1)
    number, epoch = producer.id, producer.epoch

    def end(step: str, epoch: int, committed: bool) -> None:
        request(f"{title}, {step}", marker((number, epoch), 1, committed=committed, version=version))

    end("an earlier epoch", epoch - 1, True)
    end("its epoch", epoch, False)
    record_partition(f"{title}, its epoch", 1)
    end("a later epoch", epoch + 1, True)
    end("a later epoch, again", epoch + 1, True)
    end("its epoch, late", epoch, False)
    record_partition(f"{title}, a later epoch", 1)
