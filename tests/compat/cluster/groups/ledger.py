"""What the members of a group have printed, and what it must amount to in the end."""

import threading
from collections import Counter

# The partition and the offset of a record.
Record = tuple[int, int]


class Ledger:
    """The records of one group, from the lines of all its members (member.py)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reads: Counter[Record] = Counter()
        self.acking: set[Record] = set()
        # When the first response to the acknowledgement of a record came.
        self.acked_ns: dict[Record, int] = {}
        self.refusals: Counter[str] = Counter()
        # Reads that began after the acknowledgement.
        self.late: set[Record] = set()
        # The acknowledgements that came twice.
        self.twice: set[Record] = set()
        self.fatal: list[str] = []
        # Each member has a thread that adds its lines.
        self._lock = threading.Lock()
        # When a record was read, in nanoseconds: a member's line may come later than another's of a later time.
        self._read_ns: dict[Record, int] = {}

    def add(self, line: str) -> None:
        with self._lock:
            self._add(line)

    def _add(self, line: str) -> None:
        what, _, rest = line.partition(" ")
        if what in ("fatal", "assigned"):
            if what == "fatal":
                self.fatal.append(rest)
            return
        partition, offset, *more = rest.split(" ", 2)
        record = int(partition), int(offset)
        if what == "read":
            self.reads[record] += 1
            self._read_ns[record] = max(int(more[0]), self._read_ns.get(record, 0))
        elif what == "acking":
            self.acking.add(record)
        elif what == "acked":
            if record in self.acked_ns:
                self.twice.add(record)
            self.acked_ns[record] = min(int(more[0]), self.acked_ns.get(record, int(more[0])))
        else:
            assert what == "refused", line
            self.refusals[more[0]] += 1
        if record in self.acked_ns and self._read_ns.get(record, 0) > self.acked_ns[record]:
            self.late.add(record)

    def check(self) -> None:
        """Check what must be true at any time."""
        assert self.fatal == [], f"members of {self.name} have given up: {self.fatal}"
        assert self.late == set(), (
            f"{self.name} has got records again after their acknowledgement: {self._some(self.late)}"
        )
        assert self.twice == set(), f"records of {self.name} were acknowledged twice: {self._some(self.twice)}"

    def missing(self, ends: list[int], is_share: bool) -> set[Record]:
        """Return the records below the ends that no member has read, or with `is_share` tried to acknowledge."""
        with self._lock:
            done = set(self.acking if is_share else self.reads)
        return {(partition, offset) for partition, end in enumerate(ends) for offset in range(end)} - done

    @property
    def repeated(self) -> int:
        with self._lock:
            return self.reads.total() - len(self.reads)

    def _some(self, records: set[Record]) -> str:
        return f"{len(records)}, first {sorted(records)[:5]}"
