"""Small types that every room shares."""

from typing import NamedTuple

from protocol.errors import ErrorCode

Buffer = bytes | bytearray | memoryview

UNKNOWN_OFFSET = -1
NO_LEADER = -1
NO_PRODUCER_ID = -1


class TopicPartition(NamedTuple):
    """A partition's address. Hashes as a tuple, so it serves as a key on the data plane."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class KafkaError(Exception):
    """A refusal that has a Kafka error code; the message is for the client and for the log.

    Control-plane code raises it inside a handler; the handler turns it into the error fields of the answer.
    """

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}" if self.message else self.code.name
