"""Draws stacks as an SVG that needs no script: the wider a function, the more samples it was in.

A function's callees are below it, and its own time is where nothing is below it. Colors are packages.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape

WIDTH, ROW, TOP = 1200, 18, 36
# Narrower functions are left out, and labels are as long as there is space.
MIN_WIDTH, MIN_LABEL_WIDTH, CHARACTER_WIDTH = 1.0, 30, 6.6
COLORS = {
    "kbroker/server": "#f4a582",
    "kbroker/api": "#fddbc7",
    "kbroker/replica": "#92c5de",
    "kbroker/storage": "#a6dba0",
    "kbroker/coordinator": "#c2a5cf",
    "kbroker/metadata": "#dfc27d",
    "kbroker/runtime": "#d9d9d9",
    "protocol": "#ffeda0",
}
OTHER_COLOR = "#eeeeee"


@dataclass
class Call:
    """A function in a stack. `samples`: the number of samples that contain it."""

    name: str
    samples: int = 0
    callees: "dict[str, Call]" = field(default_factory=dict)


def parse_stacks(text: str, root: str) -> Call:
    """Return the calls below `root`, from lines of `frame;frame;... count`. Stacks without `root` are left out."""
    top = Call(root)
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        if root not in frames:
            continue
        call = top
        call.samples += int(count)
        for name in frames[frames.index(root) + 1 :]:
            call = call.callees.setdefault(name, Call(name))
            call.samples += int(count)
    return top


def draw(top: Call, title: str) -> str:
    boxes = list(_boxes(top, top.samples, 0.0, 0))
    height = TOP + ROW * (1 + max(depth for *_, depth in boxes))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="monospace" '
        'font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="4" y="14" font-size="13">{escape(title)}</text>',
        *_legend(),
    ]
    for call, x, width, depth in boxes:
        y = TOP + ROW * depth
        share = call.samples / top.samples
        label = call.name.partition(" (")[0][: int((width - 4) / CHARACTER_WIDTH)]
        text = f'<text x="{x + 2:.1f}" y="{y + 13}">{escape(label)}</text>' if width >= MIN_LABEL_WIDTH else ""
        lines.append(
            f"<g><title>{escape(call.name)}: {share:.1%}</title>"
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 1}" fill="{color_of(call.name)}"/>'
            f"{text}</g>"
        )
    return "\n".join([*lines, "</svg>", ""])


def color_of(frame: str) -> str:
    """Return the color of a frame's package. The frame has the form `function (path)`."""
    path = frame.rpartition("(")[2]
    return next((color for package, color in COLORS.items() if path.startswith(package)), OTHER_COLOR)


def _boxes(call: Call, total: int, x: float, depth: int) -> Iterator[tuple[Call, float, float, int]]:
    """Yield (call, x, width, depth) of a call and of those below it."""
    yield call, x, WIDTH * call.samples / total, depth
    for callee in _by_samples(call.callees.values()):
        width = WIDTH * callee.samples / total
        if width >= MIN_WIDTH:
            yield from _boxes(callee, total, x, depth + 1)
        x += width


def _by_samples(calls: Iterable[Call]) -> list[Call]:
    return sorted(calls, key=lambda call: (-call.samples, call.name))


def _legend() -> Iterator[str]:
    for number, (package, color) in enumerate(COLORS.items()):
        x = 4 + 149 * number
        yield f'<rect x="{x}" y="20" width="10" height="10" fill="{color}"/><text x="{x + 13}" y="29">{package}</text>'
