"""Appends a client's batch to a partition with an append extension: validates and inspects it, then calls `append`."""

from __future__ import annotations

from typing import Protocol

from kbroker.replica.produce.append_extension import AppendExtension, AppendResult, NeedsLoadedState
from kbroker.replica.produce.batch_validation import validate_batch
from kbroker.replica.produce.record_validation import InspectedBatch, ValidatedBatch, invalid_record
from kbroker.replica.produce.record_validator import inspect_small
from kbroker.storage.log.log import Log
from kbroker.storage.producers.transactions import VerificationGuard


class ExtendedPartition(Protocol):
    """The part of a Partition that this module uses."""

    @property
    def log(self) -> Log: ...


def append_extended(
    partition: ExtendedPartition,
    extension: AppendExtension,
    records: memoryview | None,
    produce_version: int,
    now_ms: int,
    transactional: bool,
    guard: VerificationGuard | None,
    must_verify: bool,
    validated: ValidatedBatch | InspectedBatch | None,
) -> AppendResult:
    """Validate and inspect the batch of a client, and let the extension append it.

    Parameters, result and errors are those of Partition.append_as_leader.
    """
    log = partition.log
    if not extension.is_ready:
        raise NeedsLoadedState(extension, validated)
    if validated is None:
        validated = validate_batch(records, log.config, now_ms, produce_version, transactional)
    if isinstance(validated, InspectedBatch) and validated.inspect != extension.inspect:
        # The topic's configs have changed meanwhile: inspect the batch again.
        validated = validated.validated
    if not isinstance(validated, InspectedBatch):
        if validated[1].is_hidden:
            raise invalid_record("Clients are not allowed to write hidden batches.")
        validated = inspect_small(validated, extension.inspect, log.config)
    _, header, _ = validated.validated
    stored = None
    if header.producer_id >= 0:
        duplicate = log.producers.check(header, guard, must_verify)
        if duplicate is not None:
            base_offset, last_offset, append_time_ms = duplicate
            stored = base_offset, last_offset + 1, append_time_ms
    return extension.append(partition, validated, stored, now_ms)
