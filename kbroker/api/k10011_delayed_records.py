"""DelayedRecords (key 10011), version 0: list, cancel and deliver the pending records of a partition.

Kafka has no such API. The leader of the partition handles it; ApiVersions does not list it, so only kbroker's command
line sends it.

- A list has at most 10,000 records or about 1 MiB, in the order of their due times; the next request names the last
  one. A record that retention moves between two of them is in both responses, in the latter with its former offset.
  Without `include_payload` a list has keys, due times and the headers that ask for the delay. With max_records 0 the
  response has the counts only.
- A cancellation or delivery is a batch of the log, and is acknowledged when it is committed, as with acks=all. After
  an error it may have taken effect nevertheless; a repeated request then finds that the records are not pending.
- INVALID_REQUEST: the topic has no delayed delivery, or there are too many offsets. A record that cannot be cancelled
  or delivered has its own error: OFFSET_OUT_OF_RANGE, INVALID_RECORD (not delayed), CONCURRENT_TRANSACTIONS (its
  transaction is open), RESOURCE_NOT_FOUND (delivered or cancelled). A record that retention has moved lately is found
  by its old offset, too.
"""

from typing import Any

from kbroker.api.authorization import Request, one
from kbroker.api.context import Handle, RequestContext, Services
from kbroker.authorization.acl import Operation, ResourceType
from kbroker.common import KafkaError
from kbroker.queues.delay.pending_requests import PendingRequests
from kbroker.runtime.turns import drained
from protocol.errors import ErrorCode, MalformedError
from protocol.messages.k10011_delayed_records import (
    DelayedRecord,
    DelayedRecordHeader,
    DelayedRecordResult,
    DelayedRecordsRequest,
    DelayedRecordsResponse,
)

# A list may have 10,000 records.
RUNS_IN_TURNS = True

LIST, CANCEL, DELIVER = range(3)
# Of a list, and of the offsets to cancel or to deliver.
MAX_RECORDS, MAX_OFFSETS = 10_000, 1000


async def handle(services: Services, context: RequestContext, request: DelayedRecordsRequest) -> DelayedRecordsResponse:
    response = DelayedRecordsResponse()
    try:
        await _operate(services, request, response)
    except MalformedError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    return response


def authorize(checked: Request, handle: Handle) -> Any:
    """A list of counts needs DESCRIBE, one of records READ, a cancellation DELETE, an early delivery WRITE."""
    request = checked.body
    operation = {CANCEL: Operation.DELETE, DELIVER: Operation.WRITE}.get(request.operation, Operation.READ)
    if request.operation == LIST and not request.max_records:
        operation = Operation.DESCRIBE
    return one(operation, ResourceType.TOPIC, "topic_name")(checked, handle)


async def _operate(services: Services, request: DelayedRecordsRequest, response: DelayedRecordsResponse) -> None:
    partition = services.replicas.leader(request.topic_name, request.partition_index)
    delivery = services.delayed.delivery_of(partition)
    if delivery is None:
        message = f"Topic '{request.topic_name}' has no delayed delivery: kbroker.delay.enable is not true."
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    if request.operation not in (LIST, CANCEL, DELIVER):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"There is no operation {request.operation}.")
    if len(request.offsets) > MAX_OFFSETS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"A request has at most {MAX_OFFSETS} offsets.")
    if request.max_records < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"max_records is {request.max_records}; it cannot be negative.")
    pending = PendingRequests(services.environment, partition, delivery)
    if request.operation == LIST:
        after = None if request.after_offset < 0 else (request.after_due_ms, request.after_offset)
        page, response.has_more = await pending.list_page(
            after, min(request.max_records, MAX_RECORDS), include_payload=request.include_payload
        )
        for record in drained(page):
            headers = [DelayedRecordHeader(name=name, value=value) for name, value in record.headers]
            response.records.append(
                DelayedRecord(
                    offset=record.offset,
                    due_ms=record.due_ms,
                    timestamp_ms=record.timestamp,
                    key=record.key,
                    value=record.value,
                    value_size=record.value_size,
                    headers=headers,
                    moved_from=record.moved_from,
                )
            )
    else:
        change = pending.cancel if request.operation == CANCEL else pending.deliver_now
        results = await change(request.offsets)
        await pending.wait_until_committed(max(request.timeout_ms, 0))
        response.results = [
            DelayedRecordResult(offset=offset, error_code=error, error_message=message)
            for offset, error, message in sorted(results)
        ]
    state = delivery.state
    first_due_ms = state.pending.first_due_ms()
    response.pending_count, response.open_transaction_count = len(state.pending), state.count - len(state.pending)
    response.first_due_ms = -1 if first_due_ms is None else first_due_ms
