"""Fetch: records from an offset, within limits, in sessions."""

from uuid import UUID

from tests.compat.wire.batches import values
from tests.compat.wire.stories import transactional
from tests.compat.wire.story import Response, Story, of_api

UNKNOWN_ID = UUID(int=1)
EVERYTHING = 1 << 20
NO_SESSION, NEW_SESSION, CLOSE_SESSION = -1, 0, -1


@of_api("Fetch", "records")
def story(story: Story) -> None:
    topic = story.create_topic("t", 2)
    story.produce(topic, values("a", "b"), values("c", "d", "e"), values("f", codec="lz4"))
    offsets(story, topic)
    limits(story, topic)
    errors(story, topic)
    epochs(story, topic)
    if story.version >= 7:
        sessions(story, topic)
    after_delete_records(story)
    transactional.fetch(story)


def fetch_topic(story: Story, topic: str, *partitions: tuple[int, int], **more: int) -> dict[str, object]:
    """`partitions`: (index, offset)."""
    rows = [
        {"partition": index, "fetch_offset": offset, "partition_max_bytes": EVERYTHING, "log_start_offset": -1, **more}
        for index, offset in partitions
    ]
    return {
        "topic": topic,
        "topic_id": story.topic_id(topic) if story.has_topic(topic) else UNKNOWN_ID,
        "partitions": rows,
    }


def fetch(story: Story, step: str, *topics: dict[str, object], **options: object) -> Response:
    fields = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": EVERYTHING, **options}
    return story.request(step, **fields, topics=list(topics))


def offsets(story: Story, topic: str) -> None:
    fetch(story, "from the start", fetch_topic(story, topic, (0, 0)))
    fetch(story, "from within a batch", fetch_topic(story, topic, (0, 3)))
    fetch(story, "at the end", fetch_topic(story, topic, (0, 6)))
    fetch(story, "beyond the end", fetch_topic(story, topic, (0, 7)))
    fetch(story, "a negative offset", fetch_topic(story, topic, (0, -1)))
    fetch(story, "an empty partition", fetch_topic(story, topic, (1, 0)))
    fetch(story, "both partitions", fetch_topic(story, topic, (1, 0), (0, 5)))
    fetch(story, "read committed", fetch_topic(story, topic, (0, 0)), isolation_level=1)
    fetch(story, "a short wait", fetch_topic(story, topic, (0, 6)), min_bytes=1, max_wait=5)
    fetch(story, "no topics")
    fetch(story, "a partition twice", fetch_topic(story, topic, (0, 0), (0, 5)))
    fetch(story, "a topic twice", fetch_topic(story, topic, (0, 5)), fetch_topic(story, topic, (1, 0)))


def limits(story: Story, topic: str) -> None:
    fetch(story, "one byte of a partition", fetch_topic(story, topic, (0, 0), partition_max_bytes=1))
    fetch(story, "150 bytes of a partition", fetch_topic(story, topic, (0, 0), partition_max_bytes=150))
    fetch(story, "one byte of all", fetch_topic(story, topic, (0, 0)), max_bytes=1)
    fetch(story, "150 bytes of all", fetch_topic(story, topic, (0, 0)), max_bytes=150)
    fetch(story, "nothing of a partition", fetch_topic(story, topic, (0, 0), partition_max_bytes=0))
    fetch(story, "nothing of all", fetch_topic(story, topic, (0, 0)), max_bytes=0)


def errors(story: Story, topic: str) -> None:
    fetch(story, "unknown topic", fetch_topic(story, story.name("unknown"), (0, 0)))
    fetch(story, "unknown partition", fetch_topic(story, topic, (7, 0)))
    fetch(story, "a known and an unknown partition", fetch_topic(story, topic, (0, 5), (7, 0)))
    fetch(story, "isolation level 2", fetch_topic(story, topic, (0, 5)), isolation_level=2)
    fetch(
        story,
        "the debugging consumer",
        fetch_topic(story, topic, (0, 5)),
        replica_id=-2,
        replica_state={"replica_id": -2},
    )


def epochs(story: Story, topic: str) -> None:
    fetch(story, "the current leader epoch", fetch_topic(story, topic, (0, 5), current_leader_epoch=0))
    fetch(story, "a later leader epoch", fetch_topic(story, topic, (0, 5), current_leader_epoch=1))
    fetch(story, "last fetched in the epoch", fetch_topic(story, topic, (0, 5), last_fetched_epoch=0))
    fetch(story, "last fetched beyond the end", fetch_topic(story, topic, (0, 9), last_fetched_epoch=0))
    fetch(story, "last fetched in a later epoch", fetch_topic(story, topic, (0, 5), last_fetched_epoch=3))


def sessions(story: Story, topic: str) -> None:
    """Fetch sessions (KIP-227): a full fetch opens a session, later responses have only changed partitions."""
    both = fetch_topic(story, topic, (0, 5), (1, 0))
    session = fetch(story, "a new session", both, session_id=0, session_epoch=NEW_SESSION)["session_id"]
    fetch(story, "nothing has changed but the offset", session_id=session, session_epoch=1)
    fetch(story, "the offset moves on", fetch_topic(story, topic, (0, 6)), session_id=session, session_epoch=2)
    fetch(story, "nothing is new", session_id=session, session_epoch=3)
    story.produce(topic, values("new"), partition=1)
    fetch(story, "a record is new", session_id=session, session_epoch=4)
    forgotten = [{"topic": topic, "topic_id": story.topic_id(topic), "partitions": [1]}]
    fetch(story, "a partition is forgotten", session_id=session, session_epoch=5, forgotten_topics_data=forgotten)
    fetch(story, "a partition comes back", fetch_topic(story, topic, (1, 0)), session_id=session, session_epoch=6)
    unknown = fetch_topic(story, topic, (7, 0))
    fetch(story, "an unknown partition comes in", unknown, session_id=session, session_epoch=7)
    fetch(story, "it is told once more", session_id=session, session_epoch=8)
    other = fetch_topic(story, story.name("unknown"), (0, 0))
    fetch(story, "an unknown topic comes in", other, session_id=session, session_epoch=9)
    fetch(story, "a session epoch is left out", session_id=session, session_epoch=11)
    fetch(story, "an unknown session", session_id=123_456_789, session_epoch=1)
    fetch(story, "session 0 with an epoch", fetch_topic(story, topic, (0, 5)), session_id=0, session_epoch=1)
    fetch(story, "the session is closed", session_id=session, session_epoch=CLOSE_SESSION)
    fetch(story, "and gone", session_id=session, session_epoch=10)
    forgotten = {"session_id": 0, "session_epoch": NEW_SESSION, "forgotten_topics_data": forgotten}
    fetch(story, "forgotten in a new session", fetch_topic(story, topic, (1, 0)), **forgotten)
    fetch(story, "no session wanted", fetch_topic(story, topic, (0, 5)), session_id=0, session_epoch=NO_SESSION)


def after_delete_records(story: Story) -> None:
    topic = story.create_topic("shortened")
    story.produce(topic, values("a", "b"), values("c", "d"))
    partitions = [{"partition_index": 0, "offset": 3}]
    story.call("DeleteRecords", topics=[{"name": topic, "partitions": partitions}], timeout=10_000)
    fetch(story, "below the log start", fetch_topic(story, topic, (0, 0)))
    fetch(story, "from the log start, within a batch", fetch_topic(story, topic, (0, 3)))
