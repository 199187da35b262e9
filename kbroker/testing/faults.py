"""Faults and recorded requests: what a test does to requests, and sees of them.

Each request of a client passes through `FaultDispatch`, which wraps the handler of its API. Only brokers inside tests
have it. Responses are not cached there, so that no request is missed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import count
from threading import Lock
from typing import Any, NamedTuple

from kbroker.api.authorization import after as then
from kbroker.api.context import ApiHandler, RequestContext, Services
from kbroker.api.dispatch import Dispatch
from kbroker.api.response_errors import failed_response, no_failed_response
from kbroker.common import KafkaError
from kbroker.replica.produce.produce_response import error_result
from kbroker.runtime.environment import Environment
from protocol.apis import ALL_APIS, ApiKey
from protocol.errors import ErrorCode
from protocol.fast.fetch import FetchRequest, FetchResponse, FetchResult
from protocol.fast.produce import ProduceRequest
from protocol.messages import message_classes
from protocol.schema.message import Struct, StructType

# The client id of the test itself, whose requests are neither recorded nor disturbed.
TEST_CLIENT_ID = "kbroker.testing"
# Only the last requests are kept.
MAX_REQUESTS = 10_000
# The fields of requests that name topics and groups.
_TOPIC_FIELDS = frozenset({"name", "topic", "topics", "topic_name", "topic_names", "subscribed_topic_names"})
_GROUP_FIELDS = frozenset({"group_id", "groups", "group_ids", "groups_names", "key", "coordinator_keys"})
# The fields that identify an element of a response.
_ELEMENT_KEYS = ("group_id", "transactional_id", "name", "key")
_APIS_BY_NAME = {api.key.name.replace("_", "").lower(): api.key for api in ALL_APIS.values()}


def api_named(name: str) -> str:
    """Return Kafka's name of an API, OffsetCommit, also for "OFFSET_COMMIT". Raises ValueError."""
    key = _APIS_BY_NAME.get(name.replace("_", "").lower())
    if key is None:
        raise ValueError(f"there is no API {name!r}; the names are those of Kafka, such as Produce or OffsetCommit")
    return api_title(key)


def api_title(key: int) -> str:
    return message_classes(ApiKey(key))[0].__name__.removesuffix("Request")


class RecordedRequest(NamedTuple):
    """A request that the broker has received.

    `fields`: those of Kafka's message definition, in snake case. Of Produce, a partition has the number of bytes of its
    records. `topics`, `groups`: those that it names; of a Fetch in a session, also the topics of the session.
    """

    api: str
    version: int
    client_id: str | None
    topics: frozenset[str]
    groups: frozenset[str]
    fields: dict[str, Any]

    def is_about(self, api: str | None, topic: str | None, group: str | None, client_id: str | None) -> bool:
        """Return whether the request is of this API and client, and names this topic and group; None for any."""
        return (
            api in (None, self.api)
            and (topic is None or topic in self.topics)
            and (group is None or group in self.groups)
            and client_id in (None, self.client_id)
        )


@dataclass(eq=False)
class Fault:
    """What happens to requests of an API. `hits`: how many it has hit. `count`: how many it hits at most.

    `after`: the request is carried out before its response is replaced, or its connection closed. A block `with` ends
    with the removal of the fault.
    """

    requests: RequestLog
    number: int
    api: str
    error: ErrorCode | None = None
    delay_ms: int = 0
    drop: bool = False
    after: bool = False
    topic: str | None = None
    group: str | None = None
    client_id: str | None = None
    count: int | None = None
    hits: int = 0

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Disturb no more requests."""
        if self in self.requests.faults:
            self.requests.faults.remove(self)

    def matches(self, request: RecordedRequest) -> bool:
        is_left = self.count is None or self.hits < self.count
        return is_left and request.is_about(self.api, self.topic, self.group, self.client_id)

    def __str__(self) -> str:
        named = [f"{name}={value}" for name in ("topic", "group", "delay_ms") if (value := getattr(self, name))]
        return " ".join(
            [self.api, *named, *(["drop"] if self.drop else []), *([self.error.name] if self.error else [])]
        )


class RequestLog:
    """The faults that are installed and the requests that were recorded, by all brokers of a test."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.requests: deque[RecordedRequest] = deque(maxlen=MAX_REQUESTS)
        self.numbers = count(1)
        self._lock = Lock()

    def record(self, request: RecordedRequest) -> Fault | None:
        """Record a request, and return the fault that hits it: the one that was installed first."""
        with self._lock:
            self.requests.append(request)
            for fault in self.faults:
                if fault.matches(request):
                    fault.hits += 1
                    return fault
        return None

    def clear(self) -> None:
        with self._lock:
            self.faults.clear()
            self.requests.clear()


