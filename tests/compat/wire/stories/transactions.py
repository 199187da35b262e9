"""Transactions at their coordinator: InitProducerId, AddPartitionsToTxn, EndTxn, and their descriptions."""

from collections.abc import Mapping
from typing import Any

from tests.compat.wire.batches import values
from tests.compat.wire.story import Response, Story, now_ms, of_api

TIMEOUT_MS = 60_000
UNKNOWN_PRODUCER_ID = 10**12
Partitions = Mapping[str, list[int]]  # by topic


class Producer:
    """A transactional producer for a story. `v2`: it uses transaction version 2 (KIP-890), as clients since 4.0."""

    def __init__(self, story: Story, name: str, v2: bool = True) -> None:
        self.story, self.transactional_id, self.v2 = story, story.name(name), v2
        self.id, self.epoch = -1, -1
        self._sequences: dict[tuple[str, int], int] = {}

    def init(self) -> "Producer":
        """Get a producer id and the next epoch; an open transaction of the transactional id is aborted."""
        fields = {"transactional_id": self.transactional_id, "transaction_timeout": TIMEOUT_MS}
        self.story.call_until("FindCoordinator", is_found, key_type=1, coordinator_keys=[self.transactional_id])
        response = self.story.call_until("InitProducerId", lambda response: response["error_code"] == "NONE", **fields)
        return self.use(response["producer_id"], response["producer_epoch"])

    def use(self, producer_id: int, epoch: int) -> "Producer":
        """Use this id and epoch from now on; a new epoch begins with sequence 0."""
        if (producer_id, epoch) != (self.id, self.epoch):
            self._sequences.clear()
        self.id, self.epoch = producer_id, epoch
        self.story.assign_placeholder("producer_id", producer_id)
        return self

    def identity(self, **more: Any) -> dict[str, Any]:
        """Return the fields of requests that identify the producer."""
        fields = {"transactional_id": self.transactional_id, "producer_id": self.id, "producer_epoch": self.epoch}
        return fields | more

    def add(self, topic: str, *partitions: int) -> "Producer":
        """Add partitions to the transaction, as clients before 4.0 must."""
        topic_fields = {"v3_and_below_topics": [{"name": topic, "partitions": list(partitions)}]}
        self.story.call_in_version(3, "AddPartitionsToTxn", **v3_fields(self.identity()), **topic_fields)
        return self

    def batch(
        self, *texts: str, sequence: int | None = None, topic: str = "", partition: int = 0, **options: Any
    ) -> bytes:
        """Build a batch of the transaction; its default sequence is the next one of the partition."""
        if sequence is None:
            sequence = self._sequences.get((topic, partition), 0)
            self._sequences[topic, partition] = sequence + len(texts)
        options = {"time_ms": now_ms(), "transactional": True, **options}
        return values(*texts, producer=(self.id, self.epoch, sequence), **options)

    def send(self, topic: str, *texts: str, partition: int = 0, **options: Any) -> "Producer":
        """Produce records in the transaction."""
        if not self.v2:
            self.add(topic, partition)
        data = [{"index": partition, "records": self.batch(*texts, topic=topic, partition=partition, **options)}]
        sent = {"name": topic, "topic_id": self.story.topic_id(topic), "partition_data": data}
        version = self.story.cluster.highest("Produce") if self.v2 else 11
        fields = {"transactional_id": self.transactional_id, "acks": -1, "timeout": 10_000, "topic_data": [sent]}
        self.story.call_in_version(version, "Produce", **fields)
        return self

    def end(self, committed: bool = True) -> "Producer":
        """End the transaction; returns when every partition has its marker."""
        self.story.call_in_version(5 if self.v2 else 4, "EndTxn", **self.identity(committed=committed))
        return self.wait_until_complete()

    def wait_until_complete(self) -> "Producer":
        """Wait until the coordinator has completed the transaction, then use the current id and epoch."""
        response = self.story.call_until("DescribeTransactions", is_complete, transactional_ids=[self.transactional_id])
        [state] = response["transaction_states"]
        return self.use(state["producer_id"], state["producer_epoch"])

    def record(self, step: str) -> None:
        """Record the description of the transaction."""
        [state] = self.story.call("DescribeTransactions", transactional_ids=[self.transactional_id])[
            "transaction_states"
        ]
        names = ("transaction_state", "transaction_timeout", "producer_id", "producer_epoch", "topics")
        for row in state["topics"]:
            if row["topic"] == "__consumer_offsets":  # the partition depends on the name of the group
                row["partitions"] = [f"<{len(row['partitions'])} of them>"]
        self.story.record(step, **{name: state[name] for name in names})


