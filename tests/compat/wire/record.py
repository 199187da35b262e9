"""Records what a real Apache Kafka answers to the stories, for the tests to compare with:

    python -m tests.compat.wire.record HOST:PORT [API ...]

The broker should be fresh, with one node and group.initial.rebalance.delay.ms=0. APIs that are not named keep
what was recorded before.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from tests.compat.wire import entities, frames
from tests.compat.wire.golden import ANSWERS_FILE, FRAMES_FILE, Golden, Steps
from tests.compat.wire.play import Cluster, Play
from tests.compat.wire.table import STORIES


def main(bootstrap: str, *apis: str) -> None:
    cluster = Cluster(bootstrap)
    record(cluster, ANSWERS_FILE, apis, tell_answers)
    record(cluster, FRAMES_FILE, apis, frames.tell)


def tell_answers(play: Play) -> None:
    STORIES[play.api].tell(play)


def record(cluster: Cluster, file: Path, apis: tuple[str, ...], tell: Callable[[Play], None]) -> None:
    golden = Golden.load(file) if apis else Golden()
    for api in apis or STORIES:
        golden.forget(api)
        first, last = cluster.versions[entities.api_key(api)]
        for version in range(first, last + 1):
            golden.add(api, version, played(cluster, api, version, tell))
        print(f"{api} {first}-{last}", flush=True)
    golden.save(file)
    print(f"{file}: {len(file.read_text().splitlines())} lines")


def played(cluster: Cluster, api: str, version: int, tell: Callable[[Play], None] = tell_answers) -> Steps:
    """What a broker answers to a story of an API in a version."""
    play = Play(cluster, api, version)
    try:
        tell(play)
    finally:
        play.end()
    return play.steps


if __name__ == "__main__":
    main(*sys.argv[1:])
