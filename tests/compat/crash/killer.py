"""Kills a broker while producers wait for responses, and records what was outstanding."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct

from tests.compat.crash.background_producers import VALUE, BackgroundProducer
from tests.compat.crash.proxy import LostRequests, Proxy, find
from tests.compat.support import BrokerProcess, eventually

# Of a batch header: base offset, size of what follows, last offset delta.
_BATCH = Struct(">qi11xi")

# Ways to kill a broker while produce requests are outstanding.
# It is stopped (SIGSTOP) and killed when there are such requests.
FROZEN = "frozen"
# Responses that it sent before may still be in flight, so the requests must be outstanding this often in a row.
STEADY = 50
# It responds to whatever the clients pipeline, but the responses do not reach them.
RESPONSES_HELD = "responses held"
# The same, and then it has written checkpoints and producer snapshots.
HELD_AFTER_CHECKPOINTS = "responses held, checkpoints written"


@dataclass
class Kill:
    """The state when the broker was killed."""

    moment: str
    lost: LostRequests
    records: int  # in the lost requests
    in_log: int  # of these records
    outstanding: int  # records that were not acknowledged
    client: str

    def __str__(self) -> str:
        return (
            f"{self.moment}: {self.lost.requests} produce requests outstanding, with {self.lost.batches} batches of "
            f"{self.records} records, {self.in_log} of these in the log already; {self.outstanding} records not "
            f"acknowledged; client: {self.client}"
        )


@dataclass
class Killer:
    """Kills and restarts one broker, and records each kill."""

    broker: BrokerProcess
    proxy: Proxy
    kills: list[Kill] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)

    def kill(self, producer: BackgroundProducer, topic: str, moment: str) -> None:
        """Kill the broker (kill -9) while produce requests are outstanding."""
        ledger = producer.ledger
        try:
            self._wait_for_moment(producer, topic, moment)
            client = producer.in_flight()
            self.broker.kill()
            eventually(lambda: not self.proxy.connections(), "the end of the dead broker's connections", interval=0.001)
        finally:
            self.proxy.release_responses()
        lost = self.proxy.take_lost_requests()
        sent = lost.find(VALUE)
        in_log = sent & self._values_in_log(topic, ledger.partitions)
        self.kills.append(Kill(moment, lost, len(sent), len(in_log), ledger.outstanding, client))

    def _values_in_log(self, topic: str, partitions: int) -> set[tuple[bytes, ...]]:
        files = [path for index in range(partitions) for path in self.broker.partition_dir(topic, index).glob("*.log")]
        return {match.groups() for path in files for match in find(VALUE, path.read_bytes())}

    def _wait_for_moment(self, producer: BackgroundProducer, topic: str, moment: str) -> None:
        if moment == FROZEN:
            self.broker.freeze()
            in_a_row = 0

            def is_steady() -> bool:
                nonlocal in_a_row
                in_a_row = in_a_row + 1 if self.proxy.outstanding() else 0
                return in_a_row >= STEADY

            eventually(is_steady, "produce requests to a broker that is stopped", interval=0.001)
            return
        self.proxy.hold_responses()
        eventually(
            lambda: producer.pipelined_requests <= self.proxy.outstanding() == self.proxy.held(),
            "held responses",
            interval=0.001,
        )
        if moment == HELD_AFTER_CHECKPOINTS:
            partitions = range(producer.ledger.partitions)
            eventually(lambda: all(self.is_checkpointed(topic, index) for index in partitions), "checkpoints")

    def is_checkpointed(self, topic: str, partition: int) -> bool:
        """Return whether the recovery point of the partition is its log end offset."""
        try:
            checkpoint = (self.broker.data_dir / "recovery-point-offset-checkpoint").read_text()
        except FileNotFoundError:
            return False
        entry = re.search(rf"^{topic} {partition} (\d+)$", checkpoint, re.MULTILINE)
        return entry is not None and int(entry[1]) >= log_end_offset(self.broker.partition_dir(topic, partition))

    def start(self) -> None:
        self.broker.start()
        self.repairs += repaired_logs(self.broker)


def log_end_offset(directory: Path) -> int:
    """Return the offset after the last whole batch of a log, 0 if there is none."""
    for path in sorted(directory.glob("*.log"), reverse=True):
        data = path.read_bytes()
        position, end = 0, None
        while position + _BATCH.size <= len(data):
            base_offset, size, last_offset_delta = _BATCH.unpack_from(data, position)
            position += 12 + size
            if position <= len(data):
                end = base_offset + last_offset_delta + 1
        if end is not None:
            return end
    return 0


def repaired_logs(broker: BrokerProcess) -> list[str]:
    """Return the log lines of the latest start about repaired partitions."""
    return [line for line in broker.errors.splitlines() if ": log repaired " in line]
