"""Reports the error codes of a response to the log and to the counters, one line per code.

Responses are declared as rows (protocol/messages), so the fields with error codes are found in the declaration, once
per class, and a function is generated that checks them. After that, a response without errors costs one comparison per
code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.schema.function_source import FunctionSource
from protocol.schema.message import Message, StructType

if TYPE_CHECKING:
    from kbroker.api.context import RequestContext
    from protocol.fast.fetch import FetchRequest, FetchResponse, FetchResult
    from protocol.fast.produce import PartitionResult, ProduceRequest, TopicResult

T = TypeVar("T")

# The fields that identify the subject of an error code, and their names in the log.
SUBJECTS = {
    "group_id": "group",
    "key": "group",
    "log_dir": "log_dir",
    "member_id": "member",
    "name": "topic",
    "partition": "partition",
    "partition_index": "partition",
    "resource_name": "resource",
    "topic": "topic",
    "topic_id": "topic_id",
    "topic_name": "topic",
    "transactional_id": "transactional_id",
    "user": "user",
}
# The fields of requests that are logged too, since responses do not repeat them.
REQUEST_SUBJECTS = ("group_id", "transactional_id", "member_id")

Subject = dict[str, object]


class ErrorFields(NamedTuple):
    """The error codes in a struct: its own, and those of the structs in its list fields `children`."""

    has_code: bool
    has_message: bool
    subjects: tuple[tuple[str, str], ...]
    children: tuple[tuple[str, ErrorFields], ...]


# The structs from the response down to the one with the error code, each with its fields.
ErrorPath = tuple[tuple[ErrorFields, Any], ...]


class ResponseError(NamedTuple):
    """One error code of a response. `message`: the response's text for the client. `subject`: log fields."""

    code: int
    message: str | None
    subject: Subject


class FoundErrors:
    """The error codes of a response: how often each occurs, and the path to the first."""

    __slots__ = ("counts", "first")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.first: dict[int, ErrorPath] = {}

    def add(self, code: int, path: ErrorPath) -> None:
        if code in self.counts:
            self.counts[code] += 1
        else:
            self.counts[code] = 1
            self.first[code] = path


# Responses that are declared as rows.


def error_fields(cls: StructType) -> ErrorFields | None:
    """Return where a struct class has error codes; None if it has none."""
    rows = cls.__rows__
    children = []
    for name, row in rows.items():
        if isinstance(row.type, list) and isinstance(row.type[0], StructType):
            child = error_fields(row.type[0])
            if child is not None:
                children.append((name, child))
    if not children and "error_code" not in rows:
        return None
    subjects = tuple((field, shown) for field, shown in SUBJECTS.items() if field in rows)
    return ErrorFields("error_code" in rows, "error_message" in rows, subjects, tuple(children))


def error_check(fields: ErrorFields, title: str) -> Callable[[Message], bool]:
    """Generate the function that returns whether a response has an error."""
    source = FunctionSource("def function(response):")
    _emit_check(source, fields, "response")
    source.emit("return False")
    function: Callable[[Message], bool] = source.compile(title)
    return function


def _emit_check(source: FunctionSource, fields: ErrorFields, struct: str) -> None:
    if fields.has_code:
        with source.block(f"if {struct}.error_code:"):
            source.emit("return True")
    for name, child in fields.children:
        element = source.variable("v")
        with source.block(f"for {element} in {struct}.{name} or ():"):
            _emit_check(source, child, element)


@cache
def error_reporter(cls: type[Message]) -> Callable[[RequestContext, Message | None, Message], bool]:
    """Return the function that reports the errors of a response, and returns whether there are any."""
    fields = error_fields(cls)
    if fields is None:
        return lambda context, request, response: False
    error_fields_of_class = fields
    has_errors = error_check(fields, f"errors of {cls.__name__}")

    def report(context: RequestContext, request: Message | None, response: Message) -> bool:
        # In turns, the check is not made before: it does not pause.
        if not context.in_turns and not has_errors(response):
            return False
        errors = _find_errors(error_fields_of_class, response)
        # Each code once: how often it occurs, and what the first one is about.
        for code, path in errors.first.items():
            error = _error_at(request, path)
            context.connection.errors.report_error(context, code, errors.counts[code], error.message, error.subject)
        return bool(errors.first)

    return report


def errors_of(fields: ErrorFields, request: Message | None, response: Message) -> list[ResponseError]:
    """Return the first error of each code."""
    return [_error_at(request, path) for path in _find_errors(fields, response).first.values()]


