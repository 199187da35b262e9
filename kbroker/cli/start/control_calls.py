"""The calls of `kbroker start --control`: functions of a broker inside tests, with JSON for arguments and results.

Their annotations are checked: an argument has one of the types that its annotation names.
"""

import base64
import inspect
import json
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from enum import Enum
from threading import Lock
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin

from kbroker.cli.common.errors import CliError
from kbroker.cli.records.formats import record_from_json, to_json
from kbroker.client.admin import delete_topics
from kbroker.client.consumer import ConsumedRecord
from kbroker.client.requests import BrokerError, check
from kbroker.testing.broker import InProcessBroker
from kbroker.testing.faults import Fault
from kbroker.testing.records import GroupLag, ProducedRecord

MAX_TIMEOUT_S = 600
MAX_NUMBER = 2**63 - 1
_TYPES = {str: "a string", int: "a whole number", float: "a number", bool: "true or false", list: "a list",
          Mapping: "an object", type(None): "null"}  # fmt: skip


def status(kafka: InProcessBroker) -> dict[str, Any]:
    """Return the address for clients, whether the broker runs and has a full disk, and its time."""
    return {
        "bootstrap": kafka.bootstrap,
        "running": kafka.is_running,
        "disk_full": kafka.disk.is_full,
        "now_ms": kafka.clock.now_ms(),
        "moved_ms": kafka.clock.offset_ns // 1_000_000,
    }


def delete_topic(kafka: InProcessBroker, topic: str) -> None:
    """Delete a topic."""
    with kafka.client() as cluster:
        row = delete_topics(cluster, [topic])[0]
        check(row.error_code, f"topic {topic}", row.error_message)


def produce(
    kafka: InProcessBroker, topic: str, records: list[Any], partition: int | None = None, timestamp: int | None = None
) -> list[ProducedRecord]:
    """Produce records with the fields of `kbroker produce --json`: key, value, headers. Returns where they are."""
    parsed = [record_from_json(json.dumps(record).encode()) for record in records]
    if any(record.partition is not None or record.timestamp is not None for record in parsed):
        raise CliError("partition and timestamp are fields of the call, for all of its records")
    rows = [(record.key, record.value, record.headers) for record in parsed]
    return kafka.produce(topic, rows, partition=partition, timestamp=timestamp)


def faults(kafka: InProcessBroker) -> list[Fault]:
    """Return the faults, each with the number of requests that it has hit."""
    return kafka.request_log.faults


def remove_fault(kafka: InProcessBroker, number: int) -> Fault:
    """Remove a fault, and return it."""
    found = next((fault for fault in kafka.request_log.faults if fault.number == number), None)
    if found is None:
        raise LookupError(f"there is no fault {number}")
    found.remove()
    return found


