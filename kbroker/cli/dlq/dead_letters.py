"""Dead letters: what their headers say, and which of them a command selects."""

import hashlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, NamedTuple

from kbroker.cli.common.errors import usage_error
from kbroker.retry import records as names


class DeadLetter(NamedTuple):
    """The headers of a dead letter; None where one is missing, since anybody may produce to the topic.

    `omitted`: the parts that a pointer to the failed record lacks, separated by commas.
    """

    topic: str | None
    partition: str | None
    offset: str | None
    group: str | None
    attempts: str | None
    error: str | None
    message: str | None
    omitted: str | None


_HEADERS = (
    names.TOPIC,
    names.PARTITION,
    names.OFFSET,
    names.GROUP,
    names.DELIVERY_COUNT,
    names.ERROR_CLASS,
    names.MESSAGE,
    names.OMITTED,
)


def dead_letter(headers: Sequence[tuple[str, bytes | None]]) -> DeadLetter:
    """Return what the headers of a record say."""
    values = names.last_headers(headers)
    return DeadLetter(*(values[name].decode("utf-8", "replace") if name in values else None for name in _HEADERS))


@dataclass(frozen=True)
class LetterFilter:
    """The selected dead letters. Each condition that is set must hold; times are milliseconds since the epoch.

    `error` is a class, with or without its module. `headers` are (name, value or None for any value, also null); one
    of several headers with the same name is enough.
    """

    topic: str | None = None
    group: str | None = None
    error: str | None = None
    from_ms: int | None = None
    until_ms: int | None = None
    headers: tuple[tuple[str, str | None], ...] = ()

    def selects(self, headers: Sequence[tuple[str, bytes | None]], timestamp_ms: int) -> bool:
        letter = dead_letter(headers)
        error = letter.error or ""
        return (
            self.topic in (None, letter.topic)
            and self.group in (None, letter.group)
            and self.error in (None, error, error.rpartition(".")[2])
            and (self.from_ms is None or timestamp_ms >= self.from_ms)
            and (self.until_ms is None or timestamp_ms < self.until_ms)
            and all(
                any(key == name and (value is None or data == value.encode()) for key, data in headers)
                for name, value in self.headers
            )
        )


def parse_header_filters(texts: Sequence[str]) -> tuple[tuple[str, str | None], ...]:
    """Parse `NAME` or `NAME=VALUE` texts. Raises CliError without a name."""
    parts = [text.partition("=") for text in texts]
    if not all(name for name, _, _ in parts):
        raise usage_error("--header needs the name of a header: NAME or NAME=VALUE")
    return tuple((name, value if sign else None) for name, sign, value in parts)


def redrive_group(
    topic: str,
    selection: LetterFilter,
    target: str | None,
    relative_times: tuple[str | None, str | None] = (None, None),
) -> str:
    """Return the group that keeps the progress of a redrive: the same for the same selection and target.

    `relative_times`: from and until as durations before now, which are another time with each run of a command.
    """
    if relative_times[0] is not None:
        selection = replace(selection, from_ms=None)
    if relative_times[1] is not None:
        selection = replace(selection, until_ms=None)
    options: tuple[Any, ...] = (*astuple(selection), target)
    if any(relative_times):
        options = (*options, *relative_times)
    if all(option in (None, ()) for option in options):
        return f"kbroker-redrive-{topic}"
    return f"kbroker-redrive-{topic}-{hashlib.sha256(repr(options).encode()).hexdigest()[:8]}"
