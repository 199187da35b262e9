"""One hash of everything that happened in a run: two runs with equal hashes did the same things at the same times."""

from collections.abc import Callable
from hashlib import blake2b


class Trace:
    """What happened, in order. `count` says how much; `lines` is a list where each event is wanted for reading."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.count = 0
        self.lines: list[str] | None = None
        self._now_ns = now_ns
        self._hash = blake2b(digest_size=16)

    def note(self, *facts: object) -> None:
        """Facts are numbers, texts, bytes, or tuples of these: what looks the same in each process."""
        self.count += 1
        line = f"{self._now_ns()} {facts!r}\n"
        self._hash.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    def digest(self) -> str:
        return self._hash.hexdigest()
