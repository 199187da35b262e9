"""A consumer's end of a fetch session (KIP-227): what the broker has been told, so that only changes are sent."""

from typing import NamedTuple

from kbroker.simulation.checker.history import Place
from protocol.errors import ErrorCode
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
MAX_EPOCH = 2**31 - 1
NO_SESSION = 0


class Wanted(NamedTuple):
    """What is fetched of a partition; -1 for an epoch that is not told."""

    topic_id: bytes
    offset: int
    leader_epoch: int
    last_epoch: int
    max_bytes: int


class Session:
    """With one node. `used`: whether this client asks for sessions at all."""

    def __init__(self, used: bool) -> None:
        self._used = used
        self._id = NO_SESSION
        self._epoch = INITIAL_EPOCH if used else FINAL_EPOCH
        self._told: dict[Place, Wanted] = {}
        self._asked: dict[Place, Wanted] = {}

    @property
    def is_incremental(self) -> bool:
        return self._id != NO_SESSION and self._epoch > INITIAL_EPOCH

    def fill(self, request: FetchRequest, wanted: dict[Place, Wanted]) -> None:
        """Put into a request which partitions are wanted, as far as the broker does not know it."""
        self._asked = wanted
        request.session_id, request.session_epoch = self._id, self._epoch
        changed = wanted
        if self.is_incremental:
            changed = {place: one for place, one in wanted.items() if self._told.get(place) != one}
            # A topic that was made anew is another one: the old one is forgotten by its id.
            gone = {
                place: one
                for place, one in self._told.items()
                if place not in wanted or wanted[place].topic_id != one.topic_id
            }
            request.forgotten_topics_data = _forgotten(gone)
        request.topics = _topics(changed)

    def answered(self, response: FetchResponse) -> None:
        """Take note of what the broker knows now."""
        if response.error_code:
            if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._id = NO_SESSION
            self.failed()
        elif not self._used or response.session_id == NO_SESSION:
            self._id = NO_SESSION
            self._epoch = INITIAL_EPOCH if self._used else FINAL_EPOCH
        else:
            self._epoch = 1 if self._epoch == MAX_EPOCH else self._epoch + 1
            self._id = response.session_id
            self._told = self._asked

    def failed(self) -> None:
        """What the broker knows is not known: the next request is a whole one, and closes the session that may be."""
        self._epoch = INITIAL_EPOCH if self._used else FINAL_EPOCH


def _topics(wanted: dict[Place, Wanted]) -> list[FetchTopic]:
    topics: dict[str, FetchTopic] = {}
    for (name, index), one in wanted.items():
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = FetchTopic(topic=name, topic_id=one.topic_id)
        topic.partitions.append(
            FetchPartition(
                partition=index,
                current_leader_epoch=one.leader_epoch,
                fetch_offset=one.offset,
                last_fetched_epoch=one.last_epoch,
                partition_max_bytes=one.max_bytes,
            )
        )
    return list(topics.values())


def _forgotten(gone: dict[Place, Wanted]) -> list[ForgottenTopic]:
    topics: dict[tuple[str, bytes], ForgottenTopic] = {}
    for (name, index), one in gone.items():
        topic = topics.setdefault((name, one.topic_id), ForgottenTopic(topic=name, topic_id=one.topic_id))
        topic.partitions.append(index)
    return list(topics.values())
