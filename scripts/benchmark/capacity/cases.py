"""The list of capacity cases, with the ratios to Apache Kafka that the project requires."""

from scripts.benchmark.capacity import small_cases
from scripts.benchmark.capacity.case import Case
from scripts.benchmark.capacity.data_cases import fetching, fetching_in_session, producing
from scripts.benchmark.capacity.producer_cases import idempotent, transactional


def all_cases() -> list[Case]:
    # Two batches of 4 KiB are below 8 KiB.
    batch = 4, 990
    return [
        Case("produce 64 KiB of 100 B", producing(570, 100), 1.4, 0.45),
        Case("produce 16 KiB of 1 KiB", producing(15, 1024), 1.1, 0.55),
        Case("produce 1 record", producing(1, 100, connections=8), 1.1, 0.6),
        Case("produce 1 MiB", producing(900, 1024, partitions=2, in_flight=2), 1.0, 0.7),
        Case("fetch 1 MiB", fetching(1 << 20, 60, 1024, response_bytes=900_000, connections=4), 0.7, 1.0),
        Case("fetch 8 KiB, batches of 60 KiB", fetching(8 << 10, 60, 1024, response_bytes=60_000), 0.8, 0.9),
        Case("fetch 8 KiB, batches of 4 KiB", fetching(8 << 10, *batch, response_bytes=8_000)),
        Case("metadata", small_cases.metadata, 1.1, 0.5),
        Case("offset commit", small_cases.committing, 1.3, 0.5),
        Case("idempotent produce 16 KiB", idempotent(15, 1024)),
        Case("idempotent produce 1 record", idempotent(1, 100, connections=8)),
        Case("transactional produce 16 KiB", transactional(15, 1024)),
        Case("heartbeat", small_cases.heartbeats),
        Case("list offsets", small_cases.listing_offsets),
        Case("find coordinator", small_cases.finding_coordinator),
        Case("api versions", small_cases.api_versions),
        Case("describe configs", small_cases.describing_configs),
        Case("produce 1 record, 500 connections", producing(1, 100, connections=500, in_flight=1)),
        Case("fetch session of 1,000 partitions", fetching_in_session(1_000)),
        Case("produce 1 record, one in flight", producing(1, 100, connections=1, in_flight=1)),
        Case("fetch 8 KiB, one in flight", fetching(8 << 10, *batch, response_bytes=8_000, connections=1, in_flight=1)),
    ]
