"""Transactions as their coordinator sees them: begun, ended, fenced, described."""

from collections.abc import Mapping
from typing import Any

from tests.compat.wire.batches import values
from tests.compat.wire.play import Answer, Play, now_ms

TIMEOUT_MS = 60_000
NEVER_GIVEN_OUT = 10**12  # a producer id
BUSY = "CONCURRENT_TRANSACTIONS"
Partitions = Mapping[str, list[int]]  # by topic


class Producer:
    """A transactional producer that the story prepares. `v2`: as clients since Kafka 4.0 are (KIP-890)."""

    def __init__(self, play: Play, name: str, v2: bool = True) -> None:
        self.play, self.transactional_id, self.v2 = play, play.name(name), v2
        self.id, self.epoch = -1, -1
        self._sequences: dict[tuple[str, int], int] = {}

    def init(self) -> "Producer":
        """Gets its id, and the next epoch. What an earlier one has left open is aborted."""
        asked = {"transactional_id": self.transactional_id, "transaction_timeout": TIMEOUT_MS}
        self.play.until("FindCoordinator", _found, key_type=1, coordinator_keys=[self.transactional_id])
        answer = self.play.until("InitProducerId", lambda got: got["error_code"] == "NONE", **asked)
        return self.now(answer["producer_id"], answer["producer_epoch"])

    def now(self, producer_id: int, epoch: int) -> "Producer":
        """Goes on with this id and epoch; a new epoch begins with sequence 0."""
        if (producer_id, epoch) != (self.id, self.epoch):
            self._sequences.clear()
        self.id, self.epoch = producer_id, epoch
        self.play.learn("producer_id", producer_id)
        return self

    def who(self, **more: Any) -> dict[str, Any]:
        """The fields by which its requests name it."""
        asked = {"transactional_id": self.transactional_id, "producer_id": self.id, "producer_epoch": self.epoch}
        return asked | more

    def add(self, topic: str, *partitions: int) -> "Producer":
        """The partitions belong to its transaction, as clients before 4.0 have to say."""
        added = {"v3_and_below_topics": [{"name": topic, "partitions": list(partitions)}]}
        self.play.do_in(3, "AddPartitionsToTxn", **_older(self.who()), **added)
        return self

    def batch(self, *texts: str, sequence: int | None = None, topic: str = "", partition: int = 0, **how: Any) -> bytes:
        """A batch of its transaction, with the next sequence of the partition if none is named."""
        if sequence is None:
            sequence = self._sequences.get((topic, partition), 0)
            self._sequences[topic, partition] = sequence + len(texts)
        how = {"time_ms": now_ms(), "transactional": True, **how}
        return values(*texts, producer=(self.id, self.epoch, sequence), **how)

    def send(self, topic: str, *texts: str, partition: int = 0, **how: Any) -> "Producer":
        """Writes records of its transaction."""
        if not self.v2:
            self.add(topic, partition)
        data = [{"index": partition, "records": self.batch(*texts, topic=topic, partition=partition, **how)}]
        sent = {"name": topic, "topic_id": self.play.id(topic), "partition_data": data}
        version = self.play.cluster.highest("Produce") if self.v2 else 11
        asked = {"transactional_id": self.transactional_id, "acks": -1, "timeout": 10_000, "topic_data": [sent]}
        self.play.do_in(version, "Produce", **asked)
        return self

    def end(self, committed: bool = True) -> "Producer":
        """Ends its transaction, and returns when that has reached every partition."""
        self.play.do_in(5 if self.v2 else 4, "EndTxn", **self.who(committed=committed))
        return self.settled()

    def settled(self) -> "Producer":
        """Returns when its coordinator has nothing to do for it; goes on with the epoch that it has then."""
        told = self.play.until("DescribeTransactions", _settled, transactional_ids=[self.transactional_id])
        [state] = told["transaction_states"]
        return self.now(state["producer_id"], state["producer_epoch"])

    def note(self, step: str) -> None:
        """Records what the coordinator knows of it."""
        [found] = self.play.do("DescribeTransactions", transactional_ids=[self.transactional_id])["transaction_states"]
        names = ("transaction_state", "transaction_timeout", "producer_id", "producer_epoch", "topics")
        for row in found["topics"]:
            if row["topic"] == "__consumer_offsets":  # which of them is a matter of the group's name
                row["partitions"] = [f"<{len(row['partitions'])} of them>"]
        self.play.note(step, **{name: found[name] for name in names})


