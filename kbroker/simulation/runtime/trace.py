"""A hash over all events of a run: runs with equal hashes did the same things at the same times."""

from collections.abc import Callable
from hashlib import blake2b


class Trace:
    """Hashes and counts events in order. Set `lines` to a list to keep their text."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.count = 0
        self.lines: list[str] | None = None
        self._now_ns = now_ns
        self._hash = blake2b(digest_size=16)

    def record(self, *fields: object) -> None:
        """Fields are numbers, strings, bytes, or tuples of these, whose repr is the same in every process."""
        self.count += 1
        line = f"{self._now_ns()} {fields!r}\n"
        self._hash.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    def digest(self) -> str:
        return self._hash.hexdigest()
