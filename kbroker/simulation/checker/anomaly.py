"""An anomaly in a history, and helpers for its text."""

from collections.abc import Sequence
from dataclasses import dataclass

from kbroker.simulation.checker.history import Operation, TopicPartition


@dataclass(slots=True)
class Anomaly:
    """`kind`: for example "lost write". `text`: the description in the report. `operations`: the operations to show, in
    history order."""

    kind: str
    text: str
    operations: list[Operation]


def anomaly(kind: str, text: str, *operations: Operation | None) -> Anomaly:
    """Create an anomaly from its operations, without duplicates and None."""
    by_number = {operation.number: operation for operation in operations if operation is not None}
    return Anomaly(kind, text, [by_number[number] for number in sorted(by_number)])


def partition_name(tp: TopicPartition) -> str:
    return f"{tp[0]}-{tp[1]}"


def shorten(numbers: Sequence[int], most: int = 8) -> str:
    """Return the first numbers and a count of the others: "4, 5, 6 and 30 more"."""
    shown = ", ".join(map(str, numbers[:most]))
    return shown if len(numbers) <= most else f"{shown} and {len(numbers) - most} more"
