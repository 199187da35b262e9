"""The text of one scrape, in Prometheus' text format 0.0.4."""

from collections.abc import Iterator

from kbroker.exporter.families import BY_NAME
from kbroker.runtime.metrics import LATENCY_BOUNDS_NS, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# The lines of one part, which take at most a millisecond.
LINES_PER_PART = 1000

_BOUNDS = tuple(f"{bound / 1e9:.4g}" for bound in LATENCY_BOUNDS_NS)
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def labels(**values: object) -> str:
    """Return labels in the text format: `{name="value",...}`."""
    return "{" + ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in values.items()) + "}"


class Page:
    """Samples in any order; the text has them by family."""

    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = {name: [] for name in BY_NAME}

    def add(self, name: str, value: float, label_text: str = "") -> None:
        """Add a sample. Raises KeyError if the family is not in families.py."""
        self.lines[name].append(f"{name}{label_text} {value}")

    def add_histogram(self, name: str, histogram: Histogram, **label_values: object) -> None:
        """Add a histogram of durations, in seconds."""
        lines = self.lines[name]
        inner = labels(**label_values)[1:-1]
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
        """Yield the text in parts, and remove the samples. Families without samples are omitted."""
        for name, lines in self.lines.items():
            if not lines:
                continue
            family = BY_NAME[name]
            yield f"# HELP {name} {family.help}\n# TYPE {name} {family.kind}\n".encode()
            for first in range(0, len(lines), LINES_PER_PART):
                # A group id may have characters that UTF-8 cannot encode.
                yield ("\n".join(lines[first : first + LINES_PER_PART]) + "\n").encode(errors="replace")
            # Removed here, since removing all lines at the end would block the event loop.
            lines.clear()
