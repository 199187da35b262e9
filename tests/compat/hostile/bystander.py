"""The well-behaved client beside which everything hostile happens: round trips without end, each timed.

    python -m tests.compat.hostile.bystander HOST:PORT TOPIC

A process of its own, so that what an attack costs the attacker is not taken for what it costs others. A round trip
is a record that is produced and fetched back. Each is written to standard output as it ends: when it began, in ns of
the monotonic clock, and how many ns it took. Any error ends the process. It also ends with its standard input.
"""

import os
import select
import struct
import sys
import time

from protocol.messages.k00_produce import ProduceResponse
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.records.batch import build_batch, parse_header
from tests.compat.hostile.peer import Peer, produce_request

TRIP = struct.Struct("<qq")
INTERVAL_NS = 5_000_000
PRODUCE_VERSION, FETCH_VERSION = 9, 11


class Bystander:
    def __init__(self, bootstrap: str, topic: str) -> None:
        self.peer = Peer(bootstrap, "bystander")
        self.topic = topic

    def trip(self) -> None:
        """Produce a record, fetch it back, check that it is the one."""
        batch = bytes(build_batch([(time.time_ns() // 1_000_000, b"key", b"v" * 100, ())]))
        answer = self.peer.ask(produce_request(self.topic, batch, acks=1), PRODUCE_VERSION, ProduceResponse)
        stored = answer.responses[0].partition_responses[0]
        assert stored.error_code == 0, f"Produce was refused: {stored}"
        wanted = FetchPartition(partition=0, fetch_offset=stored.base_offset, partition_max_bytes=10_000)
        request = FetchRequest(
            max_wait_ms=5000, min_bytes=1, max_bytes=10_000, topics=[FetchTopic(topic=self.topic, partitions=[wanted])]
        )
        found = self.peer.ask(request, FETCH_VERSION, FetchResponse).responses[0].partitions[0]
        assert found.error_code == 0, f"Fetch was refused: {found}"
        assert found.records is not None
        assert parse_header(found.records).base_offset == stored.base_offset
        assert bytes(found.records[61:]) == batch[61:], "another record was fetched than was produced"


def main() -> None:
    bystander = Bystander(*sys.argv[1:3])
    due = time.monotonic_ns()
    while not select.select([sys.stdin], [], [], max(0, due - time.monotonic_ns()) / 1e9)[0]:
        bystander.trip()
        os.write(1, TRIP.pack(due, time.monotonic_ns() - due))
        due += INTERVAL_NS


if __name__ == "__main__":
    main()
