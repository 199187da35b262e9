"""Random requests for transactional ids.

    python -m tests.compat.wire.random_transactions HOST:PORT

records them with their results in the file of tests/unit/support/transaction_lines.py; the broker must be Apache Kafka.
"""

import random
import sys
import time
from collections.abc import Iterator

from protocol.errors import ErrorCode
from tests.compat.support import unique
from tests.compat.wire.client import Client
from tests.unit.support.transaction_lines import LINES, LineRunner, Producer

STORIES, STEPS = 25, 40
# Stories whose producer id has no more epochs.
EXHAUSTED = (
    "add p0/32766 a-0 v2", "end p0/32766 commit v2", "end p0/32766 commit v2", "end p0/32766 abort v2",
    "init p0/32766 60000", "init p0/32766 60000", "add p1/0 a-0 v2", "end p0/32766 commit v2", "end p1/0 commit v2",
), (
    "add p0/32766 a-0 v2", "init - 60000", "end p0/32766 abort v2", "init p0/32766 60000", "init - 60000",
), (
    "add p0/32766 a-0 v0", "end p0/32766 commit v0", "end p0/32766 commit v0", "init - 60000", "init p0/32766 60000",
), (
    "end p0/32766 abort v2", "end p0/32766 abort v2", "end p0/32766 commit v2", "init p0/32765 60000",
    "init p0/32766 60000",
), (
    "init p0/32766 60000", "init p0/32766 60000",
)  # fmt: skip


class TransactionalId:
    """A transactional id at a broker, as transaction_lines.Target."""

    def __init__(self, client: Client, id: str, topic: str) -> None:
        self._client = client
        self._id = id
        self._topic = topic

    def wait_for_coordinator(self) -> None:
        while self._client.request("FindCoordinator", 3, key=self._id, key_type=1).error_code:
            time.sleep(0.1)

    def init(self, timeout_ms: int, producer: Producer) -> Producer | ErrorCode:
        while True:
            response = self._client.request(
                "InitProducerId", 5, transactional_id=self._id, transaction_timeout=timeout_ms,
                producer_id=producer[0], producer_epoch=producer[1],
            )  # fmt: skip
            if response.error_code not in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR):
                return _code(response.error_code) or (response.producer_id, response.producer_epoch)
            time.sleep(0.1)

    def bump(self, epoch: int) -> Producer:
        producer: Producer | ErrorCode = (-1, -1)
        while isinstance(producer, tuple) and producer[1] < epoch:
            producer = self.init(60_000, (-1, -1))
        assert isinstance(producer, tuple)
        return producer

    def add(self, producer: Producer, partition: int, version: int) -> ErrorCode:
        if version == 2:
            return self._add_as_broker(producer, partition, verify_only=False)
        fields = {
            "v3_and_below_transactional_id": self._id,
            "v3_and_below_producer_id": producer[0],
            "v3_and_below_producer_epoch": producer[1],
            "v3_and_below_topics": self._topics(partition),
        }
        [row] = self._client.request("AddPartitionsToTxn", 3, **fields).results_by_topic_v3_and_below
        return ErrorCode(row.results_by_partition[0].partition_error_code.value)

    def verify(self, producer: Producer, partition: int) -> ErrorCode:
        return self._add_as_broker(producer, partition, verify_only=True)

    def _add_as_broker(self, producer: Producer, partition: int, *, verify_only: bool) -> ErrorCode:
        """Add or verify a partition in the version of brokers."""
        transaction = {
            "transactional_id": self._id, "producer_id": producer[0], "producer_epoch": producer[1],
            "verify_only": verify_only, "topics": self._topics(partition),
        }  # fmt: skip
        [row] = self._client.request("AddPartitionsToTxn", 5, transactions=[transaction]).results_by_transaction
        return ErrorCode(row.topic_results[0].results_by_partition[0].partition_error_code.value)

    def _topics(self, partition: int) -> list[dict[str, object]]:
        return [{"name": self._topic, "partitions": [partition]}]

    def end(self, producer: Producer, committed: bool, version: int) -> Producer | ErrorCode:
        response = self._client.request(
            "EndTxn", 5 if version == 2 else 4, transactional_id=self._id, producer_id=producer[0],
            producer_epoch=producer[1], committed=committed,
        )  # fmt: skip
        return _code(response.error_code) or (
            (response.producer_id, response.producer_epoch) if version == 2 else producer
        )

    def describe(self) -> tuple[str, Producer, int, list[int]]:
        while True:
            [state] = self._client.request("DescribeTransactions", 0, transactional_ids=[self._id]).transaction_states
            if not state.transaction_state.startswith("Prepare"):
                break
            time.sleep(0.002)
        timeout_ms = round(state.transaction_timeout.total_seconds() * 1000)
        partitions = sorted(index for topic in state.topics for index in topic.partitions)
        return state.transaction_state, (state.producer_id, state.producer_epoch), timeout_ms, partitions


def _code(code: object) -> ErrorCode | None:
    error = ErrorCode(code.value)  # type: ignore[attr-defined]
    return None if error is ErrorCode.NONE else error


def random_story(runner: LineRunner, seed: int) -> Iterator[str]:
    """Send random requests of current, fenced and unknown producers; yields their lines."""
    rng, known = random.Random(seed), list[str]()
    for _ in range(STEPS):
        if not known or rng.random() < 0.15:
            request = f"init - {rng.choice((60_000, 30_000))}"
        else:
            request = _random_request(rng, known)
        line = runner.run(request)
        result = line.partition(" -> ")[2].split()[0]
        if "/" in result and result not in known:
            known.append(result)
        yield line


def _random_request(rng: random.Random, known: list[str]) -> str:
    name, _, epoch = known[max(0, len(known) - 1 - int(rng.expovariate(1)))].partition("/")
    if rng.random() < 0.1:
        epoch = str(max(0, int(epoch) + rng.choice((-1, 1))))
    identity = f"{'p?' if rng.random() < 0.03 else name}/{epoch}"
    partition, version = f"a-{rng.randrange(2)}", f"v{rng.choice((0, 2, 2))}"
    return rng.choices(
        (
            f"init {identity} {rng.choice((60_000, 30_000))}",
            f"add {identity} {partition} {version}",
            f"end {identity} {rng.choice(('commit', 'abort'))} {version}",
            f"verify {identity} {partition}",
        ),
        (1, 3, 3, 1),
    )[0]


def new_transactional_id(client: Client, topic: str) -> TransactionalId:
    """Return a new transactional id that has a coordinator."""
    transactional_id = TransactionalId(client, unique("transactional"), topic)
    transactional_id.wait_for_coordinator()
    return transactional_id


def create_topic(client: Client) -> str:
    name = unique("transactions")
    topic = {"name": name, "num_partitions": 2, "replication_factor": 1, "assignments": [], "configs": []}
    response = client.request("CreateTopics", 5, topics=[topic], timeout=10_000, validate_only=False)
    assert response.topics[0].error_code.value == 0
    return name


def main(bootstrap: str) -> None:
    client = Client(bootstrap)
    topic = create_topic(client)
    lines: list[str] = []
    for seed in range(STORIES):
        lines += [f"story {seed}", *random_story(LineRunner(new_transactional_id(client, topic)), seed), ""]
    for number, requests in enumerate(EXHAUSTED):
        runner = LineRunner(new_transactional_id(client, topic))
        lines += [f"story exhausted {number}", runner.run("init - 60000"), runner.run("bump p0/32766")]
        lines += [*map(runner.run, requests), ""]
    LINES.write_text("\n".join(lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
