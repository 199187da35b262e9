"""Every config accepts and rejects the same values as Apache Kafka 4.4.0, with the same error codes and messages.

7,000 values are compared (see kafka_values.py). DIFFERENCES has those where kbroker differs, with the reason.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from kbroker.common import KafkaError
from kbroker.config import BrokerConfig
from kbroker.config.alter import AlterConfigOp, OpType, alter_broker, alter_client_metrics, alter_group, alter_topic
from kbroker.config.config_def import NoEffect
from kbroker.config.definitions import security
from kbroker.config.definitions.broker import BROKER_CONFIGS
from tests.unit.config.kafka_values import KAFKA, START, UNLISTED, Outcome, load, trials

ACCEPTS, REJECTS = "accepts", "rejects"
PROTECTION = "|".join(
    re.escape(name)
    for name, key in BROKER_CONFIGS.items()
    if key.no_effect is NoEffect.NO_PROTECTION or key in security.KEYS
)


class Difference(NamedTuple):
    """What Kafka and kbroker do with some values of some configs. `names` and `value` are regular expressions.

    Where both reject a value, their error messages differ.
    """

    names: str
    kafka: str
    kbroker: str
    reason: str
    value: str = ".*"


DIFFERENCES = [
    Difference(
        r"(brokers?|start) ((advertised\.)?listeners|controller\.listener\.names|listener\.security\.protocol\.map)",
        REJECTS,
        REJECTS,
        "kbroker's messages say which values are valid",
    ),
    Difference(
        r"start (controller\.quorum\.voters|node\.id|listener\.security\.protocol\.map)",
        REJECTS,
        ACCEPTS,
        "kbroker has no metadata quorum, so its configs need not be complete",
    ),
    Difference(r"start node\.id", REJECTS, REJECTS, "Kafka's message names broker.id"),
    Difference(
        r".* (.*\.class(\.name)?|group\.(consumer|share|streams)\.assignors|metric\.reporters)",
        REJECTS,
        ACCEPTS,
        "kbroker does not load Java classes, so it accepts any name",
        r"(?!a b).+",
    ),
    Difference(
        r"brokers .*\.class", REJECTS, REJECTS, "kbroker does not load the class before other checks", "x|no.such.Class"
    ),
    Difference(rf".* (listener\.name\.[^.]+\.)?({PROTECTION})", ACCEPTS, REJECTS, "kbroker has no such security", ".+"),
    Difference(
        rf".* ({PROTECTION})", REJECTS, REJECTS, "kbroker does not load Java classes", r"x|no\.such\.Class|java.*"
    ),
    Difference(r"start authorizer\.class\.name", ACCEPTS, REJECTS, "kbroker has one authorizer", ".+"),
    Difference(r".*", ACCEPTS, REJECTS, "kbroker rejects NaN", "NaN"),
    Difference(
        r"group streams\.rack\.aware\.assignment\.tags", REJECTS, REJECTS, "Kafka first looks for duplicates", ","
    ),
    Difference(r"brokers .*", REJECTS, REJECTS, "kbroker rejects NaN before it checks the update mode", "NaN"),
    Difference(r"brokers? config\.providers", ACCEPTS, REJECTS, "kbroker validates it like other lists", ",|a,,b|a,a"),
    Difference(
        r"topic internal\.segment\.bytes", ACCEPTS, REJECTS, "no log could have segments of this size", "-2|-1|0"
    ),
    Difference(r".* log\.cleaner\.threads", REJECTS, ACCEPTS, "Kafka divides by the number of threads", "0"),
    Difference(
        r"brokers? log\.(local\.retention|remote\.copy\.lag)\.ms",
        REJECTS,
        ACCEPTS,
        "kbroker has no tiered storage whose retention the value could contradict",
    ),
]

# The configs of the recorded nodes.
STARTED = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.voters": "1@127.0.0.1:9093",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
}
_WRAPPED = re.compile(
    r"Invalid value org\.apache\.kafka\.common\.config\.ConfigException: (.*) for configuration Invalid dynamic "
    "configuration"
)


def outcome(method: str, name: str, value: str, config: BrokerConfig) -> Outcome:
    """Try a value in kbroker."""
    ops = [AlterConfigOp(name, OpType.SET, value)]
    try:
        if method == START:
            BrokerConfig.load({**STARTED, name: value})
        elif method == "topic":
            alter_topic({}, ops, config)
        elif method == "group":
            alter_group({}, ops, config)
        elif method == "client-metrics":
            alter_client_metrics({}, ops)
        else:
            alter_broker({}, ops, config, cluster_default=method == "brokers")
    except KafkaError as error:
        return None if method == START else int(error.code), error.message or ""
    return None


def unwrap(recorded: Outcome) -> Outcome:
    """Return an outcome of Kafka without the text that its wrapping exceptions add."""
    if recorded is None:
        return None
    code, message = recorded
    wrapped = _WRAPPED.fullmatch(message)
    return code, (wrapped[1] if wrapped else message).removeprefix("requirement failed: ")


def verdict(outcome: Outcome) -> str:
    return ACCEPTS if outcome is None else REJECTS


def differences() -> Iterator[tuple[str, str, Outcome, Outcome]]:
    """Yield (method and config, value, Kafka's outcome, kbroker's) where the two differ."""
    config = BrokerConfig.load({"listeners": "PLAINTEXT://127.0.0.1:9092"})
    for method, name, value, recorded in load():
        in_kafka, in_kbroker = unwrap(recorded), outcome(method, name, value, config)
        if in_kafka != in_kbroker:
            yield f"{method} {name}", value, in_kafka, in_kbroker


def test_every_config_accepts_and_rejects_the_same_values_as_in_kafka():
    used: Counter[Difference] = Counter()
    unexplained = []
    for name, value, in_kafka, in_kbroker in differences():
        for difference in DIFFERENCES:
            verdicts = (verdict(in_kafka), verdict(in_kbroker))
            if (
                verdicts == (difference.kafka, difference.kbroker)
                and re.fullmatch(difference.names, name)
                and re.fullmatch(difference.value, value)
            ):
                used[difference] += 1
                break
        else:
            unexplained.append(f"{name}={value!r}: Kafka {in_kafka}, kbroker {in_kbroker}")
    assert unexplained == []
    assert [difference.reason for difference in DIFFERENCES if not used[difference]] == []


def test_every_config_was_recorded():
    recorded = defaultdict(set)
    for method, name, value, _ in load():
        recorded[method, name].add(value)
    assert {(method, name): set(values) for method, name, values in trials()} == recorded
    configs = {("broker" if method in (START, "brokers") else method, name) for method, name in recorded}
    assert configs == {(config[0], config[1]) for config in (*KAFKA, *UNLISTED)}


@pytest.mark.parametrize("method", [START, "brokers", "broker", "topic", "group", "client-metrics"])
def test_the_recording_has_accepted_and_rejected_values_for_each_method(method: str):
    assert {verdict(recorded) for m, _, _, recorded in load() if m == method} == {ACCEPTS, REJECTS}
