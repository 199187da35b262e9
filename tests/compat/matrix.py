"""The matrix of clients and features: its columns, its rows, and how it is printed."""

from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import metadata

CLIENTS = {
    "kafka_python": "kafka-python",
    "confluent_kafka": "confluent-kafka",
    "aiokafka": "aiokafka",
    "kafka_tools": "Kafka's tools",
    "old_java": "old Java clients",
    "mirror": "MirrorMaker 2",
    "spark": "Spark",
    "go": "Go (franz-go)",
    "sarama": "Go (sarama)",
    "kafka_go": "Go (kafka-go)",
    "rskafka": "Rust (rskafka)",
    "kafkit": "Rust (kafkit-client)",
    "javascript": "JavaScript (KafkaJS)",
    "cli": "kbroker CLI",
    "wire": "raw frames (kio)",
}
KAFKA_VERSIONS = {"kafka_tools": "4.4.0", "old_java": "4.3.1, 2.1.1", "mirror": "4.3.1"}

FEATURES = (
    "records",
    "compression",
    "acknowledgements",
    "idempotence",
    "message sizes",
    "fetch limits",
    "timestamps",
    "offsets",
    "consumer groups",
    "static membership",
    "cooperative rebalance",
    "commits",
    "transactions",
    "exactly once, kill -9",
    "Kafka Streams",
    "topics",
    "auto-creation",
    "configs",
    "group admin",
    "delete records",
    "cluster",
    "security",
    "performance tools",
    "log files",
    "compaction",
    "batch jobs",
    "streaming",
    "flights, end to end",
    "kill -9",
    "migration",
    "history in an archive",
    "queues",
    "retries and dead letters",
    "bad frames",
    "hostile clients",
    "command line",
    "examples",
)

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"

Cell = tuple[str, str]  # (client, feature)


class Matrix:
    """Counts of outcomes by client and feature; each test counts once."""

    def __init__(self) -> None:
        self._outcomes: dict[str, tuple[Cell, str]] = {}

    def record(self, test: str, cell: Cell, outcome: str) -> None:
        """Record the outcome of a phase (setup, call, teardown) of a test; a failure in any phase counts."""
        if self._outcomes.get(test, (cell, ""))[1] != FAILED:
            self._outcomes[test] = (cell, outcome)

    def outcomes(self) -> list[tuple[str, str, str, str]]:
        """Return (test, client, feature, outcome) of every recorded test."""
        return [(test, *cell, outcome) for test, (cell, outcome) in self._outcomes.items()]

    def lines(self) -> list[str]:
        """Return the table, one line for each feature; empty if no test ran."""
        counts: dict[Cell, Counter[str]] = {}
        for cell, outcome in self._outcomes.values():
            counts.setdefault(cell, Counter())[outcome] += 1
        clients = [client for client in CLIENTS if any(cell[0] == client for cell in counts)]
        features = _in_order({feature for _, feature in counts})
        if not clients:
            return []
        rows = [["", *(CLIENTS[client] for client in clients)], ["", *(version_of(client) for client in clients)]]
        rows += [[feature, *(_cell(counts.get((client, feature))) for client in clients)] for feature in features]
        return _aligned(rows)


def version_of(client: str) -> str:
    """Return the installed version of the client."""
    if client in KAFKA_VERSIONS:
        return KAFKA_VERSIONS[client]
    package = {"spark": "pyspark", "cli": "kbroker", "wire": "kio"}.get(client, CLIENTS[client])
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _in_order(features: set[str]) -> list[str]:
    return [f for f in FEATURES if f in features] + sorted(features - set(FEATURES))


def _cell(counts: Counter[str] | None) -> str:
    if not counts:
        return "-"
    if counts[FAILED]:
        return f"FAILED {counts[FAILED]} of {counts.total()}"
    if not counts[PASSED]:
        return "not run"
    return f"ok {counts[PASSED]}" + (f", {counts[NOT_RUN]} not run" if counts[NOT_RUN] else "")


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in _columns(rows)]
    return ["   ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _columns(rows: Sequence[Sequence[str]]) -> Iterable[tuple[str, ...]]:
    return zip(*rows, strict=True)
