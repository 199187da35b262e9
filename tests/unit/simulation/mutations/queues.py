"""Mistakes in delayed delivery and in idempotency keys."""

from collections.abc import Iterator
from typing import Any

from kbroker.queues.dedup.key_table import KeyTable
from kbroker.queues.delay import delivery
from kbroker.queues.delay.delay_batches import Effects
from kbroker.queues.delay.pending_records import PendingRecords
from tests.unit.simulation.mutations.mutation import LIVENESS, mutation, replaces
from tests.unit.simulation.mutations.shapes import only

BROKEN = ["BrokenQueue"]
KILLS = only("kill", producers=1, readers=1, members=0, deleters=0)


@mutation("queues", BROKEN, KILLS)
@replaces(delivery, "effects_of")
def deliveries_are_not_replayed(real: Any, *batch: Any) -> Effects:
    """After a restart, records that were delivered before are pending again."""
    effects: Effects = real(*batch)
    return effects._replace(removed=[])


@mutation("queues", [LIVENESS, *BROKEN], KILLS)
@replaces(delivery, "effects_of")
def stored_records_are_not_replayed(real: Any, *batch: Any) -> Effects:
    """After a restart, the last stored record of each batch is not pending."""
    effects: Effects = real(*batch)
    return effects._replace(added=effects.added[:-1])


@mutation("queues", BROKEN, KILLS)
@replaces(PendingRecords, "due")
def records_are_delivered_early(real: Any, pending: Any, now_ms: int, *limit: Any) -> Any:
    """Records are delivered up to 300 ms before they are due."""
    return real(pending, now_ms + 300, *limit)


@mutation("queues", BROKEN, KILLS)
@replaces(KeyTable, "replay")
def keys_are_not_replayed(_: Any, *batch: Any) -> Iterator[None]:
    """After a restart, the keys of stored records are not known."""
    return iter(())
