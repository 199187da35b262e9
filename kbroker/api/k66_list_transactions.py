"""ListTransactions (key 66), versions 0 to 2 (KIP-664): the transactional ids of this broker.

- Filters by state, by producer id, by duration (version 1, KIP-994), by a pattern for the whole transactional id
  (version 2, KIP-1152). State names are as Kafka writes them; unknown ones are told, and let nothing pass.
- The duration is the time since the start of the last transaction. As in Kafka an id that never had one, whose start
  is -1, has lasted for ever.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.api.pattern.pattern import Pattern
from kbroker.common import KafkaError
from kbroker.coordinator.transaction.states import LABELS
from kbroker.coordinator.transaction.transaction_metadata import Transaction
from protocol.messages.k66_list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)


async def handle(
    services: Services, context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    try:
        found = services.transactions.list()
        pattern = Pattern(request.transactional_id_pattern) if request.transactional_id_pattern else None
    except KafkaError as refusal:
        return ListTransactionsResponse(error_code=refusal.code)
    now_ms = services.environment.clock.now_ms()
    states, producers, duration_ms = (
        set(request.state_filters),
        set(request.producer_id_filters),
        request.duration_filter,
    )

    def is_wanted(one: Transaction) -> bool:
        return (
            (not states or one.state.label in states)
            and (not producers or one.producer_id in producers)
            and (duration_ms < 0 or now_ms - one.start_ms > duration_ms)
        )

    wanted = [one for one in found if is_wanted(one)]
    if pattern is not None:
        wanted = [one for one in wanted if await _matches(services, pattern, one.transactional_id)]
    return ListTransactionsResponse(
        unknown_state_filters=[name for name in request.state_filters if name not in LABELS.values()],
        transaction_states=[
            TransactionState(
                transactional_id=one.transactional_id,
                producer_id=one.producer_id,
                transaction_state=one.state.label,
            )
            for one in wanted
        ],
    )


async def _matches(services: Services, pattern: Pattern, text: str) -> bool:
    """With turns of the others where it takes long."""
    work = pattern.matching(text)
    while True:
        try:
            next(work)
        except StopIteration as end:
            return bool(end.value)
        await services.environment.turn()
