"""Records the responses of a real Apache Kafka to the stories, which the tests compare with:

    python -m tests.compat.wire.record HOST:PORT [API ...]

The broker must be new, with one node and group.initial.rebalance.delay.ms=0. With APIs as arguments, the responses of
all other APIs stay as they are.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from tests.compat.wire import kio_messages, malformed_frames
from tests.compat.wire.recorded_responses import FRAMES_FILE, RESPONSES_FILE, RecordedResponses, Steps
from tests.compat.wire.story import Cluster, Story, load_stories

STORIES = load_stories()


def main(bootstrap: str, *apis: str) -> None:
    cluster = Cluster(bootstrap)
    record(cluster, RESPONSES_FILE, apis, run_story)
    record(cluster, FRAMES_FILE, apis, malformed_frames.run)


def run_story(story: Story) -> None:
    STORIES[story.api].run(story)


def record(cluster: Cluster, file: Path, apis: tuple[str, ...], run: Callable[[Story], None]) -> None:
    recorded = RecordedResponses.load(file) if apis else RecordedResponses()
    for api in apis or STORIES:
        recorded.remove(api)
        first, last = cluster.versions[kio_messages.api_key(api)]
        for version in range(first, last + 1):
            recorded.add(api, version, steps_of(cluster, api, version, run))
        print(f"{api} {first}-{last}", flush=True)
    recorded.save(file)
    print(f"{file}: {len(file.read_text().splitlines())} lines")


def steps_of(cluster: Cluster, api: str, version: int, run: Callable[[Story], None] = run_story) -> Steps:
    """Run the story of an API in a version; returns the responses."""
    story = Story(cluster, api, version)
    try:
        run(story)
    finally:
        story.clean_up()
    return story.steps


if __name__ == "__main__":
    main(*sys.argv[1:])
