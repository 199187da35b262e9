"""Batches whose records take long to look into, worked off at once."""

from collections.abc import Callable

from kbroker.common import Buffer
from kbroker.replica.produce.record_validation import Unfinished, Validated


def finished(validation: Callable[[], Validated], asked_for: list[str] | None = None) -> Validated:
    """What a validation gives or raises in the end. `asked_for`: takes what it needed on its way."""
    try:
        return validation()
    except Unfinished as unfinished:
        work, asked = unfinished.work, unfinished.asked
    while True:
        given: Buffer | Exception | None = None
        if asked_for is not None:
            asked_for.append("turn" if asked is None else "large" if asked.large else "medium")
        if asked is not None:
            try:
                given = asked.work(*asked.arguments)
            except Exception as error:
                given = error
        try:
            asked = work.throw(given) if isinstance(given, Exception) else work.send(given)
        except StopIteration as done:
            validated: Validated = done.value
            return validated