def advance(
    kafka: InProcessBroker, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0,
    expire_sessions: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Move the clock forward, and wait until what is due is done."""
    kafka.clock.advance(days=days, hours=hours, minutes=minutes, seconds=seconds, expire_sessions=expire_sessions)
    return status(kafka)


def fill_disk(kafka: InProcessBroker) -> None:
    """Let every write fail as on a full disk, until it is freed."""
    kafka.disk.fill()


def free_disk(kafka: InProcessBroker) -> None:
    """Let writes succeed again."""
    kafka.disk.free()


def reset(kafka: InProcessBroker, keep_data: bool = False) -> list[str]:
    """Undo everything: start again at the same address, without data. Returns what the test has left behind.

    With `keep_data` the broker starts again only after a test that has ended it, moved its clock or filled its disk.
    """
    try:
        left = kafka.leftovers()
    except (BrokerError, OSError) as error:
        left = [f"a broker that does not respond: {error}"]
    kafka.reset(keep_data=keep_data)
    return left


class Route(NamedTuple):
    """`result`: the name of the result in the response; "" if that is an object. `example`: of the page.

    `waits`: it may wait for clients. Other calls do not wait for it, but for each other.
    """

    method: str
    path: str
    function: Callable[..., object]
    example: str = "{}"
    result: str = ""
    waits: bool = False


ROUTES = (
    Route("GET", "/status", status, ""),
    Route("GET", "/topics", InProcessBroker.topics, "", "topics"),
    Route("POST", "/topics", InProcessBroker.topic, '{"partitions": 3, "config": {"retention.ms": 60000}}', "topic"),
    Route("POST", "/topics/delete", delete_topic, '{"topic": "orders"}'),
    Route("POST", "/produce", produce, '{"topic": "orders", "records": [{"key": "k", "value": "v"}]}', "records", True),
    Route("POST", "/consume", InProcessBroker.consume, '{"topic": "orders", "n": 1}', "records", True),
    Route("POST", "/groups/wait", InProcessBroker.wait_group, '{"group": "billing", "lag": 0}', waits=True),
    Route("GET", "/faults", faults, "", "faults"),
    Route("POST", "/faults", InProcessBroker.fault, '{"api": "Produce", "error": "REQUEST_TIMED_OUT", "count": 3}'),
    Route("POST", "/faults/remove", remove_fault, '{"number": 1}'),
    Route("GET", "/requests", InProcessBroker.requests, "?api=OffsetCommit&group=billing", "requests"),
    Route("POST", "/clock/advance", advance, '{"hours": 1}'),
    Route("POST", "/disk/fill", fill_disk),
    Route("POST", "/disk/free", free_disk),
    Route("POST", "/kill", InProcessBroker.kill),
    Route("POST", "/stop", InProcessBroker.stop),
    Route("POST", "/start", InProcessBroker.start),
    Route("POST", "/advertise", InProcessBroker.advertise, '{"address": "localhost:49153"}'),
    Route("POST", "/reset", reset, '{"keep_data": false}', "left"),
)


class ControlCalls:
    """Calls functions of a broker, those that change it one after the other."""

    def __init__(self, kafka: InProcessBroker) -> None:
        self._kafka, self._lock = kafka, Lock()

    def __call__(self, route: Route, given: Mapping[str, Any]) -> Any:
        """Return the response. Raises CliError for arguments that the function does not have."""
        check_arguments(route.function, given)
        with nullcontext() if route.waits else self._lock:
            result = _plain(route.function(self._kafka, **given))
        return {route.result: result} if route.result else result or {}


def parameters(function: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a call: those of its function without the broker."""
    return dict(list(inspect.signature(function, eval_str=True).parameters.items())[1:])


def check_arguments(function: Callable[..., object], given: Mapping[str, Any]) -> None:
    """Raise CliError unless a call has these arguments, of these types."""
    declared = parameters(function)
    if unknown := next((name for name in given if name not in declared), None):
        raise CliError(f"there is no field {unknown!r}; the fields are: {', '.join(declared) or 'none'}")
    for name, parameter in declared.items():
        if name not in given:
            if parameter.default is inspect.Parameter.empty:
                raise CliError(f"the field {name!r} is missing")
            continue
        value, kinds = given[name], _kinds(parameter)
        if not any(_is(value, kind) for kind in kinds):
            raise CliError(f"{name} must be {' or '.join(_TYPES[kind] for kind in kinds)}")
        most = MAX_TIMEOUT_S if name == "timeout_s" else MAX_NUMBER
        if isinstance(value, int | float) and not (math.isfinite(value) and abs(value) <= most):
            raise CliError(f"{name} must be at most {most}")


def field_text(parameter: inspect.Parameter) -> str:
    text = f"{parameter.name}: {' or '.join(_TYPES[kind] for kind in _kinds(parameter))}"
    return (
        text if parameter.default is inspect.Parameter.empty else f"{text}; by default {json.dumps(parameter.default)}"
    )


def _kinds(parameter: inspect.Parameter) -> list[Any]:
    """Return the types that a parameter allows."""
    annotation = parameter.annotation
    kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    return [get_origin(kind) or kind for kind in kinds]


def _is(value: object, kind: Any) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it. Bytes, such as topic ids, are in base64."""
    if isinstance(value, ConsumedRecord):
        return json.loads(to_json(value))
    if isinstance(value, Fault):
        return _plain({name: field for name, field in vars(value).items() if name != "requests" and field is not None})
    if isinstance(value, GroupLag):
        group, _ = value
        about = {"group": group.group_id, "type": group.type, "state": group.state, "members": group.members}
        return _plain({**about, "lag": value.lag})
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(name): _plain(element) for name, element in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    return [_plain(element) for element in value] if isinstance(value, list | tuple) else value
