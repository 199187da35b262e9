"""What an answer refuses: the error codes in it, and what each is about.

Answers are messages that are declared as rows, so where their error codes are follows from the declaration: from
each class a plan is made once, and walking an answer without errors costs a look at each code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from protocol.schema.message import Message, StructType

if TYPE_CHECKING:
    from kbroker.api.context import RequestContext

# Fields that name what a code is about, and how the log calls them.
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


class ErrorFields(NamedTuple):
    """Where the codes of a struct are: its own, and those of the structs in its list fields `children`."""

    coded: bool
    told: bool
    subjects: tuple[tuple[str, str], ...]
    children: tuple[tuple[str, ErrorFields], ...]


class ResponseError(NamedTuple):
    """One error code of an answer. `message` is the answer's text for the client."""

    code: int
    message: str | None
    subject: dict[str, object]


def partition_named(key: str | bytes, index: int) -> dict[str, object]:
    """A partition as a refusal's subject; a topic that is known by its id only, by that."""
    return {"topic": key, "partition": index} if isinstance(key, str) else {"topic_id": key.hex(), "partition": index}


def plan_of(cls: StructType) -> ErrorFields | None:
    """None for a struct without error codes."""
    rows = cls.__rows__
    children = []
    for name, row in rows.items():
        if isinstance(row.type, list) and isinstance(row.type[0], StructType):
            child = plan_of(row.type[0])
            if child is not None:
                children.append((name, child))
    if not children and "error_code" not in rows:
        return None
    subjects = tuple((field, shown) for field, shown in SUBJECTS.items() if field in rows)
    return ErrorFields("error_code" in rows, "error_message" in rows, subjects, tuple(children))


def find(
    plan: ErrorFields, answer: Any, found: list[tuple[Any, ...]], path: tuple[tuple[ErrorFields, Any], ...] = ()
) -> None:
    """Append to `found` the path of (plan, struct) to each struct whose code is not 0."""
    if plan.coded and answer.error_code:
        found.append((*path, (plan, answer)))
    for name, child in plan.children:
        structs = getattr(answer, name)
        if not structs:
            continue
        if child.children:
            below = (*path, (plan, answer))
            for one in structs:
                find(child, one, found, below)
        else:
            for one in structs:
                if one.error_code:
                    found.append((*path, (plan, answer), (child, one)))


def note(context: RequestContext, plan: ErrorFields, request: Message | None, answer: Message) -> None:
    """Tell who keeps count of the errors in an answer: those of one code as one, with what the first is about."""
    found: list[tuple[Any, ...]] = []
    find(plan, answer, found)
    first: dict[int, tuple[Any, ...]] = {}
    counts: dict[int, int] = {}
    for path in found:
        code = path[-1][1].error_code
        first.setdefault(code, path)
        counts[code] = counts.get(code, 0) + 1
    for code, path in first.items():
        one = _outcome(request, path)
        context.refused(code, one.message, counts[code], one.subject)


def outcomes(plan: ErrorFields, request: Message | None, answer: Message) -> Sequence[ResponseError]:
    """The errors of an answer; what the answer does not name, the request does."""
    found: list[tuple[Any, ...]] = []
    find(plan, answer, found)
    return [_outcome(request, path) for path in found]


def _outcome(request: Message | None, path: tuple[tuple[ErrorFields, Any], ...]) -> ResponseError:
    subject: dict[str, object] = {}
    rows = {} if request is None else request.__class__.__rows__
    for field in ("group_id", "transactional_id", "member_id"):
        if field in rows:
            subject[SUBJECTS[field]] = getattr(request, field) or None
    for plan, struct in path:
        for field, shown in plan.subjects:
            value = getattr(struct, field)
            if field == "topic_id":
                value = None if subject.get("topic") or not any(value) else value.hex()
            if value is not None and value != "":
                subject[shown] = value
    plan, struct = path[-1]
    return ResponseError(struct.error_code, struct.error_message if plan.told else None, subject)