def is_found(response: Response) -> bool:
    return "NONE" in str(response)


def is_complete(response: Response) -> bool:
    return not response["transaction_states"][0]["transaction_state"].startswith("Prepare")


def v3_fields(identity: dict[str, Any]) -> dict[str, Any]:
    return {f"v3_and_below_{name}": value for name, value in identity.items()}


def is_not_concurrent(response: Response) -> bool:
    """Return whether the coordinator has ended the previous transaction."""
    return "CONCURRENT_TRANSACTIONS" not in str(response)


def init_producer_id(story: Story) -> None:
    """InitProducerId with a transactional id: KIP-98, and since version 3 KIP-360."""
    producer = Producer(story, "p").init()

    def request(step: str, name: str = "p", **more: object) -> Response:
        identity = {"transactional_id": story.name(name), "transaction_timeout": TIMEOUT_MS}
        return story.request_until(step, is_not_concurrent, **{**identity, **more})

    for timeout in (0, -1, 900_001, 900_000):
        request(f"a transaction's timeout of {timeout}", transaction_timeout=timeout)
    producer.record("the timeout is the last one")
    producer.init()
    request("a new epoch")
    if story.version >= 3:
        with_id_and_epoch(story, producer)
    topic = story.create_topic("t")
    for v2 in (True, False):
        open_transaction_of_predecessor(story, topic, v2)


def with_id_and_epoch(story: Story, producer: Producer) -> None:
    """A producer that recovers from an error sends its id and epoch and gets the next epoch, once (KIP-360)."""

    def request(step: str, epoch: int, producer_id: int | None = None, **more: object) -> None:
        identity = producer.identity(producer_epoch=epoch, transaction_timeout=TIMEOUT_MS)
        story.request(step, **identity | ({} if producer_id is None else {"producer_id": producer_id}) | more)

    epoch = producer.wait_until_complete().epoch
    request("its epoch", epoch)
    request("its epoch again, as the answer was lost", epoch)
    request("the epoch before", epoch - 1)
    request("a later epoch", epoch + 5)
    request("another id", epoch + 1, UNKNOWN_PRODUCER_ID)
    request("an id and no epoch", -1)
    request("an epoch and no id", epoch + 1, -1)
    request("a negative id", epoch + 1, -5)
    request("a negative epoch", -5)
    unknown = {"transactional_id": story.name("unknown"), "transaction_timeout": TIMEOUT_MS}
    story.request("unknown, with an id and an epoch", **unknown, producer_id=UNKNOWN_PRODUCER_ID, producer_epoch=7)
    topic = story.create_topic("lost")
    for v2 in (True, False):
        title = "v2" if v2 else "v1"
        lost = Producer(story, f"lost.{title}", v2).init().send(topic, "a")
        before = lost.epoch
        lost.end()
        identity = lost.identity(producer_epoch=before, transaction_timeout=TIMEOUT_MS)
        story.request(f"{title}: the epoch of a committed transaction", **identity)
        lost.wait_until_complete().record(f"{title}: after it")
        lost.send(topic, "b")
        identity = lost.identity(transaction_timeout=TIMEOUT_MS)
        story.request(f"{title}: its epoch in a transaction", **identity)
        story.request_until(f"{title}: its epoch, when that is aborted", is_not_concurrent, **identity)
        story.request(f"{title}: once more", **identity)
        lost.record(f"{title}: after the abort")


