"""The consumer's side of a fetch session (KIP-227): tracks the session's partitions and sends only changes."""

from typing import NamedTuple

from kbroker.simulation.checker.history import TopicPartition
from protocol.errors import ErrorCode
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
MAX_EPOCH = 2**31 - 1
NO_SESSION = 0


class PartitionFetch(NamedTuple):
    """The fetch parameters of one partition. An epoch is -1 if it is not sent."""

    topic_id: bytes
    offset: int
    leader_epoch: int
    last_epoch: int
    max_bytes: int


class FetchSessionHandler:
    """The fetch session with one node. `used`: whether this client uses fetch sessions."""

    def __init__(self, used: bool) -> None:
        self._used = used
        self._id = NO_SESSION
        self._epoch = INITIAL_EPOCH if used else FINAL_EPOCH
        self._session_partitions: dict[TopicPartition, PartitionFetch] = {}
        self._requested_partitions: dict[TopicPartition, PartitionFetch] = {}

    @property
    def is_incremental(self) -> bool:
        return self._id != NO_SESSION and self._epoch > INITIAL_EPOCH

    def fill_request(self, request: FetchRequest, partitions: dict[TopicPartition, PartitionFetch]) -> None:
        """Set the request's session fields and the partitions that changed since the session's last request."""
        self._requested_partitions = partitions
        request.session_id, request.session_epoch = self._id, self._epoch
        changed = partitions
        if self.is_incremental:
            changed = {
                tp: partition for tp, partition in partitions.items() if self._session_partitions.get(tp) != partition
            }
            # A recreated topic has another id: the partitions of the old id are forgotten.
            gone = {
                tp: partition
                for tp, partition in self._session_partitions.items()
                if tp not in partitions or partitions[tp].topic_id != partition.topic_id
            }
            request.forgotten_topics_data = _forgotten(gone)
        request.topics = _topics(changed)

    def handle_response(self, response: FetchResponse) -> None:
        """Update the session from a response."""
        if response.error_code:
            if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._id = NO_SESSION
            self.handle_error()
        elif not self._used or response.session_id == NO_SESSION:
            self._id = NO_SESSION
            self._epoch = INITIAL_EPOCH if self._used else FINAL_EPOCH
        else:
            self._epoch = 1 if self._epoch == MAX_EPOCH else self._epoch + 1
            self._id = response.session_id
            self._session_partitions = self._requested_partitions

    def handle_error(self) -> None:
        """Make the next request a full one, which closes the session: its state on the broker is unknown."""
        self._epoch = INITIAL_EPOCH if self._used else FINAL_EPOCH


def _topics(partitions: dict[TopicPartition, PartitionFetch]) -> list[FetchTopic]:
    topics: dict[str, FetchTopic] = {}
    for (name, index), partition in partitions.items():
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = FetchTopic(topic=name, topic_id=partition.topic_id)
        topic.partitions.append(
            FetchPartition(
                partition=index,
                current_leader_epoch=partition.leader_epoch,
                fetch_offset=partition.offset,
                last_fetched_epoch=partition.last_epoch,
                partition_max_bytes=partition.max_bytes,
            )
        )
    return list(topics.values())


def _forgotten(gone: dict[TopicPartition, PartitionFetch]) -> list[ForgottenTopic]:
    topics: dict[tuple[str, bytes], ForgottenTopic] = {}
    for (name, index), partition in gone.items():
        topic = topics.setdefault((name, partition.topic_id), ForgottenTopic(topic=name, topic_id=partition.topic_id))
        topic.partitions.append(index)
    return list(topics.values())