def _found(answer: Answer) -> bool:
    return "NONE" in str(answer)


def _settled(answer: Answer) -> bool:
    return not answer["transaction_states"][0]["transaction_state"].startswith("Prepare")


def _older(who: dict[str, Any]) -> dict[str, Any]:
    return {f"v3_and_below_{name}": value for name, value in who.items()}


def not_busy(answer: Answer) -> bool:
    """Not while the coordinator still ends the transaction before."""
    return BUSY not in str(answer)


def init_producer_id(play: Play) -> None:
    """InitProducerId with a transactional id: KIP-98, and since version 3 KIP-360."""
    producer = Producer(play, "p").init()

    def ask(step: str, name: str = "p", **more: object) -> Answer:
        named = {"transactional_id": play.name(name), "transaction_timeout": TIMEOUT_MS}
        return play.ask_until(step, not_busy, **{**named, **more})

    for timeout in (0, -1, 900_001, 900_000):
        ask(f"a transaction's timeout of {timeout}", transaction_timeout=timeout)
    producer.note("the timeout is the last one")
    producer.init()
    ask("a new epoch")
    if play.version >= 3:
        with_id_and_epoch(play, producer)
    topic = play.topic("t")
    for v2 in (True, False):
        left_open(play, topic, v2)


def with_id_and_epoch(play: Play, producer: Producer) -> None:
    """A producer that has failed and goes on names its id and epoch, and gets the next epoch once (KIP-360)."""

    def ask(step: str, epoch: int, producer_id: int | None = None, **more: object) -> None:
        named = producer.who(producer_epoch=epoch, transaction_timeout=TIMEOUT_MS)
        play.ask(step, **named | ({} if producer_id is None else {"producer_id": producer_id}) | more)

    epoch = producer.settled().epoch
    ask("its epoch", epoch)
    ask("its epoch again, as the answer was lost", epoch)
    ask("the epoch before", epoch - 1)
    ask("a later epoch", epoch + 5)
    ask("another id", epoch + 1, NEVER_GIVEN_OUT)
    ask("an id and no epoch", -1)
    ask("an epoch and no id", epoch + 1, -1)
    ask("a negative id", epoch + 1, -5)
    ask("a negative epoch", -5)
    unknown = {"transactional_id": play.name("unknown"), "transaction_timeout": TIMEOUT_MS}
    play.ask("unknown, with an id and an epoch", **unknown, producer_id=NEVER_GIVEN_OUT, producer_epoch=7)
    topic = play.topic("lost")
    for v2 in (True, False):
        title = "v2" if v2 else "v1"
        lost = Producer(play, f"lost.{title}", v2).init().send(topic, "a")
        before = lost.epoch
        lost.end()
        named = lost.who(producer_epoch=before, transaction_timeout=TIMEOUT_MS)
        play.ask(f"{title}: the epoch of a committed transaction", **named)
        lost.settled().note(f"{title}: after it")
        lost.send(topic, "b")
        named = lost.who(transaction_timeout=TIMEOUT_MS)
        play.ask(f"{title}: its epoch in a transaction", **named)
        play.ask_until(f"{title}: its epoch, when that is aborted", not_busy, **named)
        play.ask(f"{title}: once more", **named)
        lost.note(f"{title}: after the abort")


