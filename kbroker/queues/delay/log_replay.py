"""Replays the log of a partition into the state of its pending records, in slices of at most a few milliseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.common import Buffer
from kbroker.config.delay_levels import levels_ms
from kbroker.queues.delay.delay_batches import NO_EFFECTS, effects_of, has_effects
from kbroker.queues.delay.stored_batches import MAX_LOOP_BYTES
from kbroker.runtime.event_log import EventLogger
from protocol.errors import MalformedError
from protocol.records.batch import iter_headers

if TYPE_CHECKING:
    from kbroker.queues.delay.delay_state import DelayState
    from kbroker.runtime.environment import Environment
    from kbroker.storage.log.log import Log

event_log = EventLogger("kbroker.delay")

READ_BYTES = 1 << 18
# The most batches, and about the most records, that are replayed in one iteration of the event loop.
SLICE_BATCHES = 200
SLICE_RECORDS = 400


async def replay_slice(environment: Environment, log: Log, state: DelayState, end_offset: int) -> None:
    """Replay some batches from `state.next_offset` on, all of them below `end_offset`. Raises KafkaError."""
    if state.next_offset < log.log_start_offset:
        state.next_offset = log.log_start_offset
    data: Buffer | None = log.read(state.next_offset, READ_BYTES, end_offset)
    if data is None:
        data = await environment.offload(log.read_blocking, state.next_offset, READ_BYTES, end_offset)
    view = memoryview(data)
    levels = levels_ms(log.config.kbroker_delay_levels)
    replayed = decoded = 0
    for pos, header in iter_headers(view):
        if header.next_offset <= state.next_offset:
            continue
        effects = NO_EFFECTS
        if has_effects(header):
            batch = view[pos : pos + header.size]
            try:
                if header.codec or header.size > MAX_LOOP_BYTES:
                    effects = await environment.offload(effects_of, batch, header, levels)
                else:
                    effects = effects_of(batch, header, levels)
            except MalformedError as error:
                event_log.error("batch of delayed records skipped", partition=log.tp, reason=error)
            decoded += header.count
        if header.next_offset > state.next_offset:
            # Otherwise `on_appended` has replayed the batch during the await.
            state.replay(header, effects)
        replayed += 1
        if replayed >= SLICE_BATCHES or decoded >= SLICE_RECORDS:
            return
