"""Random stories of transactional ids, told to a broker over the wire.

    python -m tests.compat.wire.random_transactions HOST:PORT

records them anew with the answers of Apache Kafka (tests/unit/support/transaction_lines.py).
"""

import random
import sys
import time
from collections.abc import Iterator

from protocol.errors import ErrorCode
from tests.compat.support import unique
from tests.compat.wire.client import Connection
from tests.unit.support.transaction_lines import LINES, LineRunner, Producer

STORIES, STEPS = 25, 40
# Told of with the epochs of a producer id used up.
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


class Wire:
    """A transactional id at a broker, as transaction_lines.Target."""

    def __init__(self, connection: Connection, id: str, topic: str) -> None:
        self._connection = connection
        self._id = id
        self._topic = topic

    def find(self) -> None:
        while self._connection.request("FindCoordinator", 3, key=self._id, key_type=1).error_code:
            time.sleep(0.1)

    def init(self, timeout_ms: int, who: Producer) -> Producer | ErrorCode:
        while True:
            answer = self._connection.request(
                "InitProducerId", 5, transactional_id=self._id, transaction_timeout=timeout_ms,
                producer_id=who[0], producer_epoch=who[1],
            )  # fmt: skip
            if answer.error_code not in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR):
                return _code(answer.error_code) or (answer.producer_id, answer.producer_epoch)
            time.sleep(0.1)

    def bump(self, epoch: int) -> Producer:
        who: Producer | ErrorCode = (-1, -1)
        while isinstance(who, tuple) and who[1] < epoch:
            who = self.init(60_000, (-1, -1))
        assert isinstance(who, tuple)
        return who

    def add(self, who: Producer, partition: int, version: int) -> ErrorCode:
        if version == 2:
            return self._ask(who, partition, verify_only=False)
        asked = {
            "v3_and_below_transactional_id": self._id,
            "v3_and_below_producer_id": who[0],
            "v3_and_below_producer_epoch": who[1],
            "v3_and_below_topics": self._topics(partition),
        }
        [row] = self._connection.request("AddPartitionsToTxn", 3, **asked).results_by_topic_v3_and_below
        return ErrorCode(row.results_by_partition[0].partition_error_code.value)

    def verify(self, who: Producer, partition: int) -> ErrorCode:
        return self._ask(who, partition, verify_only=True)

    def _ask(self, who: Producer, partition: int, *, verify_only: bool) -> ErrorCode:
        """As brokers do."""
        asked = {
            "transactional_id": self._id, "producer_id": who[0], "producer_epoch": who[1],
            "verify_only": verify_only, "topics": self._topics(partition),
        }  # fmt: skip
        [row] = self._connection.request("AddPartitionsToTxn", 5, transactions=[asked]).results_by_transaction
        return ErrorCode(row.topic_results[0].results_by_partition[0].partition_error_code.value)

    def _topics(self, partition: int) -> list[dict[str, object]]:
        return [{"name": self._topic, "partitions": [partition]}]

    def end(self, who: Producer, committed: bool, version: int) -> Producer | ErrorCode:
        answer = self._connection.request(
            "EndTxn", 5 if version == 2 else 4, transactional_id=self._id, producer_id=who[0], producer_epoch=who[1],
            committed=committed,
        )  # fmt: skip
        return _code(answer.error_code) or ((answer.producer_id, answer.producer_epoch) if version == 2 else who)

    def describe(self) -> tuple[str, Producer, int, list[int]]:
        while True:
            [found] = self._connection.request(
                "DescribeTransactions", 0, transactional_ids=[self._id]
            ).transaction_states
            if not found.transaction_state.startswith("Prepare"):
                break
            time.sleep(0.002)
        timeout_ms = round(found.transaction_timeout.total_seconds() * 1000)
        partitions = sorted(index for topic in found.topics for index in topic.partitions)
        return found.transaction_state, (found.producer_id, found.producer_epoch), timeout_ms, partitions


def _code(code: object) -> ErrorCode | None:
    found = ErrorCode(code.value)  # type: ignore[attr-defined]
    return None if found is ErrorCode.NONE else found


def program(runner: LineRunner, seed: int) -> Iterator[str]:
    """Lines of a story that nobody has thought out: requests of who may, of who may no more, of who never could."""
    dice, known = random.Random(seed), list[str]()
    for _ in range(STEPS):
        if not known or dice.random() < 0.15:
            asked = f"init - {dice.choice((60_000, 30_000))}"
        else:
            asked = _random_request(dice, known)
        line = runner.run(asked)
        told = line.partition(" -> ")[2].split()[0]
        if "/" in told and told not in known:
            known.append(told)
        yield line


def _random_request(dice: random.Random, known: list[str]) -> str:
    name, _, epoch = known[max(0, len(known) - 1 - int(dice.expovariate(1)))].partition("/")
    if dice.random() < 0.1:
        epoch = str(max(0, int(epoch) + dice.choice((-1, 1))))
    who = f"{'p?' if dice.random() < 0.03 else name}/{epoch}"
    partition, version = f"a-{dice.randrange(2)}", f"v{dice.choice((0, 2, 2))}"
    return dice.choices(
        (
            f"init {who} {dice.choice((60_000, 30_000))}",
            f"add {who} {partition} {version}",
            f"end {who} {dice.choice(('commit', 'abort'))} {version}",
            f"verify {who} {partition}",
        ),
        (1, 3, 3, 1),
    )[0]


def wire(connection: Connection, topic: str) -> Wire:
    """A new transactional id."""
    found = Wire(connection, unique("transactional"), topic)
    found.find()
    return found


def create_topic(connection: Connection) -> str:
    name = unique("transactions")
    topic = {"name": name, "num_partitions": 2, "replication_factor": 1, "assignments": [], "configs": []}
    answer = connection.request("CreateTopics", 5, topics=[topic], timeout=10_000, validate_only=False)
    assert answer.topics[0].error_code.value == 0
    return name


def main(bootstrap: str) -> None:
    connection = Connection(bootstrap)
    topic = create_topic(connection)
    lines: list[str] = []
    for seed in range(STORIES):
        lines += [f"story {seed}", *program(LineRunner(wire(connection, topic)), seed), ""]
    for number, asked in enumerate(EXHAUSTED):
        runner = LineRunner(wire(connection, topic))
        lines += [f"story exhausted {number}", runner.run("init - 60000"), runner.run("bump p0/32766")]
        lines += [*map(runner.run, asked), ""]
    LINES.write_text("\n".join(lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