def open_transaction_of_predecessor(story: Story, topic: str, v2: bool) -> None:
    """InitProducerId aborts the open transaction of the predecessor and returns the epoch after that."""
    title = "v2" if v2 else "v1"
    producer = Producer(story, f"left.{title}", v2).init().send(topic, "a")
    identity = {"transactional_id": producer.transactional_id, "transaction_timeout": 30_000}
    story.request(f"{title}: a transaction is open", **identity)
    story.request_until(f"{title}: when it is aborted", is_not_concurrent, **identity)
    producer.record(f"{title}: the new one")
    story.record(f"{title}: the old one commits", **try_request(story, producer, "EndTxn", committed=True))
    producer.wait_until_complete().send(topic, "b").end()


def try_request(story: Story, producer: Producer, api: str, **more: Any) -> Response:
    """Send a request of the producer in the highest version of its API."""
    return story.try_call(api, **producer.identity(**more))


@of_api("EndTxn", "transactions")
def end_txn(story: Story) -> None:
    v2 = story.version >= 5
    topic = story.create_topic("t", 2)
    producer = Producer(story, "p", v2).init()

    def request(step: str, committed: bool, **more: object) -> None:
        """Send a request and record the description of the transaction afterwards."""
        story.request(step, **producer.identity(committed=committed, **more))
        producer.wait_until_complete().record(f"{step}: afterwards")

    request("commit of a transaction that was never begun", True)
    request("abort of a transaction that was never begun", False)
    for committed in (True, False):
        title = "commit" if committed else "abort"
        previous_epoch = producer.send(topic, "a", "b").epoch
        request(title, committed)
        request(f"{title}, again", committed, producer_epoch=previous_epoch)
        request(f"the other one after the {title}", not committed, producer_epoch=previous_epoch)
        request(f"commit of nothing after the {title}", True)
        request(f"abort of nothing after the {title}", False)
        request(f"commit with the epoch of before the {title}", True, producer_epoch=previous_epoch - 1)
    producer.add(topic, 0, 1)
    request("commit of partitions without records", True)
    record_log(story, topic)
    end_by_others(story, producer.send(topic, "c"))
    fenced(story, topic, v2)
    if v2:
        mixed(story, topic)


def record_log(story: Story, topic: str) -> None:
    """Record what a fetch with read_committed returns, markers included."""
    for partition in (0, 1):
        story.record(f"the log of partition {partition}", **fetch_result(story, topic, partition))


def fetch_result(story: Story, topic: str, partition: int = 0, offset: int = 0, isolation: int = 1) -> Response:
    """Return the fields of a partition in a fetch response, without those that never differ."""
    row = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20, "log_start_offset": -1}
    fields = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "isolation_level": isolation}
    topics = [{"topic": topic, "topic_id": story.topic_id(topic), "partitions": [row]}]
    [state] = story.try_call("Fetch", **fields, topics=topics)["responses"][0]["partitions"]
    names = ("error_code", "high_watermark", "last_stable_offset", "log_start_offset", "aborted_transactions")
    return {name: state[name] for name in (*names, "records")}


def end_by_others(story: Story, producer: Producer) -> None:
    """Only its producer can end the open transaction."""
    wrong_identities = {
        "an unknown transactional id": {"transactional_id": story.name("unknown")},
        "an empty transactional id": {"transactional_id": ""},
        "another producer id": {"producer_id": UNKNOWN_PRODUCER_ID},
        "a negative producer id": {"producer_id": -1},
        "a later epoch": {"producer_epoch": producer.epoch + 1},
        "an earlier epoch": {"producer_epoch": producer.epoch - 1},
        "a negative epoch": {"producer_epoch": -1},
    }
    for title, identity in wrong_identities.items():
        for committed in (True, False):
            story.request(
                f"{'commit' if committed else 'abort'} by {title}", **producer.identity(committed=committed, **identity)
            )
    producer.record("it is still open")


