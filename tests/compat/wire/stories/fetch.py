"""Fetch: records from an offset, within limits, in sessions."""

from uuid import UUID

from tests.compat.wire.batches import values
from tests.compat.wire.play import Answer, Play
from tests.compat.wire.stories import transactional

UNKNOWN_ID = UUID(int=1)
EVERYTHING = 1 << 20
NO_SESSION, NEW_SESSION, CLOSE_SESSION = -1, 0, -1


def story(play: Play) -> None:
    topic = play.topic("t", 2)
    play.produce(topic, values("a", "b"), values("c", "d", "e"), values("f", codec="lz4"))
    offsets(play, topic)
    limits(play, topic)
    refused(play, topic)
    epochs(play, topic)
    if play.version >= 7:
        sessions(play, topic)
    after_delete_records(play)
    transactional.fetch(play)


def wanted(play: Play, topic: str, *partitions: tuple[int, int], **more: int) -> dict[str, object]:
    """`partitions`: (index, offset)."""
    rows = [
        {"partition": index, "fetch_offset": offset, "partition_max_bytes": EVERYTHING, "log_start_offset": -1, **more}
        for index, offset in partitions
    ]
    return {"topic": topic, "topic_id": play.id(topic) if play.has(topic) else UNKNOWN_ID, "partitions": rows}


def fetch(play: Play, step: str, *topics: dict[str, object], **how: object) -> Answer:
    asked = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": EVERYTHING, **how}
    return play.ask(step, **asked, topics=list(topics))


def offsets(play: Play, topic: str) -> None:
    fetch(play, "from the start", wanted(play, topic, (0, 0)))
    fetch(play, "from within a batch", wanted(play, topic, (0, 3)))
    fetch(play, "at the end", wanted(play, topic, (0, 6)))
    fetch(play, "beyond the end", wanted(play, topic, (0, 7)))
    fetch(play, "a negative offset", wanted(play, topic, (0, -1)))
    fetch(play, "an empty partition", wanted(play, topic, (1, 0)))
    fetch(play, "both partitions", wanted(play, topic, (1, 0), (0, 5)))
    fetch(play, "read committed", wanted(play, topic, (0, 0)), isolation_level=1)
    fetch(play, "a short wait", wanted(play, topic, (0, 6)), min_bytes=1, max_wait=5)
    fetch(play, "no topics")
    fetch(play, "a partition twice", wanted(play, topic, (0, 0), (0, 5)))
    fetch(play, "a topic twice", wanted(play, topic, (0, 5)), wanted(play, topic, (1, 0)))


def limits(play: Play, topic: str) -> None:
    fetch(play, "one byte of a partition", wanted(play, topic, (0, 0), partition_max_bytes=1))
    fetch(play, "150 bytes of a partition", wanted(play, topic, (0, 0), partition_max_bytes=150))
    fetch(play, "one byte of all", wanted(play, topic, (0, 0)), max_bytes=1)
    fetch(play, "150 bytes of all", wanted(play, topic, (0, 0)), max_bytes=150)
    fetch(play, "nothing of a partition", wanted(play, topic, (0, 0), partition_max_bytes=0))
    fetch(play, "nothing of all", wanted(play, topic, (0, 0)), max_bytes=0)


def refused(play: Play, topic: str) -> None:
    fetch(play, "unknown topic", wanted(play, play.name("unknown"), (0, 0)))
    fetch(play, "unknown partition", wanted(play, topic, (7, 0)))
    fetch(play, "a known and an unknown partition", wanted(play, topic, (0, 5), (7, 0)))
    fetch(play, "isolation level 2", wanted(play, topic, (0, 5)), isolation_level=2)
    fetch(play, "the debugging consumer", wanted(play, topic, (0, 5)), replica_id=-2, replica_state={"replica_id": -2})


def epochs(play: Play, topic: str) -> None:
    fetch(play, "the current leader epoch", wanted(play, topic, (0, 5), current_leader_epoch=0))
    fetch(play, "a later leader epoch", wanted(play, topic, (0, 5), current_leader_epoch=1))
    fetch(play, "last fetched in the epoch", wanted(play, topic, (0, 5), last_fetched_epoch=0))
    fetch(play, "last fetched beyond the end", wanted(play, topic, (0, 9), last_fetched_epoch=0))
    fetch(play, "last fetched in a later epoch", wanted(play, topic, (0, 5), last_fetched_epoch=3))


def sessions(play: Play, topic: str) -> None:
    """KIP-227: a full fetch opens a session, the following ones tell what has changed."""
    both = wanted(play, topic, (0, 5), (1, 0))
    session = fetch(play, "a new session", both, session_id=0, session_epoch=NEW_SESSION)["session_id"]
    fetch(play, "nothing has changed but the offset", session_id=session, session_epoch=1)
    fetch(play, "the offset moves on", wanted(play, topic, (0, 6)), session_id=session, session_epoch=2)
    fetch(play, "nothing is new", session_id=session, session_epoch=3)
    play.produce(topic, values("new"), partition=1)
    fetch(play, "a record is new", session_id=session, session_epoch=4)
    forgotten = [{"topic": topic, "topic_id": play.id(topic), "partitions": [1]}]
    fetch(play, "a partition is forgotten", session_id=session, session_epoch=5, forgotten_topics_data=forgotten)
    fetch(play, "a partition comes back", wanted(play, topic, (1, 0)), session_id=session, session_epoch=6)
    unknown = wanted(play, topic, (7, 0))
    fetch(play, "an unknown partition comes in", unknown, session_id=session, session_epoch=7)
    fetch(play, "it is told once more", session_id=session, session_epoch=8)
    other = wanted(play, play.name("unknown"), (0, 0))
    fetch(play, "an unknown topic comes in", other, session_id=session, session_epoch=9)
    fetch(play, "a session epoch is left out", session_id=session, session_epoch=11)
    fetch(play, "an unknown session", session_id=123_456_789, session_epoch=1)
    fetch(play, "session 0 with an epoch", wanted(play, topic, (0, 5)), session_id=0, session_epoch=1)
    fetch(play, "the session is closed", session_id=session, session_epoch=CLOSE_SESSION)
    fetch(play, "and gone", session_id=session, session_epoch=10)
    forgotten = {"session_id": 0, "session_epoch": NEW_SESSION, "forgotten_topics_data": forgotten}
    fetch(play, "forgotten in a new session", wanted(play, topic, (1, 0)), **forgotten)
    fetch(play, "no session wanted", wanted(play, topic, (0, 5)), session_id=0, session_epoch=NO_SESSION)


def after_delete_records(play: Play) -> None:
    topic = play.topic("shortened")
    play.produce(topic, values("a", "b"), values("c", "d"))
    partitions = [{"partition_index": 0, "offset": 3}]
    play.do("DeleteRecords", topics=[{"name": topic, "partitions": partitions}], timeout=10_000)
    fetch(play, "below the log start", wanted(play, topic, (0, 0)))
    fetch(play, "from the log start, within a batch", wanted(play, topic, (0, 3)))
