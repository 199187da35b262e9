"""A well-behaved client that measures latency: timed round trips until its standard input is closed.

    python -m tests.compat.hostile.latency_probe HOST:PORT TOPIC

A process of its own, so that the processor time of an attacker does not delay it. A round trip is a record that is
produced and fetched back. Each is written to standard output when it ends: when it was due, when it started and when
it ended, in nanoseconds of the monotonic clock. An error ends the process. A line on standard input sets the interval
between two round trips, in nanoseconds.
"""

import os
import select
import struct
import sys
import time

from protocol.messages.k00_produce import ProduceResponse
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.records.batch import build_batch, parse_header
from tests.compat.hostile.raw_client import RawClient, produce_request

TRIP = struct.Struct("<qqq")
INTERVAL_NS = 5_000_000
PRODUCE_VERSION, FETCH_VERSION = 9, 11


class LatencyProbe:
    def __init__(self, bootstrap: str, topic: str) -> None:
        self.client = RawClient(bootstrap, "probe")
        self.topic = topic

    def round_trip(self) -> None:
        """Produce a record, fetch it back, and compare."""
        batch = bytes(build_batch([(time.time_ns() // 1_000_000, b"key", b"v" * 100, ())]))
        response = self.client.request(produce_request(self.topic, batch, acks=1), PRODUCE_VERSION, ProduceResponse)
        produced = response.responses[0].partition_responses[0]
        assert produced.error_code == 0, f"Produce failed: {produced}"
        partition = FetchPartition(partition=0, fetch_offset=produced.base_offset, partition_max_bytes=10_000)
        topics = [FetchTopic(topic=self.topic, partitions=[partition])]
        request = FetchRequest(max_wait_ms=5000, min_bytes=1, max_bytes=10_000, topics=topics)
        fetched = self.client.request(request, FETCH_VERSION, FetchResponse).responses[0].partitions[0]
        assert fetched.error_code == 0, f"Fetch failed: {fetched}"
        assert fetched.records is not None
        assert parse_header(fetched.records).base_offset == produced.base_offset
        assert bytes(fetched.records[61:]) == batch[61:], "the fetched record is not the produced one"


def main() -> None:
    probe = LatencyProbe(*sys.argv[1:3])
    interval = INTERVAL_NS
    due = time.monotonic_ns()
    while True:
        if select.select([0], [], [], max(0, due - time.monotonic_ns()) / 1e9)[0]:
            lines = os.read(0, 4096).split()
            if not lines:
                return
            interval = int(lines[-1])
            due = time.monotonic_ns()
        start = time.monotonic_ns()
        probe.round_trip()
        os.write(1, TRIP.pack(due, start, time.monotonic_ns()))
        due += interval


if __name__ == "__main__":
    main()
