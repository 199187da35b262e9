"""ListTransactions (key 66), versions 0 to 2 (KIP-664): the transactional ids of this broker.

- Filters: state; producer id; duration (version 1, KIP-994); a pattern for the whole transactional id (version 2,
  KIP-1152).
- State names are case-sensitive. Unknown ones are returned, and match nothing.
- The duration is the time since the start of the last transaction. As in Kafka, an id that never had a transaction
  (start time -1) passes every duration filter.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from kbroker.api.context import RequestContext, Services
from kbroker.coordinator.re2_pattern import Re2Pattern
from kbroker.coordinator.transaction.transaction_metadata import STATE_NAMES, TransactionMetadata
from kbroker.runtime.turns import paced
from protocol.messages.k66_list_transactions import ListTransactionsRequest, ListTransactionsResponse, TransactionState

# A broker may have thousands of transactional ids.
RUNS_IN_TURNS = True

KNOWN_STATES = frozenset(STATE_NAMES.values())

# The characters of transactional ids that are matched in one call of a thread. The worst patterns take a second.
MAX_CHARACTERS_PER_CALL = 32_768


async def handle(
    services: Services, context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    passes = _filter(request, services.environment.clock.now_ms())
    listed = services.transactions.list_transactions()
    transactions = [transaction for transaction in paced(listed) if passes(transaction)]
    if request.transactional_id_pattern:
        pattern = await services.environment.offload(Re2Pattern, request.transactional_id_pattern)
        transactions = await _matching(services, pattern, transactions)
    return ListTransactionsResponse(
        unknown_state_filters=[name for name in paced(request.state_filters) if name not in KNOWN_STATES],
        transaction_states=[_state(transaction) for transaction in paced(transactions)],
    )


def _state(transaction: TransactionMetadata) -> TransactionState:
    return TransactionState(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        transaction_state=transaction.state.state_name,
    )


def _filter(request: ListTransactionsRequest, now_ms: int) -> Callable[[TransactionMetadata], bool]:
    """Return the filters of a request except for the pattern."""
    states, producer_ids = set(request.state_filters), set(request.producer_id_filters)
    duration_ms = request.duration_filter

    def passes(transaction: TransactionMetadata) -> bool:
        return (
            (not states or transaction.state.state_name in states)
            and (not producer_ids or transaction.producer_id in producer_ids)
            and (duration_ms < 0 or now_ms - transaction.start_ms > duration_ms)
        )

    return passes


async def _matching(
    services: Services, pattern: Re2Pattern, transactions: Sequence[TransactionMetadata]
) -> list[TransactionMetadata]:
    by_id = {transaction.transactional_id: transaction for transaction in paced(transactions)}
    matching: list[TransactionMetadata] = []
    for ids in _chunks(by_id):
        matching += [by_id[id] for id in await services.environment.offload(pattern.select_blocking, ids)]
    return matching


def _chunks(ids: Iterable[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    length = 0
    for id in ids:
        chunk.append(id)
        length += len(id)
        if length >= MAX_CHARACTERS_PER_CALL:
            yield chunk
            chunk, length = [], 0
    if chunk:
        yield chunk
