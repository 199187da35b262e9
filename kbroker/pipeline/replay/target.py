"""The topics that a replay goes into: what they would do to its records, whether they are there, where they end.

Times are milliseconds since 1970, sizes bytes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from kbroker.pipeline.archive.manifest.model import ArchiveState
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.connection import Brokers, Connection, RefusedError
from kbroker.pipeline.replay.encoding import Target
from kbroker.pipeline.replay.positions import EARLIEST, LATEST, Start, offset
from protocol.errors import ErrorCode
from protocol.messages.k22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.k32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
TIMESTAMP_TYPE = "message.timestamp.type"
ASKED = (
    TIMESTAMP_TYPE,
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "max.message.bytes",
    "retention.ms",
    "cleanup.policy",
)
# Where a topic has none of its own: the broker's configs of the same meaning.
_DEFAULTS = {
    TIMESTAMP_TYPE: "log.message.timestamp.type",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "cleanup.policy": "log.cleanup.policy",
}
# And those for retention.ms, the strongest first, with their units in ms.
_RETENTION = {"log.retention.ms": 1, "log.retention.minutes": 60_000, "log.retention.hours": 3_600_000}
_TRIES = 20

T = TypeVar("T")


@dataclass(frozen=True)
class Existing:
    """A topic that is there."""

    topic_id: str  # hexadecimal
    partitions: int
    configs: Mapping[str, str]  # those of ASKED that it has, as they are in effect


@dataclass(frozen=True)
class Wanted:
    """A topic that is to be created."""

    partitions: int
    configs: Mapping[str, str]


def existing(brokers: Brokers, name: str) -> Existing | None:
    """None where there is no such topic. Raises PipelineError for all else."""
    try:
        topic = brokers.topic(name)
    except RefusedError as error:
        if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        raise PipelineError(f"cannot replay into {name}: {error}") from None
    configs = _configs(brokers.any(), TOPIC_RESOURCE, name, ASKED)
    return Existing(topic.topic_id.hex(), len(topic.leaders), configs)


def defaults(brokers: Brokers) -> dict[str, str]:
    """Those of ASKED that a new topic has if they are not given, as one broker has them: those of a cluster are set up
    alike. Raises OSError, PipelineError."""
    number, connection = brokers.node()
    return topic_defaults(_configs(connection, BROKER_RESOURCE, str(number), [*_DEFAULTS.values(), *_RETENTION]))


def topic_defaults(broker: Mapping[str, str]) -> dict[str, str]:
    """The same from a broker's configs, those without a value left out."""
    found = {name: broker[source] for name, source in _DEFAULTS.items() if source in broker}
    retention = next((int(broker[name]) * unit for name, unit in _RETENTION.items() if name in broker), None)
    return found if retention is None else {**found, "retention.ms": str(max(-1, retention))}


def _configs(connection: Connection, kind: int, name: str, keys: Iterable[str]) -> dict[str, str]:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=list(keys))
    answer = connection.ask(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse).results[0]
    if answer.error_code:
        what = f"configs of {'topic' if kind == TOPIC_RESOURCE else 'broker'} {name}"
        raise PipelineError(str(RefusedError(answer.error_code, what, answer.error_message)))
    return {one.name: one.value for one in answer.configs if one.value is not None}


def wanted(state: ArchiveState, sources: Iterable[str], partitions: int, configs: Mapping[str, str]) -> Wanted:
    """A topic like the archived ones that feed it; `partitions`: what it needs at least, `configs` overrule theirs.

    Records keep their timestamps, whatever the archived topic did and the broker does by default.
    """
    known = [state.topics[source] for source in sources if source in state.topics]
    kept = dict(known[0].configs) if len(known) == 1 else {}
    needed = {TIMESTAMP_TYPE: "CreateTime"}
    return Wanted(max([partitions, *(topic.partitions for topic in known)]), {**kept, **needed, **configs})


def refusals(name: str, configs: Mapping[str, str], from_ms: int, to_ms: int, now_ms: int) -> list[str]:
    """Why a topic with these configs would not keep records of this time as they are."""
    if configs.get(TIMESTAMP_TYPE) == "LogAppendTime":
        return [f"topic {name} gives records the time of their arrival ({TIMESTAMP_TYPE}=LogAppendTime)"]
    found = []
    before, after = (
        _number(configs, "message.timestamp.before.max.ms"),
        _number(configs, "message.timestamp.after.max.ms"),
    )
    if before is not None and now_ms - from_ms > before:
        found.append(f"topic {name} refuses records as old as these (message.timestamp.before.max.ms={before})")
    if after is not None and to_ms - now_ms > after:
        found.append(
            f"topic {name} refuses records as far in the future as these (message.timestamp.after.max.ms={after})"
        )
    return found


def warnings(name: str, configs: Mapping[str, str], from_ms: int, now_ms: int) -> list[str]:
    """What a topic with these configs will do to records of this time later on."""
    retention = _number(configs, "retention.ms")
    if (
        "delete" in configs.get("cleanup.policy", "delete")
        and retention is not None
        and 0 <= retention < now_ms - from_ms
    ):
        return [
            f"topic {name} removes records that are older than retention.ms={retention}, and the oldest of these are: "
            f"set it to -1 to keep them (--config retention.ms=-1 where the topic is created)"
        ]
    return []


def starts(brokers: Brokers, name: str, partitions: int) -> list[Start]:
    """Where each partition ends, and whether it is empty."""
    found = []
    for number in range(partitions):
        target = Target(name, number)
        end = settled(lambda target=target: offset(brokers, target, LATEST), brokers)  # type: ignore[misc]
        first = offset(brokers, target, EARLIEST)
        found.append(Start(end, first == end))
    return found


def producer_id(brokers: Brokers) -> tuple[int, int]:
    """A producer id of our own, and its epoch."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)

    def asked() -> tuple[int, int]:
        answer = brokers.any().ask(request, InitProducerIdResponse)
        if answer.error_code:
            raise RefusedError(answer.error_code, "a producer id")
        return answer.producer_id, answer.producer_epoch

    return settled(asked, brokers)


def settled(question: Callable[[], T], brokers: Brokers) -> T:
    """The answer of a cluster that may be about to choose leaders; its refusal as PipelineError."""
    from time import sleep

    for tries in range(_TRIES):
        try:
            return question()
        except RefusedError as error:
            if not error.code.retriable or tries == _TRIES - 1:
                raise PipelineError(str(error)) from None
            brokers.forget()
            sleep(0.25)
    raise AssertionError


def batch_bytes(configs: Iterable[Mapping[str, str]], most: int, overhead: int) -> int:
    """How large a batch may be for all of these topics."""
    allowed = [_number(one, "max.message.bytes") for one in configs]
    return max(1, min([most, *(size - overhead for size in allowed if size is not None)]))


def _number(configs: Mapping[str, str], name: str) -> int | None:
    text = configs.get(name, "")
    return int(text) if text.lstrip("-").isdigit() else None