def left_open(play: Play, topic: str, v2: bool) -> None:
    """A transaction that the one before has left is aborted, and who comes gets the epoch after that."""
    title = "v2" if v2 else "v1"
    producer = Producer(play, f"left.{title}", v2).init().send(topic, "a")
    named = {"transactional_id": producer.transactional_id, "transaction_timeout": 30_000}
    play.ask(f"{title}: a transaction is open", **named)
    play.ask_until(f"{title}: when it is aborted", not_busy, **named)
    producer.note(f"{title}: the new one")
    play.note(f"{title}: the old one commits", **refused(play, producer, "EndTxn", committed=True))
    producer.settled().send(topic, "b").end()


def refused(play: Play, producer: Producer, api: str, **more: Any) -> Answer:
    """The answer to a request of its API in the highest version."""
    return play.try_(api, **producer.who(**more))


def end_txn(play: Play) -> None:
    v2 = play.version >= 5
    topic = play.topic("t", 2)
    producer = Producer(play, "p", v2).init()

    def ask(step: str, committed: bool, **more: object) -> None:
        """Asks, and notes what the coordinator makes of it; the producer goes on with that."""
        play.ask(step, **producer.who(committed=committed, **more))
        producer.settled().note(f"{step}: afterwards")

    ask("commit of a transaction that was never begun", True)
    ask("abort of a transaction that was never begun", False)
    for committed in (True, False):
        title = "commit" if committed else "abort"
        was = producer.send(topic, "a", "b").epoch
        ask(title, committed)
        ask(f"{title}, again", committed, producer_epoch=was)
        ask(f"the other one after the {title}", not committed, producer_epoch=was)
        ask(f"commit of nothing after the {title}", True)
        ask(f"abort of nothing after the {title}", False)
        ask(f"commit with the epoch of before the {title}", True, producer_epoch=was - 1)
    producer.add(topic, 0, 1)
    ask("commit of partitions without records", True)
    log(play, topic)
    whoever(play, producer.send(topic, "c"))
    fenced(play, topic, v2)
    if v2:
        mixed(play, topic)


def log(play: Play, topic: str) -> None:
    """What a consumer that reads committed finds, markers included."""
    for partition in (0, 1):
        play.note(f"the log of partition {partition}", **fetched(play, topic, partition))


def fetched(play: Play, topic: str, partition: int = 0, offset: int = 0, isolation: int = 1) -> Answer:
    """What a Fetch tells of a partition, but for what is the same always."""
    row = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20, "log_start_offset": -1}
    asked = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "isolation_level": isolation}
    wanted = [{"topic": topic, "topic_id": play.id(topic), "partitions": [row]}]
    [found] = play.try_("Fetch", **asked, topics=wanted)["responses"][0]["partitions"]
    names = ("error_code", "high_watermark", "last_stable_offset", "log_start_offset", "aborted_transactions")
    return {name: found[name] for name in (*names, "records")}


def whoever(play: Play, producer: Producer) -> None:
    """Who is not the producer of the open transaction cannot end it."""
    strangers = {
        "an unknown transactional id": {"transactional_id": play.name("unknown")},
        "an empty transactional id": {"transactional_id": ""},
        "another producer id": {"producer_id": NEVER_GIVEN_OUT},
        "a negative producer id": {"producer_id": -1},
        "a later epoch": {"producer_epoch": producer.epoch + 1},
        "an earlier epoch": {"producer_epoch": producer.epoch - 1},
        "a negative epoch": {"producer_epoch": -1},
    }
    for title, named in strangers.items():
        for committed in (True, False):
            play.ask(f"{'commit' if committed else 'abort'} by {title}", **producer.who(committed=committed, **named))
    producer.note("it is still open")


