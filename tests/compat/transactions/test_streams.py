"""Kafka Streams with exactly_once_v2: a word count with a repartition topic and a changelog, killed with its broker."""

import random
from collections import Counter

import pytest

from tests.compat.java_programs import classpath_of, java_command
from tests.compat.support import EXTERNAL_BOOTSTRAP, eventually, running_broker, unique
from tests.compat.transactions.clients import COMMITTED, UNCOMMITTED
from tests.compat.transactions.confluent_client import ConfluentClient
from tests.compat.transactions.conftest import PROMPT_TIMEOUTS
from tests.compat.transactions.flows import PARTITIONS, create_topics
from tests.compat.transactions.java_client import jar
from tests.compat.transactions.processes import PROGRAMS, Program
from tests.sampling import runs_in_third

pytestmark = [pytest.mark.feature("Kafka Streams"), pytest.mark.client("kafka_tools")]

SETTINGS = {**PROMPT_TIMEOUTS, "group.min.session.timeout.ms": "500", "offsets.topic.num.partitions": "4"}
SESSION_TIMEOUT_MS = 6000 if EXTERNAL_BOOTSTRAP else 2000
WORDS = [b"one", b"two", b"three", b"four", b"five"]
ROUND = 200


@pytest.fixture(scope="module")
def word_count(jvm):
    """The command of the program."""
    return java_command("WordCount", classpath_of(PROGRAMS / "WordCount.java", jar("kafka-streams", "4.4.0")))


@pytest.fixture
def streams_broker(tmp_path):
    """(host:port, the broker process, or None if it is external)."""
    if EXTERNAL_BOOTSTRAP:
        yield EXTERNAL_BOOTSTRAP, None
        return
    with running_broker(tmp_path, SETTINGS) as broker:
        yield broker.bootstrap, broker


@runs_in_third(2)
def test_a_word_count_counts_every_word_once(word_count, streams_broker, tmp_path):
    bootstrap, broker = streams_broker
    source, target, application = unique("words"), unique("counts"), unique("word-count")
    create_topics(bootstrap, [source, target])
    arguments = [bootstrap, application, source, target, str(SESSION_TIMEOUT_MS)]
    program = Program([*word_count, *arguments, str(tmp_path / "state")], tmp_path / "program")
    client = ConfluentClient(bootstrap)
    producer = client.plain()
    chance = random.Random(1)
    counts: Counter[bytes] = Counter()

    def write(number):
        for _ in range(number):
            word = chance.choice(WORDS)
            counts[word] += 1
            producer.send(source, word, chance.randrange(PARTITIONS))
        producer.flush()

    def results(isolation):
        return [value for part in client.read(target, isolation, PARTITIONS) for value in part]

    def wait_for_counts(number, description, interval):
        read = 0

        def reached():
            nonlocal read
            read = len(results(COMMITTED))
            return read >= number

        eventually(reached, description, interval=interval, progress=lambda: read)

    program.start()
    try:
        write(ROUND)
        wait_for_counts(ROUND, "the first counts", 0.2)
        for kill_broker in (False, True, False):
            before = counts.total()
            write(ROUND)
            wait_for_counts(before + 1, "counts of the next round", 0.01)
            if kill_broker and broker is not None:
                broker.restart()
            else:
                program.kill()
                program.start()
            write(ROUND)
            wait_for_counts(counts.total(), "all counts", 0.2)
    finally:
        program.kill()
        client.close()
    client = ConfluentClient(bootstrap)
    try:
        values = results(COMMITTED)
        assert len(results(UNCOMMITTED)) >= len(values)
        for word in WORDS:
            counts_of_word = [value for value in values if value.split()[0] == word]
            assert counts_of_word == [b"%s %d" % (word, number) for number in range(1, counts[word] + 1)]
    finally:
        client.close()
