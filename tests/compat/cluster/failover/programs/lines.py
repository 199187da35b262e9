"""Arguments, input and output of the programs in this folder.

    program BOOTSTRAP GROUP PARTITIONS TOPIC [TOPIC_OF_DEFAULTS]

A program sends the numbers 0, 1, 2, ... to the partitions in turn, to TOPIC with an idempotent producer, and to
TOPIC_OF_DEFAULTS with the client's default settings, where these are not idempotent. A consumer of GROUP reads both
topics, and commits. Everything else has the client's default settings. The output, one line each:

    sent TOPIC COUNT                       after the last record
    ack TOPIC PARTITION OFFSET NUMBER      a record is acknowledged
    read TOPIC PARTITION OFFSET NUMBER     a record is consumed
    commit                                 a commit has succeeded
    error TEXT                             an error or exception that the client has shown to its user

A line on standard input ends the producers; the end of the input ends the consumer.
"""

import sys
import threading
import time
from typing import NamedTuple

# Seconds between two records of a producer, and between two commits.
PACE_S = 0.1
COMMIT_INTERVAL_S = 0.5


class Arguments(NamedTuple):
    bootstrap: str
    group: str
    partitions: int
    topics: list[str]


def arguments() -> Arguments:
    return Arguments(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])


_output = threading.Lock()


def say(*words: object) -> None:
    """Write a line."""
    line = " ".join(map(str, words)).replace("\n", " ") + "\n"
    with _output:
        sys.stdout.write(line)
        sys.stdout.flush()


def acknowledged(topic: str, partition: int, offset: int, number: int) -> None:
    say("ack", topic, partition, offset, number)


def read(topic: str, partition: int, offset: int, value: bytes) -> None:
    say("read", topic, partition, offset, value.decode())


def error(found: object) -> None:
    say("error", repr(found))


class Commands:
    """What the test has written to standard input."""

    def __init__(self) -> None:
        self.producing = True
        self.consuming = True
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        sys.stdin.readline()
        self.producing = False
        sys.stdin.read()
        self.consuming = False


class CommitTimer:
    def __init__(self) -> None:
        self._next = time.monotonic() + COMMIT_INTERVAL_S

    def is_due(self) -> bool:
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + COMMIT_INTERVAL_S
        return True
