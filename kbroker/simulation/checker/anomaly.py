"""What the checker finds, and how its words are put."""

from collections.abc import Sequence
from dataclasses import dataclass

from kbroker.simulation.checker.history import Operation, Place


@dataclass(slots=True)
class Anomaly:
    """`kind`: "lost write" and the like. `text`: a sentence or two for a reader. `operations`: those to show, in the
    order of the history."""

    kind: str
    text: str
    operations: list[Operation]


def anomaly(kind: str, text: str, *operations: Operation | None) -> Anomaly:
    """With each operation once; None is no operation."""
    by_number = {one.number: one for one in operations if one is not None}
    return Anomaly(kind, text, [by_number[number] for number in sorted(by_number)])


def partition_name(place: Place) -> str:
    return f"{place[0]}-{place[1]}"


def shorten(numbers: Sequence[int], most: int = 8) -> str:
    """The first of them: "4, 5, 6 and 30 more"."""
    shown = ", ".join(map(str, numbers[:most]))
    return shown if len(numbers) <= most else f"{shown} and {len(numbers) - most} more"
