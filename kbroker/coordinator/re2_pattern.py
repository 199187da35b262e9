"""Regular expressions of clients, in the syntax of RE2 (Kafka uses RE2/J).

RE2 matches any pattern in time linear in the length of the text. Its memory and the length of a pattern are bounded
here. A hostile pattern still takes about a second per 32 KiB of text, so matching runs in a thread; RE2 releases the
GIL meanwhile.
"""

from collections.abc import Iterable
from typing import Any

from kbroker.common import KafkaError
from protocol.errors import ErrorCode

MAX_PATTERN_LENGTH = 10_000
MAX_MEMORY_BYTES = 1 << 20
# The client's error, and the reason in the broker's log.
NO_RE2 = "This broker has no regular expressions: its Python environment needs the package google-re2."


class Re2Pattern:
    """A compiled pattern. Raises KafkaError(INVALID_REGULAR_EXPRESSION), also without the package google-re2."""

    def __init__(self, pattern: str) -> None:
        # Few requests have a pattern, and importing re2 takes 15 ms and 3 MiB.
        try:
            import re2
        except ImportError:
            raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, NO_RE2) from None
        if len(pattern) > MAX_PATTERN_LENGTH:
            raise _invalid(f"longer than {MAX_PATTERN_LENGTH} characters")
        options = re2.Options()
        options.max_mem = MAX_MEMORY_BYTES
        options.log_errors = False
        options.never_capture = True
        try:
            # With bytes, RE2 need not convert byte positions to character positions.
            self._pattern: Any = re2.compile(pattern.encode(), options)
        except re2.error as error:
            raise _invalid(error) from None

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches the whole text."""
        return self._pattern.fullmatch(text.encode()) is not None

    def select_blocking(self, texts: Iterable[str]) -> list[str]:
        """Return the texts that match, in order."""
        return [text for text in texts if self.matches(text)]


def _invalid(reason: object) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"The regular expression is not valid: {reason}")
