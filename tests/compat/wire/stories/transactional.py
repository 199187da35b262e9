"""Transactions as their partitions see them: batches, markers, the last stable offset, what is told of aborts."""

from tests.compat.wire.batches import CONTROL, T0, TRANSACTIONAL, broken, values
from tests.compat.wire.play import Play, now_ms
from tests.compat.wire.stories.transactions import NEVER_GIVEN_OUT, Producer, fetched

EVERYTHING = 1 << 20
COMMITTED, UNCOMMITTED = 1, 0
ADDED_BY_PRODUCE = 12  # the version of Produce that adds its partitions to the transaction (KIP-890)
SEGMENTS = {"segment_ms": "9000000000000"}  # whatever the records' times are, the log does not roll


def produce(play: Play) -> None:
    """Produce with a transactional id."""
    topic = play.topic("transactional", 4, **SEGMENTS)
    producer = Producer(play, "p", v2=play.version >= ADDED_BY_PRODUCE).init()

    def send(step: str, records: bytes | None, partition: int = 0, **how: object) -> None:
        asked = {"acks": -1, "timeout": 10_000, "transactional_id": producer.transactional_id, **how}
        data = [{"index": partition, "records": records}]
        sent = {"name": topic, "topic_id": play.id(topic), "partition_data": data}
        play.ask(f"transactional: {step}", **asked, topic_data=[sent])

    send("a partition outside of the transaction", producer.batch("a"))
    producer.note("transactional: was it added?")
    if not producer.v2:
        producer.add(topic, 0)
    first = 1 if producer.v2 else 0
    send("a partition of the transaction", producer.batch("b", sequence=first))
    send("the same again", producer.batch("b", sequence=first))
    send("a gap", producer.batch("b", sequence=9))
    within(play, producer, first + 1, send)
    strangers(producer, first + 2, send)
    play.ask("transactional: two partitions, one unknown", **two(play, producer, topic))
    mixed_requests(play, producer, topic)
    producer.note("transactional: at the end")
    play.note("transactional: stored", **fetched(play, topic, isolation=UNCOMMITTED))
    was = producer.epoch
    producer.end()
    ended = Producer(play, "p", producer.v2).now(producer.id, was)
    send("after the end, its epoch", ended.batch("a", sequence=20))
    send("after the end, its epoch, another partition", ended.batch("a"), 3)
    send("a new epoch that begins not with sequence 0", producer.batch("a", sequence=30))
    if not producer.v2:
        producer.add(topic, 0)
    again = 0 if producer.v2 else first + 4
    send("a new transaction", producer.batch("a", sequence=again))
    Producer(play, "p").init()
    send("fenced", producer.batch("z", sequence=again + 1))
    send("fenced, another partition", producer.batch("z", sequence=0), 3)
    play.note("transactional: committed", **fetched(play, topic))


def within(play: Play, producer: Producer, sequence: int, send: object) -> None:
    """What is not transactional, or half of it, beside an open transaction."""
    assert callable(send)
    plain = producer.batch("n", sequence=sequence, transactional=False)
    send("a batch of its producer that is not transactional", plain)
    send("the same without a transactional id", plain, transactional_id=None)
    send("such a batch in another partition", producer.batch("n", sequence=0, transactional=False), 3)
    send("no transactional id", producer.batch("n", sequence=sequence), transactional_id=None)
    send("a batch without a producer", values("other", time_ms=now_ms()))
    send("a batch without a producer and without the id", values("plain", time_ms=now_ms()), transactional_id=None)
    send("a batch without a producer, another partition", values("plain", time_ms=now_ms()), 2)
    none = broken(values("n"), attributes=TRANSACTIONAL)
    send("transactional without a producer", none)
    send("transactional without a sequence", producer.batch("n", sequence=-1))
    send("a control batch", broken(producer.batch("n", sequence=sequence), attributes=TRANSACTIONAL | CONTROL))
    send("acks 1", producer.batch("n", sequence=sequence), acks=1)
    send("no records", b"")
    send("a damaged batch, another partition", broken(producer.batch("n", sequence=0), crc=1), 3)
    producer.note("transactional: was the partition of the damaged one added?")


