"""Every config takes and refuses what it does in Apache Kafka 4.3.1, with its error codes and words.

7,000 values were asked there (see kafka_values.py). Where kbroker means to answer otherwise stands below, with the
reason.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from kbroker.common import KafkaError
from kbroker.config import BrokerConfig
from kbroker.config.alter import AlterConfigOp, OpType, alter_broker, alter_client_metrics, alter_group, alter_topic
from tests.unit.config.kafka_values import KAFKA, START, UNLISTED, Answer, load, questions

TAKES, REFUSES = "takes", "refuses"


class Difference(NamedTuple):
    """Kafka's and kbroker's attitude to some values of some configs; the names are a pattern, `value` is one too."""

    names: str
    kafka: str
    kbroker: str
    why: str
    value: str = ".*"


DIFFERENCES = [
    Difference(
        r"(brokers?|start) ((advertised\.)?listeners|controller\.listener\.names|listener\.security\.protocol\.map)",
        REFUSES,
        REFUSES,
        "in sentences that say what to write",
    ),
    Difference(
        r"start (controller\.quorum\.voters|node\.id|listener\.security\.protocol\.map)",
        REFUSES,
        TAKES,
        "nothing has to be said of a metadata quorum that there is not",
    ),
    Difference(r"start node\.id", REFUSES, REFUSES, "Kafka calls it broker.id"),
    Difference(
        r".* (.*\.class(\.name)?|group\.(consumer|share)\.assignors|metric\.reporters)",
        REFUSES,
        TAKES,
        "the names of Java classes are taken as they are, none is loaded",
        r"(?!a b).+",
    ),
    Difference(r"brokers .*\.class", REFUSES, REFUSES, "nor is it looked for", "x|no.such.Class"),
    Difference(r".*", TAKES, REFUSES, "not a number is none", "NaN"),
    Difference(r"brokers .*", REFUSES, REFUSES, "nor is it wrong for its level only", "NaN"),
    Difference(r"brokers? config\.providers", TAKES, REFUSES, "as Kafka itself at the start", ",|a,,b"),
    Difference(r"topic internal\.segment\.bytes", TAKES, REFUSES, "no log could have such segments", "-2|-1|0"),
    Difference(r".* log\.cleaner\.threads", REFUSES, TAKES, "Kafka divides by it", "0"),
    Difference(
        r"brokers? log\.local\.retention\.ms",
        REFUSES,
        TAKES,
        "there is no tiered storage whose retention it could contradict",
    ),
    Difference(
        r"broker min\.insync\.replicas", REFUSES, TAKES, "eligible leader replicas (KIP-966) are not there to forbid it"
    ),
]

# As the recorded nodes were started.
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


def answer(way: str, name: str, value: str, config: BrokerConfig) -> Answer:
    changes = [AlterConfigOp(name, OpType.SET, value)]
    try:
        if way == START:
            BrokerConfig.load({**STARTED, name: value})
        elif way == "topic":
            alter_topic({}, changes, config)
        elif way == "group":
            alter_group({}, changes, config)
        elif way == "client-metrics":
            alter_client_metrics({}, changes)
        else:
            alter_broker({}, changes, config, every=way == "brokers")
    except KafkaError as refusal:
        return None if way == START else int(refusal.code), refusal.message or ""
    return None


def plain(theirs: Answer) -> Answer:
    """Kafka's answer without what its wrapping exceptions add."""
    if theirs is None:
        return None
    code, message = theirs
    wrapped = _WRAPPED.fullmatch(message)
    return code, (wrapped[1] if wrapped else message).removeprefix("requirement failed: ")


def attitude(one: Answer) -> str:
    return TAKES if one is None else REFUSES


def differing() -> Iterator[tuple[str, str, Answer, Answer]]:
    """(way and config, value, Kafka's answer, ours) where the two are not the same."""
    config = BrokerConfig.load({"listeners": "PLAINTEXT://127.0.0.1:9092"})
    for way, name, value, theirs in load():
        kafkas, ours = plain(theirs), answer(way, name, value, config)
        if kafkas != ours:
            yield f"{way} {name}", value, kafkas, ours


def test_every_config_takes_and_refuses_what_it_does_in_kafka():
    used: Counter[Difference] = Counter()
    unexplained = []
    for name, value, kafkas, ours in differing():
        for one in DIFFERENCES:
            attitudes = (attitude(kafkas), attitude(ours))
            if (
                attitudes == (one.kafka, one.kbroker)
                and re.fullmatch(one.names, name)
                and re.fullmatch(one.value, value)
            ):
                used[one] += 1
                break
        else:
            unexplained.append(f"{name}={value!r}: Kafka {kafkas}, kbroker {ours}")
    assert unexplained == []
    assert [one.why for one in DIFFERENCES if not used[one]] == []


def test_every_config_was_asked():
    asked = defaultdict(set)
    for way, name, value, _ in load():
        asked[way, name].add(value)
    assert {(way, name): set(values) for way, name, values in questions()} == asked
    named = {("broker" if way in (START, "brokers") else way, name) for way, name in asked}
    assert named == {(config[0], config[1]) for config in (*KAFKA, *UNLISTED)}


@pytest.mark.parametrize("way", [START, "brokers", "broker", "topic", "group", "client-metrics"])
def test_each_way_has_taken_and_refused_something(way: str):
    assert {attitude(theirs) for one, _, _, theirs in load() if one == way} == {TAKES, REFUSES}