def fenced(play: Play, topic: str, v2: bool) -> None:
    """Another producer has come with the same transactional id."""
    old = Producer(play, "fenced", v2).init().send(topic, "a").end().send(topic, "b")
    new = Producer(play, "fenced", v2).init()
    play.ask("commit by a fenced producer", **old.who(committed=True))
    play.ask("abort by a fenced producer", **old.who(committed=False))
    new.send(topic, "c")
    play.ask("commit by a fenced producer in the new one's transaction", **old.who(committed=True))
    play.ask("commit by the new producer", **new.who(committed=True))
    new.settled().note("the new producer")


def mixed(play: Play, topic: str) -> None:
    """Clients of both kinds, one after the other."""
    producer = Producer(play, "mixed", v2=False).init().send(topic, "a")
    play.ask("v1 has begun it", **producer.who(committed=True))
    producer.settled().note("v1 has begun it: afterwards")
    producer.v2 = True
    producer.send(topic, "b")
    producer.v2 = False
    producer.end().note("v1 ends what v2 has begun")
    play.ask("v2 commits what v1 has committed", **producer.who(committed=True))
    play.ask("v2 aborts what v1 has committed", **producer.who(committed=False))
    producer.settled().note("v2 aborts: afterwards")


def add_partitions(play: Play) -> None:
    """Versions 0-3 are for clients, 4 and 5 for brokers, which may ask whether partitions are in a transaction."""
    topic, other = play.topic("t", 4), play.topic("u")
    producer = Producer(play, "p", v2=False).init()

    def ask(step: str, partitions: Partitions, check: bool = False, **who: object) -> None:
        topics = [{"name": name, "partitions": indexes} for name, indexes in partitions.items()]
        named = producer.who(**who)
        rows = [{**named, "verify_only": check, "topics": topics}]
        play.ask(step, **_older(named), v3_and_below_topics=topics, transactions=rows)

    unknown = play.name("unknown")
    ask("unknown topic", {unknown: [0]})
    ask("unknown partition", {topic: [0, 9]})
    ask("unknown and known topics", {unknown: [0], topic: [0]})
    producer.note("nothing was added")
    ask("two topics", {topic: [0, 1], other: [0]})
    producer.note("they are added")
    ask("once more", {topic: [1, 0]})
    ask("another one", {topic: [2]})
    ask("one twice", {topic: [3, 3]})
    ask("no topics", {})
    ask("no partitions", {topic: []})
    ask("a negative partition", {topic: [-1]})
    ask("an internal topic", {"__transaction_state": [0]})
    producer.note("all that was added")
    strangers = {
        "an unknown transactional id": {"transactional_id": play.name("unknown")},
        "an empty transactional id": {"transactional_id": ""},
        "another producer id": {"producer_id": NEVER_GIVEN_OUT},
        "a later epoch": {"producer_epoch": producer.epoch + 1},
        "an earlier epoch": {"producer_epoch": producer.epoch - 1},
    }
    for title, named in strangers.items():
        ask(title, {topic: [0]}, **named)
        if play.version >= 4:
            ask(f"check: {title}", {topic: [0]}, check=True, **named)
    if play.version >= 4:
        verified(play, producer, ask, topic)
    producer.end()
    ask("a new transaction", {topic: [1]})
    producer.note("of it")
    Producer(play, "p").init()
    ask("a fenced producer", {topic: [1]})


def verified(play: Play, producer: Producer, ask: Any, topic: str) -> None:
    other = play.topic("v", 2)
    ask("check: in the transaction", {topic: [0, 1]}, check=True)
    ask("check: some are not", {topic: [0], other: [0, 1]}, check=True)
    ask("check: unknown topic", {play.name("unknown"): [0]}, check=True)
    ask("check: no topics", {}, check=True)
    producer.note("checking adds nothing")
    idle = Producer(play, "idle").init()
    ask("check: no transaction", {topic: [0]}, check=True, **idle.who())
    idle.send(topic, "a").end()
    ask("check: a complete transaction", {topic: [0]}, check=True, **idle.who())
    rows = [{"topics": [{"name": topic, "partitions": [0]}], "verify_only": True, **who} for who in
            (producer.who(), idle.who())]  # fmt: skip
    play.ask("check: two transactions", transactions=rows)
    rows = [{**producer.who(), "verify_only": check, "topics": rows[0]["topics"]} for check in (True, False)]
    play.ask("check and add in one request", transactions=rows)