class FaultDispatch(Dispatch):
    """Handlers that record each request of a client, and do to it what a fault says."""

    def __init__(self, log: RequestLog, environment: Environment) -> None:
        super().__init__()
        self._log, self._environment = log, environment

    def __missing__(self, key: tuple[int, int]) -> ApiHandler:
        handler = super().__missing__(key)
        if key not in self:
            return handler  # an unknown version of ApiVersions
        observed = self[key] = self._observed(handler)
        return observed

    def _observed(self, handler: ApiHandler) -> ApiHandler:
        def handle(services: Services, context: RequestContext, request: Any) -> Any:
            if context.client_id == TEST_CLIENT_ID:
                return handler.handle(services, context, request)
            recorded = recorded_request(services, context, request)
            fault = self._log.record(recorded)
            if fault is None:
                return handler.handle(services, context, request)
            return self._apply(fault, handler, services, context, request)

        return replace(
            handler, handle=handle, is_cacheable=None, find_response=None, keep_response=None, may_be_cached=False
        )

    def _apply(
        self, fault: Fault, handler: ApiHandler, services: Services, context: RequestContext, request: Any
    ) -> Any:
        def end(response: Any) -> Any:
            """Return the response that the client gets."""
            if fault.drop or (fault.error is not None and has_no_response(request)):
                context.connection.close("fault of a test", context, fault=str(fault))
                return None
            if fault.error is not None:
                return error_response(services, context, request, fault)
            return response

        async def end_later(response: Any) -> Any:
            result = await response if hasattr(response, "__await__") else response
            await self._environment.sleep(fault.delay_ms / 1000)
            return end(result)

        is_handled = fault.after or not (fault.drop or fault.error is not None)
        is_patched = context.api_key == ApiKey.METADATA and fault.error is not None
        response = handler.handle(services, context, request) if is_handled or is_patched else None
        if is_patched:
            return then(response, lambda found: metadata_with_errors(found, fault))
        return end_later(response) if fault.delay_ms else then(response, end)


# What requests name.


def recorded_request(services: Services, context: RequestContext, request: Any) -> RecordedRequest:
    fields = _fields(request)
    topics, groups = set(_values(fields, _TOPIC_FIELDS)), set(_values(fields, _GROUP_FIELDS))
    in_session = (key for key, _ in _session_partitions(services, request))
    for key in (*_values(fields, frozenset({"topic_id"})), *in_session):
        topic = services.metadata.topics_by_id.get(key) if isinstance(key, bytes) else None
        topics.add(key if topic is None else topic.name)
    return RecordedRequest(
        api_title(context.api_key), context.version, context.client_id, _names(topics), _names(groups), fields
    )


def _names(values: Iterable[str | bytes]) -> frozenset[str]:
    return frozenset(value for value in values if isinstance(value, str) and value)


def _session_partitions(services: Services, request: Any) -> list[tuple[str | bytes, int]]:
    """Return the partitions that a Fetch need not name because its session has them (KIP-227)."""
    if not isinstance(request, FetchRequest) or not request.session_id:
        return []
    sessions = (each for each in services.fetching.sessions.all() if each.id == request.session_id)
    return [key for session in sessions for key in session.partitions]


