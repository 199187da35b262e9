"""The text of one scrape, in Prometheus' text format 0.0.4."""

from collections.abc import Iterator

from kbroker.exporter.families import BY_NAME
from kbroker.runtime.metrics import LATENCY_BOUNDS_NS, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Lines that are put together at once: a millisecond's work at most.
LINES_AT_ONCE = 1000

_BOUNDS = tuple(f"{bound / 1e9:.4g}" for bound in LATENCY_BOUNDS_NS)
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def labels(**values: object) -> str:
    """Labels as they stand in a line: `{name="value",...}`."""
    return "{" + ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in values.items()) + "}"


class Page:
    """Samples by family; those of one family stand together in the text, whatever order they came in."""

    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = {name: [] for name in BY_NAME}

    def add(self, name: str, value: float, labelled: str = "") -> None:
        """A sample of a family of families.py; raises KeyError for another."""
        self.lines[name].append(f"{name}{labelled} {value}")

    def add_histogram(self, name: str, histogram: Histogram, **labelled: object) -> None:
        """Durations, in seconds."""
        lines = self.lines[name]
        inner = labels(**labelled)[1:-1]
        start = f"{name}_bucket{{{inner}{',' if inner else ''}le="
        count = 0
        for bound, size in zip(_BOUNDS, histogram.buckets, strict=False):
            count += size
            lines.append(f'{start}"{bound}"}} {count}')
        count += sum(histogram.buckets[len(_BOUNDS) :])
        lines.append(f'{start}"+Inf"}} {count}')
        outer = f"{{{inner}}}" if inner else ""
        lines.append(f"{name}_sum{outer} {histogram.total_ns / 1e9}")
        lines.append(f"{name}_count{outer} {count}")

    def parts(self) -> Iterator[bytes]:
        """The text, a part at a time; families without samples are left out. What was given is forgotten."""
        for name, lines in self.lines.items():
            if not lines:
                continue
            family = BY_NAME[name]
            yield f"# HELP {name} {family.help}\n# TYPE {name} {family.kind}\n".encode()
            for first in range(0, len(lines), LINES_AT_ONCE):
                # A group's id may hold what UTF-8 cannot carry.
                yield ("\n".join(lines[first : first + LINES_AT_ONCE]) + "\n").encode(errors="replace")
            # Now: at the end, so many lines at once would take their time.
            lines.clear()