def strangers(producer: Producer, next_sequence: int, send: object) -> None:
    assert callable(send)
    for partition, where in {0: "its partition", 1: "another partition"}.items():
        sequence = next_sequence if partition == 0 else 0
        own = producer.batch("s", sequence=sequence)
        send(f"{where}: another id in the request", own, partition, transactional_id="wire.unknown")
        send(f"{where}: an empty id", producer.batch("s", sequence=sequence + 1), partition, transactional_id="")
        for title, (number, epoch) in {
            "an unknown producer": (NEVER_GIVEN_OUT, producer.epoch),
            "a later epoch": (producer.id, producer.epoch + 1),
            "a negative epoch": (producer.id, -1),
        }.items():
            batch = values("s", time_ms=now_ms(), transactional=True, producer=(number, epoch, 0))
            send(f"{where}: {title}", batch, partition)


def mixed_requests(play: Play, producer: Producer, topic: str) -> None:
    """A request has one transactional id, so its transactional batches are of one producer and one epoch."""
    other = Producer(play, "other", producer.v2).init()
    later = Producer(play, "later", producer.v2).now(producer.id, producer.epoch + 1)
    batches = {
        "two producers": other.batch("m"),
        "two epochs": later.batch("m"),
        "not transactional beside": values("m", time_ms=now_ms()),
    }
    for title, batch in batches.items():
        data = [{"index": 3, "records": producer.batch("m", sequence=7)}, {"index": 1, "records": batch}]
        sent = {"name": topic, "topic_id": play.id(topic), "partition_data": data}
        asked = {"acks": -1, "timeout": 10_000, "transactional_id": producer.transactional_id}
        play.ask(f"transactional: {title} in a request", **asked, topic_data=[sent])


def two(play: Play, producer: Producer, topic: str) -> dict[str, object]:
    if not producer.v2:
        producer.add(topic, 3)
    data = [{"index": 3, "records": producer.batch("two", sequence=0)}, {"index": 9, "records": producer.batch("two")}]
    sent = {"name": topic, "topic_id": play.id(topic), "partition_data": data}
    return {"acks": -1, "timeout": 10_000, "transactional_id": producer.transactional_id, "topic_data": [sent]}


def fetch(play: Play) -> None:
    """Fetch in both isolation levels, while transactions are open and after they are ended."""
    topic = play.topic("transactional", **SEGMENTS)
    first, second, third = (Producer(play, name).init() for name in ("one", "two", "three"))
    first.send(topic, "a", "b").end()
    second.send(topic, "c", "d")
    third.send(topic, "e")
    play.produce(topic, values("plain", time_ms=now_ms()))
    second.send(topic, "f").end(False)
    third.end(False)
    first.send(topic, "g").end(False)
    second.send(topic, "h").end()
    first.send(topic, "i")
    second.send(topic, "j").end(False)
    play.produce(topic, values("behind", time_ms=now_ms()))
    end = play.end_offset(topic)

    def ask(step: str, offset: int, isolation: int = COMMITTED, size: int = EVERYTHING, **how: object) -> None:
        row = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": size, "log_start_offset": -1}
        asked = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": EVERYTHING, "isolation_level": isolation}
        wanted = {"topic": topic, "topic_id": play.id(topic), "partitions": [row]}
        play.ask(f"transactions: {step}", **{**asked, "topics": [wanted], **how})

    ask("uncommitted", 0, UNCOMMITTED)
    for offset in (0, 2, 4, 8, 9, 10, 13, 14, 17, end):
        ask(f"committed from {offset}", offset)
    ask("committed, beyond the end", end + 1)
    for offset in (0, 3, 5, 9):
        ask(f"one batch from {offset}", offset, size=1)
    ask("300 bytes", 3, size=300)
    waiting(play, topic, first, end)
    ask("committed, when all are ended", 0)
    if play.version >= 7:
        session(play, topic, first)
    after_delete_records(play, ask, topic)
    across_segments(play)


def wanted(play: Play, topic: str, offset: int) -> dict[str, object]:
    row = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": EVERYTHING, "log_start_offset": -1}
    asked = {"replica_id": -1, "max_wait": 10_000, "min_bytes": 1, "max_bytes": EVERYTHING}
    topics = [{"topic": topic, "topic_id": play.id(topic), "partitions": [row]}]
    return {**asked, "isolation_level": COMMITTED, "topics": topics}