def fenced(story: Story, topic: str, v2: bool) -> None:
    """A newer producer with the same transactional id fences the older one."""
    old = Producer(story, "fenced", v2).init().send(topic, "a").end().send(topic, "b")
    new = Producer(story, "fenced", v2).init()
    story.request("commit by a fenced producer", **old.identity(committed=True))
    story.request("abort by a fenced producer", **old.identity(committed=False))
    new.send(topic, "c")
    story.request("commit by a fenced producer in the new one's transaction", **old.identity(committed=True))
    story.request("commit by the new producer", **new.identity(committed=True))
    new.wait_until_complete().record("the new producer")


def mixed(story: Story, topic: str) -> None:
    """The producer switches between transaction versions 1 and 2."""
    producer = Producer(story, "mixed", v2=False).init().send(topic, "a")
    story.request("v1 has begun it", **producer.identity(committed=True))
    producer.wait_until_complete().record("v1 has begun it: afterwards")
    producer.v2 = True
    producer.send(topic, "b")
    producer.v2 = False
    producer.end().record("v1 ends what v2 has begun")
    story.request("v2 commits what v1 has committed", **producer.identity(committed=True))
    story.request("v2 aborts what v1 has committed", **producer.identity(committed=False))
    producer.wait_until_complete().record("v2 aborts: afterwards")


@of_api("AddPartitionsToTxn", "transactions")
def add_partitions(story: Story) -> None:
    """Versions 0-3 are for clients, 4 and 5 for brokers, which can also verify partitions."""
    topic, other = story.create_topic("t", 4), story.create_topic("u")
    producer = Producer(story, "p", v2=False).init()

    def request(step: str, partitions: Partitions, check: bool = False, **identity: object) -> None:
        topics = [{"name": name, "partitions": indexes} for name, indexes in partitions.items()]
        identity = producer.identity(**identity)
        rows = [{**identity, "verify_only": check, "topics": topics}]
        story.request(step, **v3_fields(identity), v3_and_below_topics=topics, transactions=rows)

    unknown = story.name("unknown")
    request("unknown topic", {unknown: [0]})
    request("unknown partition", {topic: [0, 9]})
    request("unknown and known topics", {unknown: [0], topic: [0]})
    producer.record("nothing was added")
    request("two topics", {topic: [0, 1], other: [0]})
    producer.record("they are added")
    request("once more", {topic: [1, 0]})
    request("another one", {topic: [2]})
    request("one twice", {topic: [3, 3]})
    request("no topics", {})
    request("no partitions", {topic: []})
    request("a negative partition", {topic: [-1]})
    request("an internal topic", {"__transaction_state": [0]})
    producer.record("all that was added")
    wrong_identities = {
        "an unknown transactional id": {"transactional_id": story.name("unknown")},
        "an empty transactional id": {"transactional_id": ""},
        "another producer id": {"producer_id": UNKNOWN_PRODUCER_ID},
        "a later epoch": {"producer_epoch": producer.epoch + 1},
        "an earlier epoch": {"producer_epoch": producer.epoch - 1},
    }
    for title, identity in wrong_identities.items():
        request(title, {topic: [0]}, **identity)
        if story.version >= 4:
            request(f"check: {title}", {topic: [0]}, check=True, **identity)
    if story.version >= 4:
        verify_only(story, producer, request, topic)
    producer.end()
    request("a new transaction", {topic: [1]})
    producer.record("of it")
    Producer(story, "p").init()
    request("a fenced producer", {topic: [1]})


def verify_only(story: Story, producer: Producer, request: Any, topic: str) -> None:
    other = story.create_topic("v", 2)
    request("check: in the transaction", {topic: [0, 1]}, check=True)
    request("check: some are not", {topic: [0], other: [0, 1]}, check=True)
    request("check: unknown topic", {story.name("unknown"): [0]}, check=True)
    request("check: no topics", {}, check=True)
    producer.record("checking adds nothing")
    idle = Producer(story, "idle").init()
    request("check: no transaction", {topic: [0]}, check=True, **idle.identity())
    idle.send(topic, "a").end()
    request("check: a complete transaction", {topic: [0]}, check=True, **idle.identity())
    rows = [{"topics": [{"name": topic, "partitions": [0]}], "verify_only": True, **identity} for identity in
            (producer.identity(), idle.identity())]  # fmt: skip
    story.request("check: two transactions", transactions=rows)
    rows = [{**producer.identity(), "verify_only": check, "topics": rows[0]["topics"]} for check in (True, False)]
    story.request("check and add in one request", transactions=rows)


