"""Replays the log of a partition into the state of its pending records, in turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.config.queue_configs import levels_ms
from kbroker.queues.delay.delay_batches import NO_EFFECTS, effects_of, has_effects, is_transactional
from kbroker.queues.delay.stored_records import READ_BYTES, read_batches, read_body
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.turns import yield_if_due
from protocol.errors import MalformedError
from protocol.records.batch import iter_headers

if TYPE_CHECKING:
    from kbroker.queues.delay.delay_state import DelayState
    from kbroker.runtime.environment import Environment
    from kbroker.storage.log.log import Log

event_log = EventLogger("kbroker.delay")

# Records of a committed transaction that become pending without a pause.
COMMITTED_AT_ONCE = 64


async def replay_batches(environment: Environment, log: Log, state: DelayState, end_offset: int) -> None:
    """Replay some batches from `state.next_offset` on, all of them below `end_offset`. Raises KafkaError."""
    if state.next_offset < log.log_start_offset:
        state.next_offset = log.log_start_offset
    view = await read_batches(environment, log, state.next_offset, READ_BYTES, end_offset)
    levels = levels_ms(log.config.kbroker_delay_levels)
    for pos, header in iter_headers(view):
        if header.next_offset <= state.next_offset:
            continue
        effects = NO_EFFECTS
        if has_effects(header):
            batch = view[pos : pos + header.size]
            try:
                body = await read_body(environment, batch, header)
                effects = effects_of(batch, body, header, levels)
            except MalformedError as error:
                event_log.error("batch of delayed records skipped", partition=log.tp, reason=error)
        if effects.committed:
            while state.commit_some(header.producer_id, COMMITTED_AT_ONCE):
                yield_if_due()
        if not is_transactional(header):
            state.add_some(effects.added)
            effects = effects._replace(added=[])
        if header.next_offset > state.next_offset:
            # Otherwise `on_appended` has replayed the batch during a pause.
            state.replay(header, effects)
        yield_if_due()