def waiting(play: Play, topic: str, producer: Producer, end: int) -> None:
    """Whoever waits at the last stable offset is answered when the transaction there is ended."""
    stable = fetched(play, topic)["last_stable_offset"]
    assert stable < end
    finish = play.begin("transactions: a fetch that waits for the end", **wanted(play, topic, stable))
    producer.end(False)
    finish()


def session(play: Play, topic: str, producer: Producer) -> None:
    """A session tells a partition whose last stable offset has moved, and not one where only records were added."""
    start = play.end_offset(topic)
    once = {"max_wait": 0, "min_bytes": 0}
    asked = {**wanted(play, topic, start), **once}
    opened = play.ask("transactions: a session", **asked, session_id=0, session_epoch=0)
    more = {**asked, "topics": [], "session_id": opened["session_id"]}
    producer.send(topic, "in a session")
    play.ask("transactions: a session, records were added", **more, session_epoch=1)
    play.ask("transactions: a session, nothing is new", **more, session_epoch=2)
    producer.end()
    play.ask("transactions: a session, it was committed", **more, session_epoch=3)


def after_delete_records(play: Play, ask: object, topic: str) -> None:
    """The log may begin within an aborted transaction, and within an open one."""
    assert callable(ask)
    rows = [{"partition_index": 0, "offset": 4}]
    play.do("DeleteRecords", topics=[{"name": topic, "partitions": rows}], timeout=10_000)
    ask("after DeleteRecords, below the log start", 3)
    ask("after DeleteRecords", 4)
    opened = Producer(play, "deleted").init().send(topic, "x").send(topic, "y")
    rows = [{"partition_index": 0, "offset": -1}]
    play.do("DeleteRecords", topics=[{"name": topic, "partitions": rows}], timeout=10_000)
    ask("all of an open transaction is deleted", play.end_offset(topic))
    opened.send(topic, "z")
    ask("it goes on", play.end_offset(topic) - 1)
    opened.end(False)
    ask("it is aborted", play.end_offset(topic) - 2)


def across_segments(play: Play) -> None:
    """Records of long ago and markers of now lie in segments of their own."""
    topic = play.topic("segments")
    aborted, committed = Producer(play, "old").init(), Producer(play, "older").init()
    aborted.send(topic, "a", time_ms=T0)
    committed.send(topic, "b", time_ms=T0).end()
    aborted.send(topic, "c", time_ms=T0).end(False)
    committed.send(topic, "d", time_ms=T0).end(False)
    for offset in range(play.end_offset(topic)):
        play.note(f"transactions: across segments, {offset}", **fetched(play, topic, offset=offset))


def list_offsets(play: Play) -> None:
    topic = play.topic("transactional", 2, **SEGMENTS)
    producer, other = Producer(play, "p").init(), Producer(play, "q").init()
    play.produce(topic, values("a", "b", step_ms=10))
    producer.send(topic, "c", "d", time_ms=T0 + 100, step_ms=10)
    other.send(topic, "e", time_ms=T0 + 50).end(False)
    times = {"latest": -1, "earliest": -2, "max timestamp": -3, "earliest local": -4, "before the transaction": T0 + 5,
             "in the transaction": T0 + 100, "behind it": T0 + 105, "all": 0}  # fmt: skip

    def ask(title: str, isolation: int) -> None:
        for when, timestamp in times.items():
            row = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
            asked = {"replica_id": -1, "isolation_level": isolation}
            play.ask(f"{title}: {when}", **asked, topics=[{"name": topic, "partitions": [row]}])

    ask("open, committed", COMMITTED)
    ask("open, uncommitted", UNCOMMITTED)
    producer.end(False)
    del times["max timestamp"]  # the markers' is the time of day
    ask("aborted, committed", COMMITTED)


def describe_producers(play: Play) -> None:
    topic = play.topic("transactional", 2, **SEGMENTS)
    producer = Producer(play, "p", v2=False).init()

    def ask(step: str) -> None:
        play.ask(f"transactional: {step}", topics=[{"name": topic, "partition_indexes": [0, 1]}])

    producer.add(topic, 0, 1)
    ask("partitions without records")
    producer.send(topic, "a", "b")
    ask("open")
    producer.send(topic, "c")
    ask("more records")
    producer.end()
    ask("committed, one partition without records")
    producer.v2 = True
    producer.send(topic, "d")
    ask("open again")
    producer.end(False)
    ask("aborted by a client of 4.0")
    Producer(play, "p").init()
    ask("begun anew")