def _find_errors(fields: ErrorFields, response: Any) -> FoundErrors:
    found = FoundErrors()
    _add_errors(fields, response, found, ())
    return found


def _add_errors(fields: ErrorFields, struct: Any, found: FoundErrors, path: ErrorPath) -> None:
    if fields.has_code and struct.error_code:
        found.add(struct.error_code, (*path, (fields, struct)))
    for name, child_fields in fields.children:
        for child in paced(getattr(struct, name) or ()):
            if child_fields.children:
                _add_errors(child_fields, child, found, (*path, (fields, struct)))
            elif child.error_code:
                found.add(child.error_code, (*path, (fields, struct), (child_fields, child)))


def _error_at(request: Message | None, path: ErrorPath) -> ResponseError:
    subject: Subject = {}
    rows = {} if request is None else request.__class__.__rows__
    for field in REQUEST_SUBJECTS:
        if field in rows:
            subject[SUBJECTS[field]] = getattr(request, field) or None
    for fields, struct in path:
        for field, shown in fields.subjects:
            value = getattr(struct, field)
            if field == "topic_id":
                value = None if subject.get("topic") or not any(value) else value.hex()
            if value is not None and value != "":
                subject[shown] = value
    fields, struct = path[-1]
    return ResponseError(struct.error_code, struct.error_message if fields.has_message else None, subject)


# Produce and Fetch.


def report_produce_errors(context: RequestContext, request: ProduceRequest | None, topics: list[TopicResult]) -> None:
    for _, results in topics:
        for result in paced(results) if context.in_turns else results:
            if result[1]:
                _report(context, _produce_errors(topics), partial(_produce_error, request))
                return


def _produce_errors(topics: list[TopicResult]) -> Iterator[tuple[int, tuple[str | bytes, PartitionResult]]]:
    for key, rows in topics:
        for row in paced(rows):
            if row[1]:
                yield row[1], (key, row)


def _produce_error(request: ProduceRequest | None, error: tuple[str | bytes, PartitionResult]) -> ResponseError:
    key, (index, code, _, _, _, _, message) = error
    subject = _partition_subject(key, index)
    if request is not None:
        subject["transactional_id"] = request.transactional_id
        if code == ErrorCode.INVALID_REQUIRED_ACKS:
            subject["acks"] = request.acks
    return ResponseError(code, message if isinstance(message, str) else None, subject)


def report_fetch_errors(context: RequestContext, request: FetchRequest, response: FetchResponse) -> None:
    if response.error_code:
        _report(context, [(response.error_code, None)], lambda _: _fetch_session_error(request, response.error_code))
        return
    for _, results in response.topics:
        for result in paced(results) if context.in_turns else results:
            if result.error_code:
                _report(context, _fetch_errors(response), partial(_fetch_error, request))
                return


def _fetch_errors(response: FetchResponse) -> Iterator[tuple[int, tuple[str | bytes, FetchResult]]]:
    for key, rows in response.topics:
        for row in paced(rows):
            if row.error_code:
                yield row.error_code, (key, row)


def _fetch_session_error(request: FetchRequest, code: int) -> ResponseError:
    """Return an error of the whole request."""
    subject: Subject = {"session": request.session_id or None, "epoch": request.session_epoch}
    if code == ErrorCode.UNKNOWN_SERVER_ERROR:
        return ResponseError(code, "unknown isolation level", {"isolation_level": request.isolation_level})
    return ResponseError(code, None, subject)


def _fetch_error(request: FetchRequest, error: tuple[str | bytes, FetchResult]) -> ResponseError:
    key, result = error
    subject = _partition_subject(key, result.partition)
    for requested, partitions in request.topics:
        if requested == key:
            # The request does not contain partitions that an earlier request added to the session.
            subject["offset"] = next((offset for index, _, offset, *_ in partitions if index == result.partition), None)
    return ResponseError(result.error_code, result.error_message, subject)


def _partition_subject(key: str | bytes, index: int) -> Subject:
    return {"topic": key, "partition": index} if isinstance(key, str) else {"topic_id": key.hex(), "partition": index}


def _report(context: RequestContext, errors: Iterable[tuple[int, T]], describe: Callable[[T], ResponseError]) -> None:
    """Report each code once, with its number of occurrences and the subject of the first. `errors`: (code, where)."""
    first: dict[int, T] = {}
    counts: dict[int, int] = {}
    for code, where in errors:
        first.setdefault(code, where)
        counts[code] = counts.get(code, 0) + 1
    for code, where in first.items():
        error = describe(where)
        context.connection.errors.report_error(context, code, counts[code], error.message, error.subject)