def add_offsets(play: Play) -> None:
    group = play.group("g")
    producer = Producer(play, "p", v2=False).init()

    def ask(step: str, name: str = group, **who: object) -> None:
        play.ask(step, **producer.who(group_id=name, **who))

    ask("an unknown transactional id", transactional_id=play.name("unknown"))
    ask("an empty transactional id", transactional_id="")
    ask("another producer id", producer_id=NEVER_GIVEN_OUT)
    ask("a later epoch", producer_epoch=producer.epoch + 1)
    ask("an earlier epoch", producer_epoch=producer.epoch - 1)
    producer.note("nothing was added")
    ask("a group")
    ask("again")
    ask("an unknown group", play.name("unknown"))
    ask("an empty group id", "")
    producer.end().note("nothing was committed, and it ended")
    ask("a new transaction")
    Producer(play, "p").init()
    ask("a fenced producer")


def describe_transactions(play: Play) -> None:
    topic, other = play.topic("t", 3), play.topic("u")
    producer = Producer(play, "p", v2=False).init()

    def ask(step: str, *names: str) -> None:
        play.ask(step, transactional_ids=[play.name(name) for name in names])

    ask("never begun", "p")
    producer.add(topic, 2, 0)
    ask("partitions without records", "p")
    producer.add(other, 0).send(topic, "a")
    ask("open", "p")
    producer.end()
    ask("committed", "p")
    producer.add(topic, 1).end(False)
    ask("aborted", "p")
    ask("unknown", "unknown")
    ask("known and unknown", "unknown", "p")
    ask("the same twice", "p", "p")
    ask("none")
    play.ask("an empty id", transactional_ids=[""])
    Producer(play, "p").init()
    ask("begun anew", "p")


def list_transactions(play: Play) -> None:
    topic = play.topic("t")
    Producer(play, "never").init()
    opened = Producer(play, "open").init().send(topic, "a")
    Producer(play, "committed").init().send(topic, "b").end()
    aborted = Producer(play, "aborted").init().send(topic, "c").end(False)

    def ask(step: str, **more: object) -> None:
        asked = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
        play.ask_own(step, **{**asked, **more})

    ask("all")
    states = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
              "PrepareEpochFence")  # fmt: skip
    for state in states:
        ask(state, state_filters=[state])
    ask("every state", state_filters=list(states))
    ask("states that do not exist", state_filters=["ongoing", "Happy", ""])
    ask("one state that does not exist", state_filters=["Ongoing", "Happy"])
    ask("a producer", producer_id_filters=[opened.id])
    ask("two producers", producer_id_filters=[aborted.id, opened.id])
    ask("an unknown producer", producer_id_filters=[NEVER_GIVEN_OUT])
    ask("a producer in another state", producer_id_filters=[opened.id], state_filters=["Empty"])
    if play.version >= 1:
        for duration in (0, 3_600_000, -2):
            ask(f"for {duration} ms", duration_filter=duration)
            ask(f"for {duration} ms, open", duration_filter=duration, state_filters=["Ongoing"])
    if play.version >= 2:
        stem = play.name("").replace(".", "\\.")
        patterns = {"whole": f"{stem}open", "part": "open", "dots": f"{stem}.*e.*", "either": f"{stem}(open|never)",
                    "start and end": f"^{stem}open$", "not closed": "(", "empty": "", "null": None,
                    "a class": f"{stem}[a-n]+", "upper case": f"(?i){stem.upper()}OPEN"}  # fmt: skip
        for title, pattern in patterns.items():
            ask(f"pattern: {title}", transactional_id_pattern=pattern)