def delete_records(play: Play) -> None:
    topic = play.topic("transactional", **SEGMENTS)
    producer = Producer(play, "p").init().send(topic, "a", "b")
    play.produce(topic, values("c", time_ms=now_ms()))
    for offset in (1, 2, -1):
        rows = [{"partition_index": 0, "offset": offset}]
        play.ask(f"an open transaction, {offset}", topics=[{"name": topic, "partitions": rows}], timeout=10_000)
        play.note(f"an open transaction, {offset}: read", **fetched(play, topic, offset=max(offset, 0)))
    producer.end()


def write_markers(play: Play) -> None:
    """WriteTxnMarkers, which brokers send each other and administrators to end what hangs."""
    topic = play.topic("t", 4, **SEGMENTS)

    def marker(producer: tuple[int, int], *partitions: int, name: str = topic, committed: bool = True,
               coordinator: int = 0, version: int = 0) -> dict[str, object]:  # fmt: skip
        topics = [{"name": name, "partition_indexes": list(partitions)}]
        ends = {"producer_id": producer[0], "producer_epoch": producer[1], "transaction_result": committed}
        return {**ends, "topics": topics, "coordinator_epoch": coordinator, "transaction_version": version}

    def ask(step: str, *markers: dict[str, object]) -> None:
        play.ask(step, markers=list(markers))

    def seen(step: str, partition: int) -> None:
        rows = [{"name": topic, "partition_indexes": [partition]}]
        play.note(f"{step}: producers", **play.try_("DescribeProducers", topics=rows))
        play.note(f"{step}: log", **fetched(play, topic, partition))

    one = NEVER_GIVEN_OUT
    ask("nothing was written", marker((one, 3), 0))
    ask("again", marker((one, 3), 0))
    ask("abort", marker((one, 3), 0, committed=False))
    ask("a later epoch", marker((one, 5), 0))
    ask("an earlier epoch", marker((one, 4), 0))
    ask("a later coordinator", marker((one, 5), 0, coordinator=7))
    ask("an earlier coordinator", marker((one, 5), 0, coordinator=6))
    ask("another producer, an earlier coordinator", marker((one + 1, 0), 0, coordinator=6))
    ask("no coordinator epoch", marker((one + 2, 0), 0, coordinator=-1))
    seen("markers alone", 0)
    ask("unknown partition", marker((one, 5), 1, 9))
    ask("unknown topic", marker((one, 5), 0, name=play.name("unknown")))
    ask("a negative producer id", marker((-1, 0), 1))
    ask("a negative epoch", marker((one, -1), 1))
    ask("no markers")
    ask("no partitions", marker((one, 5)))
    ask("no topics", {**marker((one, 5)), "topics": []})
    ask("two producers", marker((one, 9), 2), marker((one + 1, 9), 2, 3))
    ask("one producer twice", marker((one, 10), 2), marker((one, 10), 3, committed=False))
    seen("several markers", 2)
    for version in (0, 1, 2) if play.version >= 2 else (0,):
        to_open_transactions(play, topic, marker, ask, seen, version)
    if play.version >= 2:
        ask("transaction version 3", marker((one, 20), 3, version=3))
        ask("transaction version -1", marker((one, 20), 3, version=-1))


def to_open_transactions(play: Play, topic: str, marker: object, ask: object, seen: object, version: int) -> None:
    assert callable(marker)
    assert callable(ask)
    assert callable(seen)
    title = f"transaction version {version}"
    Producer(play, f"p{version}").init()
    producer = Producer(play, f"p{version}").init().send(topic, "a", partition=1)
    number, epoch = producer.id, producer.epoch

    def end(step: str, epoch: int, committed: bool) -> None:
        ask(f"{title}, {step}", marker((number, epoch), 1, committed=committed, version=version))

    end("an earlier epoch", epoch - 1, True)
    end("its epoch", epoch, False)
    seen(f"{title}, its epoch", 1)
    end("a later epoch", epoch + 1, True)
    end("a later epoch, again", epoch + 1, True)
    end("its epoch, late", epoch, False)
    seen(f"{title}, a later epoch", 1)