def _fields(request: Any) -> dict[str, Any]:
    """Return a copy of a request: its records are in a buffer that is used again."""
    topics: list[tuple[str | bytes, list[dict[str, int]]]]
    if isinstance(request, ProduceRequest):
        fields = request._asdict()
        topics = [
            (key, [{"index": at, "bytes": len(data or b"")} for at, data in rows]) for key, rows in request.topics
        ]
    elif isinstance(request, FetchRequest):
        fields = {name: value for name, value in asdict(request).items() if name != "forgotten"}
        topics = [
            (key, [{"partition": row[0], "fetch_offset": row[2]} for row in rows]) for key, rows in request.topics
        ]
    else:
        copied = _plain(request)
        return copied if isinstance(copied, dict) else {}
    named = [{"name" if isinstance(key, str) else "topic_id": key, "partitions": rows} for key, rows in topics]
    return {**fields, "topics": named}


def _plain(value: Any) -> Any:
    if isinstance(value, Struct):
        return {name: _plain(getattr(value, name)) for name in type(value).__rows__}
    if isinstance(value, list | tuple):
        return [_plain(element) for element in value]
    return bytes(value) if isinstance(value, memoryview | bytearray) else value


def _values(value: Any, names: frozenset[str]) -> Iterator[str | bytes]:
    """Yield the strings and ids in the fields with these names, of all structs in a request."""
    if isinstance(value, dict):
        for name, element in value.items():
            if name in names:
                parts = element if isinstance(element, list) else [element]
                yield from (part for part in parts if isinstance(part, str | bytes))
            yield from _values(element, names)
    elif isinstance(value, list):
        for element in value:
            yield from _values(element, names)


# Responses with errors.


def has_no_response(request: Any) -> bool:
    """Return whether clients expect no response: as in Kafka, the end of the connection reports the error."""
    return isinstance(request, ProduceRequest) and request.acks == 0


def error_response(services: Services, context: RequestContext, request: Any, fault: Fault) -> Any:
    """Return the response in which all that was requested has the error."""
    assert fault.error is not None
    code = fault.error
    if isinstance(request, ProduceRequest):
        return [(key, [error_result(index, code) for index, _ in rows]) for key, rows in request.topics]
    if isinstance(request, FetchRequest):
        return _fetch_response(services, request, code)
    fail = context.handler.fail
    response_class = message_classes(ApiKey(context.api_key))[1]
    row = response_class.__rows__.get("error_code")
    is_usual = fail in (failed_response, no_failed_response)
    if not is_usual or (row is not None and row.is_in(context.version)):
        return fail(context, request, KafkaError(code))
    return _elements_response(request, response_class, code)


def _fetch_response(services: Services, request: FetchRequest, code: ErrorCode) -> FetchResponse:
    """Return the error for the partitions of the request and of its session, which ends: it has missed this request."""
    named = {(key, row[0]) for key, rows in request.topics for row in rows}
    named.update(_session_partitions(services, request))
    topics: dict[str | bytes, list[FetchResult]] = {}
    for key, index in named:
        topics.setdefault(key, []).append(FetchResult(index, code, -1, -1, -1, None, b""))
    return FetchResponse(0, 0, list(topics.items()))


def _elements_response(request: Any, response_class: Any, code: ErrorCode) -> Any:
    """Return a response whose elements have the error: one for each element of a list in the request."""
    lists = (value for name in type(request).__rows__ if isinstance(value := getattr(request, name), list))
    elements = next(value for value in lists if value)
    for name, row in response_class.__rows__.items():
        row_class = row.type[0] if isinstance(row.type, list) else None
        if isinstance(row_class, StructType) and "error_code" in row_class.__rows__:
            key = next(each for each in _ELEMENT_KEYS if each in row_class.__rows__)
            rows = [row_class(**{key: getattr(each, key, each), "error_code": code}) for each in elements]
            return response_class(**{name: rows})
    raise KafkaError(code)


def metadata_with_errors(response: Any, fault: Fault) -> Any:
    """Set the error of the topics: without the brokers in the response, clients would have nobody to ask again."""
    for topic in response.topics:
        if fault.topic is None or topic.name == fault.topic:
            topic.error_code, topic.partitions = fault.error, []
    return response
