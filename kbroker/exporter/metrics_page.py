"""The text of one scrape, in the text format 0.0.4 of Prometheus."""

from collections.abc import Iterator

from kbroker.exporter.families import BY_NAME
from kbroker.runtime.metrics import LATENCY_BOUNDS_NS, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Joining the lines of a part takes at most a millisecond.
LINES_PER_PART = 1000

_BOUNDS = tuple(f"{bound / 1e9:.4g}" for bound in LATENCY_BOUNDS_NS)
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def labels(**values: object) -> str:
    """Return labels as in a line of the format: `{name="value",...}`."""
    return "{" + ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in values.items()) + "}"


class MetricsPage:
    """Collects samples by family, since the format requires the samples of a family to be contiguous."""

    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = {name: [] for name in BY_NAME}

    def add(self, name: str, value: float, labelled: str = "") -> None:
        """Add a sample. Raises KeyError for a name that is in no table of families."""
        self.lines[name].append(f"{name}{labelled} {value}")

    def add_histogram(self, name: str, histogram: Histogram, **labelled: object) -> None:
        """Add durations, in seconds."""
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
        """Yield the text in parts, without families that have no samples. Removes the samples that were yielded."""
        for name, lines in self.lines.items():
            if not lines:
                continue
            family = BY_NAME[name]
            yield f"# HELP {name} {family.help}\n# TYPE {name} {family.kind}\n".encode()
            for first in range(0, len(lines), LINES_PER_PART):
                # A group id may contain characters that UTF-8 cannot encode.
                yield ("\n".join(lines[first : first + LINES_PER_PART]) + "\n").encode(errors="replace")
            # Freeing all lines at the end would block the event loop.
            lines.clear()
