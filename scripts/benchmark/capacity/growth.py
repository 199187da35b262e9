"""Measures whether the processor time per response grows with long logs, many connections, groups or producers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from protocol.apis import ApiKey
from protocol.messages.k08_offset_commits import OffsetCommitResponse, OffsetCommitResponsePartition
from scripts.benchmark.capacity import requests
from scripts.benchmark.capacity.cases import (
    Case,
    Prepare,
    committing,
    error_position_of,
    fetching_in_session,
    filled_topic,
    init_producer_id,
    offset_commit,
    produce_frames,
    produce_load,
    producing,
    rotated,
)
from scripts.benchmark.capacity.client import Load, connected
from scripts.benchmark.capacity.measure import PROCESSOR, measure
from scripts.benchmark.capacity.server import Server
from scripts.benchmark.clients import Connection

# Not one that the server assigns: these producers exist only in their batches.
FIRST_PRODUCER_ID = 1 << 40
SENDERS = 2


@dataclass(frozen=True)
class Series:
    """`prepare` returns the preparation of a case for a size."""

    title: str
    unit: str
    sizes: Sequence[int]
    prepare: Callable[[int], Prepare]


def appending_to_log(mebibytes: int) -> Prepare:
    """Produce one record per request to a partition whose log has this length."""

    @contextmanager
    def prepare(server: Server) -> Iterator[Load]:
        version = server.version(ApiKey.PRODUCE)
        topic = filled_topic(server, 1, [0], 60, 1024, mebibytes << 20)
        frames = produce_frames(topic, [0], 1, 100, version)
        yield Load(rotated(frames, 8), 5, requests.produce_error_at(topic, version))

    return prepare


def beside_idle_connections(connections: int) -> Prepare:
    """Produce one record per request while other connections are open, each of which has sent one request."""

    @contextmanager
    def prepare(server: Server) -> Iterator[Load]:
        with ExitStack() as stack:
            for _ in range(connections):
                stack.callback(Connection(server.port).close)
            yield stack.enter_context(producing(1, 100, connections=8)(server))

    return prepare


def beside_groups(groups: int) -> Prepare:
    """Commit offsets while other groups have committed offsets."""

    @contextmanager
    def prepare(server: Server) -> Iterator[Load]:
        topic = server.kept_topic("groups", 1)
        version = server.version(ApiKey.OFFSET_COMMIT)
        commits = [offset_commit(f"group-{number:06}", topic) for number in range(groups)]

        def error_row(response: OffsetCommitResponse) -> OffsetCommitResponsePartition:
            return response.topics[0].partitions[0]

        server.find_coordinator(commits[0].group_id, key_type=0)
        response = server.request(commits[0], lambda response: error_row(response).error_code, version)
        send_once(server, [requests.frame(commit, version) for commit in commits],
                  error_position_of(response, version, error_row))  # fmt: skip
        with committing(server) as load:
            yield load

    return prepare


def beside_producers(producers: int) -> Prepare:
    """Produce one record per request, idempotently, to a partition that knows other producers."""

    @contextmanager
    def prepare(server: Server) -> Iterator[Load]:
        topic = server.kept_topic("producers", 1)
        version = server.version(ApiKey.PRODUCE)
        batches = [requests.batch(1, 100, (FIRST_PRODUCER_ID + number, 0)) for number in range(producers)]
        frames = [requests.produce_frame(topic, 0, batch, version) for batch in batches]
        send_once(server, frames, requests.produce_error_at(topic, version))
        own = [(init_producer_id(server, None), None) for _ in range(8)]
        yield produce_load(topic, own, 1, 100, 5, version, partitions=1)

    return prepare


def send_once(server: Server, frames: Sequence[bytes], error_at: int) -> None:
    """Send each frame at least once."""
    each = len(frames) // SENDERS
    shares = [frames[number * each : (number + 1) * each] for number in range(SENDERS)]
    with connected(server.port, Load(shares, 1, error_at), 60, responses=len(frames) * 2, name=server.label) as it:
        it.run()


SERIES = (
    Series("produce of one record to a log", "MiB of log", (16, 128, 1024), appending_to_log),
    Series("fetch of 8 KiB in a session", "idle partitions", (10, 100, 1_000, 4_000), fetching_in_session),
    Series("produce of one record", "idle connections", (1, 10, 100, 1_000), beside_idle_connections),
    Series("offset commit", "other groups", (10, 100, 1_000, 10_000), beside_groups),
    Series("idempotent produce of one record", "other producer ids", (10, 100, 1_000, 10_000), beside_producers),
)

# A series' costs in microseconds, by size.
Costs = dict[int, float]


def run_series(servers: Sequence[Server], series: Series, rounds: int, seconds: float) -> Costs:
    """Return the median processor time per response for each size. A first round warms the servers up, uncounted.

    Each size has its own server, so that the data of one size does not affect another. The sizes are measured in turn,
    so that all of them have the same share of the machine's slow moments.
    """
    figures: dict[int, list[float]] = {size: [] for size in series.sizes}
    for number in range(-1, rounds):
        for server, size in zip(servers, series.sizes, strict=True):
            case = Case(f"{series.title}, {size:,} {series.unit}", series.prepare(size))
            cost = measure(server, case, seconds)[PROCESSOR]
            if number >= 0:
                figures[size].append(cost)
    return {size: median(costs) for size, costs in figures.items()}


def table(costs: Mapping[str, Costs]) -> str:
    """Format the costs as a Markdown table. `costs`: by the title of a series."""
    lines = ["| processor time per response, us | with | largest / smallest |", "|---|---|---|"]
    for series in SERIES:
        if series.title in costs:
            mine = costs[series.title]
            cells = ", ".join(f"{size:,}: {cost:.0f}" for size, cost in mine.items())
            growth = mine[series.sizes[-1]] / max(mine[series.sizes[0]], 1e-9)
            lines.append(f"| {series.title} | {series.unit} {cells} | {growth:.2f} |")
    return "\n".join(lines)


def draw(costs: Mapping[str, Costs], path: Path) -> None:
    """Write an SVG with one small chart for each series."""
    import matplotlib
    from matplotlib.figure import Figure

    # The same file for the same costs, with text as text.
    matplotlib.rcParams.update({"svg.hashsalt": "growth", "svg.fonttype": "none"})
    drawn = [series for series in SERIES if series.title in costs]
    figure = Figure(figsize=(3 * len(drawn), 2.6), layout="constrained")
    for series, axes in zip(drawn, figure.subplots(1, len(drawn), squeeze=False)[0], strict=True):
        mine = costs[series.title]
        axes.plot(list(mine), list(mine.values()), marker="o")
        axes.set_xscale("log")
        axes.minorticks_off()
        axes.set_ylim(0, 1.5 * max(mine.values()))
        axes.set_title(series.title, fontsize=9)
        axes.set_xlabel(series.unit, fontsize=8)
        axes.set_ylabel("us per response", fontsize=8)
        axes.tick_params(labelsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None})
