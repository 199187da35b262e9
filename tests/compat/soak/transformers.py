"""Consume-transform-produce programs of two clients under faults: each input has one committed result."""

from pathlib import Path

from tests.compat.support import eventually
from tests.compat.transactions.flows import PARTITIONS, Flow, Source, create_topics, wait_until_drained
from tests.compat.transactions.processes import Program, python_commands
from tests.compat.transactions.test_exactly_once import difference, views

SESSION_TIMEOUT_MS = 6000
REQUEST_TIMEOUT_MS = 8000
# Of the source: it writes five records for each partition in this time.
INTERVAL_S = 1.0


class CommitCounter:
    """Counts the committed transactions of a program, and reads each byte of its output once."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._read: dict[Path, int] = {}
        self._count = 0

    def count(self) -> int:
        for path in self._program.outputs():
            start = self._read.get(path, 0)
            if path.stat().st_size > start:
                with path.open("rb") as file:
                    file.seek(start)
                    # A line that is not complete is read next time.
                    lines = file.read().rpartition(b"\n")[0] + b"\n"
                self._read[path] = start + len(lines)
                self._count += lines.splitlines().count(b"committed")
        return self._count


class Transformers:
    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._bootstrap = bootstrap
        self.source = Source(bootstrap, INTERVAL_S, {"socket.timeout.ms": 6000, "message.timeout.ms": 600_000})
        self.flows = [
            Flow(client, command, bootstrap, self.source.topic, directory, SESSION_TIMEOUT_MS, REQUEST_TIMEOUT_MS)
            for client, command in python_commands().items()
        ]
        self._counters = {flow.client: [CommitCounter(program) for program in flow.programs] for flow in self.flows}

    @property
    def topics(self) -> list[str]:
        return [self.source.topic, *(flow.target for flow in self.flows)]

    def start(self) -> None:
        create_topics(self._bootstrap, self.topics, replication_factor=3)
        # Without flows: it never waits for them.
        self.source.start(())
        for flow in self.flows:
            flow.start()
        eventually(lambda: all(self.commits(flow) for flow in self.flows), "transactions of every client")

    def commits(self, flow: Flow) -> int:
        return sum(counter.count() for counter in self._counters[flow.client])

    def check(self) -> None:
        """Restart the programs that have given up, as their documentation says. Fail if one has ended otherwise."""
        for flow in self.flows:
            for program in flow.programs:
                program.restart_if_given_up()

    def finish(self) -> list[str]:
        """Wait until every input has its result, check that it has one, and return a report."""
        self.source.stop()
        wait_until_drained(self.flows, self._bootstrap, self.source)
        self.abandon()
        results = views(self._bootstrap, self.flows)
        for flow in self.flows:
            for partition, values in enumerate(self.source.written):
                expected = [b"done " + value for value in values]
                wrong = difference(flow, partition, expected, results[flow.client].committed[partition])
                assert wrong == "", f"{flow.client}: {wrong}"
        inputs = sum(map(len, self.source.written))
        return [f"{inputs} inputs in {PARTITIONS} partitions", *(flow.report() for flow in self.flows)]

    def abandon(self) -> None:
        self.source.abandon()
        for flow in self.flows:
            flow.kill()
