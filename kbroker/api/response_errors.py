"""Errors in responses: the response to a request that failed as a whole, and the report of the error codes in any.

Responses are declared as rows (protocol/messages), so the fields with error codes are found in the declaration, once
per class, and a function is generated that checks them. After that, a response without errors costs one comparison per
code. Each code is reported once, to the log and to the counters: how often it occurs, and what the first one is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

from kbroker.api.context import RequestContext
from kbroker.common import KafkaError
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.schema.function_source import FunctionSource
from protocol.schema.message import Message, StructType

T = TypeVar("T")


def failed_response(context: RequestContext, request: Any, error: KafkaError) -> Any:
    """Return a response with the error code, and the message if it has a field for it."""
    response = context.handler.response_type(error_code=error.code)
    if "error_message" in type(response).__rows__:
        response.error_message = error.message
    return response


def failed_rows_response(context: RequestContext, request: Any, error: KafkaError) -> Any:
    """Return a response with the error in each row of its only list, which are those of the first list in the request.

    If the response has a code of its own, only refused topics are such rows, as in Kafka.
    """
    response_class: Any = context.handler.response_type
    if "error_code" in response_class.__rows__ and error.code is not ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return failed_response(context, request, error)
    elements = getattr(request, list_of(type(request)))
    name = list_of(response_class)
    return response_class(**{name: _failed_rows(response_class.__rows__[name].type[0], elements, error)})


def no_failed_response(context: RequestContext, request: Any, error: KafkaError) -> Message:
    """Raise the error, which closes the connection: the response has no field for it."""
    raise error


def list_of(cls: Any) -> str:
    """Return the name of the first list in a message."""
    name: str = next(name for name, row in cls.__rows__.items() if isinstance(row.type, list))
    return name


def _failed_rows(row_class: StructType, elements: Iterable[Any], error: KafkaError) -> list[Any]:
    """Return a row with the error for each element of a request, or for each of its partitions if these have codes."""
    return [_failed_row(row_class, element, error) for element in paced(elements)]


def _failed_row(row_class: StructType, element: Any, error: KafkaError) -> Any:
    fields: dict[str, Any] = {"error_code": error.code, "error_message": error.message}
    for name, value in row_class.__rows__.items():
        if name in type(element).__rows__:
            if isinstance(value.type, list):
                fields[name] = _failed_rows(value.type[0], getattr(element, name), error)
            elif name in SUBJECTS:
                fields[name] = getattr(element, name)
    return row_class(**{name: value for name, value in fields.items() if name in row_class.__rows__})


# Reports.

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

# The client lacks a right.
DENIED = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    }
)

Subject = dict[str, object]
# The response's text for the client, and log fields.
Description = tuple[str | None, Subject]


def report_errors(
    context: RequestContext, errors: Iterable[tuple[int, T]], describe: Callable[[T], Description]
) -> bool:
    """Report each code once, with its number of occurrences and the subject of the first. `errors`: (code, where).

    Returns whether there are any.
    """
    first: dict[int, T] = {}
    counts: dict[int, int] = {}
    for code, where in errors:
        first.setdefault(code, where)
        counts[code] = counts.get(code, 0) + 1
        if code in DENIED:
            context.connection.errors.report_denied(context, code, describe(where)[1])
    for code, where in first.items():
        message, subject = describe(where)
        context.connection.errors.report_error(context, code, counts[code], message, subject)
    return bool(first)


def partition_subject(topic: str | bytes, index: int) -> Subject:
    if isinstance(topic, str):
        return {"topic": topic, "partition": index}
    return {"topic_id": topic.hex(), "partition": index}


class ErrorFields(NamedTuple):
    """The error codes in a struct: its own, and those of the structs in its list fields `children`."""

    has_code: bool
    has_message: bool
    subjects: tuple[tuple[str, str], ...]
    children: tuple[tuple[str, ErrorFields], ...]


# The structs from the response down to the one with the error code, each with its fields.
ErrorPath = tuple[tuple[ErrorFields, Any], ...]


@cache
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
    error_fields_of_class, has_errors = fields, error_check(fields, f"errors of {cls.__name__}")

    def report(context: RequestContext, request: Message | None, response: Message) -> bool:
        # In turns, the check is not made before: it does not pause.
        if not context.in_turns and not has_errors(response):
            return False
        return report_errors(context, errors_in(error_fields_of_class, response), partial(describe_error, request))

    return report


def has_error_code(response: Message, code: int) -> bool:
    """Return whether any error code of a response is this one."""
    fields = error_fields(type(response))
    return fields is not None and any(found == code for found, _ in errors_in(fields, response))


def errors_in(fields: ErrorFields, struct: Any, path: ErrorPath = ()) -> Iterator[tuple[int, ErrorPath]]:
    """Return each error code in a struct, with the path to it."""
    path = (*path, (fields, struct))
    if fields.has_code and struct.error_code:
        yield struct.error_code, path
    for name, child_fields in fields.children:
        for child in paced(getattr(struct, name) or ()):
            if child_fields.children:
                yield from errors_in(child_fields, child, path)
            elif child.error_code:
                yield child.error_code, (*path, (child_fields, child))


def describe_error(request: Message | None, path: ErrorPath) -> Description:
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
    return struct.error_message if fields.has_message else None, subject