@of_api("AddOffsetsToTxn", "transactions")
def add_offsets(story: Story) -> None:
    group = story.group("g")
    producer = Producer(story, "p", v2=False).init()

    def request(step: str, name: str = group, **identity: object) -> None:
        story.request(step, **producer.identity(group_id=name, **identity))

    request("an unknown transactional id", transactional_id=story.name("unknown"))
    request("an empty transactional id", transactional_id="")
    request("another producer id", producer_id=UNKNOWN_PRODUCER_ID)
    request("a later epoch", producer_epoch=producer.epoch + 1)
    request("an earlier epoch", producer_epoch=producer.epoch - 1)
    producer.record("nothing was added")
    request("a group")
    request("again")
    request("an unknown group", story.name("unknown"))
    request("an empty group id", "")
    producer.end().record("nothing was committed, and it ended")
    request("a new transaction")
    Producer(story, "p").init()
    request("a fenced producer")


@of_api("DescribeTransactions", "transactions")
def describe_transactions(story: Story) -> None:
    topic, other = story.create_topic("t", 3), story.create_topic("u")
    producer = Producer(story, "p", v2=False).init()

    def request(step: str, *names: str) -> None:
        story.request(step, transactional_ids=[story.name(name) for name in names])

    request("never begun", "p")
    producer.add(topic, 2, 0)
    request("partitions without records", "p")
    producer.add(other, 0).send(topic, "a")
    request("open", "p")
    producer.end()
    request("committed", "p")
    producer.add(topic, 1).end(False)
    request("aborted", "p")
    request("unknown", "unknown")
    request("known and unknown", "unknown", "p")
    request("the same twice", "p", "p")
    request("none")
    story.request("an empty id", transactional_ids=[""])
    Producer(story, "p").init()
    request("begun anew", "p")


@of_api("ListTransactions", "transactions")
def list_transactions(story: Story) -> None:
    topic = story.create_topic("t")
    Producer(story, "never").init()
    opened = Producer(story, "open").init().send(topic, "a")
    Producer(story, "committed").init().send(topic, "b").end()
    aborted = Producer(story, "aborted").init().send(topic, "c").end(False)

    def request(step: str, **more: object) -> None:
        fields = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
        story.request_own(step, **{**fields, **more})

    request("all")
    states = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
              "PrepareEpochFence")  # fmt: skip
    for state in states:
        request(state, state_filters=[state])
    request("every state", state_filters=list(states))
    request("states that do not exist", state_filters=["ongoing", "Happy", ""])
    request("one state that does not exist", state_filters=["Ongoing", "Happy"])
    request("a producer", producer_id_filters=[opened.id])
    request("two producers", producer_id_filters=[aborted.id, opened.id])
    request("an unknown producer", producer_id_filters=[UNKNOWN_PRODUCER_ID])
    request("a producer in another state", producer_id_filters=[opened.id], state_filters=["Empty"])
    if story.version >= 1:
        for duration in (0, 3_600_000, -2):
            request(f"for {duration} ms", duration_filter=duration)
            request(f"for {duration} ms, open", duration_filter=duration, state_filters=["Ongoing"])
    if story.version >= 2:
        stem = story.name("").replace(".", "\\.")
        patterns = {"whole": f"{stem}open", "part": "open", "dots": f"{stem}.*e.*", "either": f"{stem}(open|never)",
                    "start and end": f"^{stem}open$", "not closed": "(", "empty": "", "null": None,
                    "a class": f"{stem}[a-n]+", "upper case": f"(?i){stem.upper()}OPEN"}  # fmt: skip
        for title, pattern in patterns.items():
            request(f"pattern: {title}", transactional_id_pattern=pattern)
