"""Validation of a new plan of reassignments."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kbroker.common import KafkaError
from kbroker.metadata.image import TopicImage
from kbroker.metadata.reassignments.stored_plan import NO_THROTTLE, StoredMove
from kbroker.metadata.topics.placement.placement_goals import has_fewer_racks
from kbroker.metadata.topics.replica_assignment import invalid_assignment, validate_replicas
from kbroker.metadata.topics.replica_placement import Racks
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode

MAX_MOVES = 10_000
MAX_DESCRIPTION_CHARACTERS = 1000


class RequestedMove(NamedTuple):
    """A move in a request. `target[0]` is the preferred leader afterwards."""

    topic: str
    partition: int
    original: tuple[int, ...]
    target: tuple[int, ...]


class RequestedPlan(NamedTuple):
    """A plan in a request. `throttle`: bytes per second for each broker, or NO_THROTTLE.

    `allow_fewer_racks`: a move may spread its partition over fewer racks than before.
    """

    description: str
    throttle: int
    max_concurrent_moves: int
    moves: Sequence[RequestedMove]
    allow_fewer_racks: bool = False


def check_plan(requested: RequestedPlan, topics: Mapping[str, TopicImage], racks: Racks) -> list[StoredMove]:
    """Validate a plan, and return its moves. `racks` has all registered brokers. Raises KafkaError with the reason."""
    if not requested.moves:
        raise _invalid("The plan has no moves.")
    if len(requested.moves) > MAX_MOVES:
        raise _invalid(f"The plan has {len(requested.moves)} moves; at most {MAX_MOVES} are possible.")
    if len(requested.description) > MAX_DESCRIPTION_CHARACTERS:
        raise _invalid(f"The description has more than {MAX_DESCRIPTION_CHARACTERS} characters.")
    if requested.max_concurrent_moves <= 0:
        raise _invalid("The number of concurrent moves must be at least 1.")
    if requested.throttle <= 0 and requested.throttle != NO_THROTTLE:
        raise _invalid("The throttle must be at least 1 byte per second, or -1 for none.")
    moves: dict[tuple[str, int], StoredMove] = {}
    for move in paced(requested.moves):
        if (move.topic, move.partition) in moves:
            raise _invalid(f"The plan has more than one move of {move.topic}-{move.partition}.")
        moves[move.topic, move.partition] = _check_move(move, topics, racks)
        if not requested.allow_fewer_racks:
            _check_racks(move, racks)
    return list(moves.values())


def _check_move(move: RequestedMove, topics: Mapping[str, TopicImage], racks: Racks) -> StoredMove:
    name = f"{move.topic}-{move.partition}"
    topic = topics.get(move.topic)
    if topic is None or not 0 <= move.partition < len(topic.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The partition {name} does not exist.")
    partition = topic.partitions[move.partition]
    if partition.is_reassigning:
        raise KafkaError(ErrorCode.REASSIGNMENT_IN_PROGRESS, f"The partition {name} is already being reassigned.")
    if list(move.original) != partition.replicas:
        raise invalid_assignment(
            f"The partition {name} has the replicas {partition.replicas}, not {list(move.original)} as in the plan."
        )
    if move.target == move.original:
        raise invalid_assignment(f"The partition {name} already has the replicas {list(move.target)}.")
    try:
        validate_replicas(move.target, racks, None)
    except KafkaError as error:
        raise invalid_assignment(f"The partition {name}: {error.message}") from None
    return StoredMove(move.topic, topic.topic_id, move.partition, move.original, move.target)


def _check_racks(move: RequestedMove, racks: Racks) -> None:
    """Raise KafkaError if a move spreads its partition worse. A broker that is no longer registered has no rack."""
    before, after = ([racks.get(broker) for broker in replicas] for replicas in (move.original, move.target))
    if has_fewer_racks(before, after):
        names = (", ".join(rack or "none" for rack in replicas) for replicas in (before, after))
        raise invalid_assignment(
            f"The partition {move.topic}-{move.partition} would be in fewer racks: from {' to '.join(names)}."
        )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
