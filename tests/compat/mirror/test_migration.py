"""docs/migration.md: an application moves from Kafka to kbroker and back, with the page's configuration and program."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.compat.mirror.application import GROUP, PARTITIONS, TOPIC, Application, Numbers, number_of
from tests.compat.mirror.contents import QUIET, configs, consumer, create_topic, read
from tests.compat.mirror.mirror_maker import PROMPT, PROMPT_WORKER, MirrorMaker, QuickKafka
from tests.compat.mirror.world import SERVER
from tests.compat.support import DEADLINE_S, eventually, running_broker
from tests.sampling import runs_in_third

PAGE = Path(__file__).parents[3] / "docs" / "migration.md"
CONFIGS = {"retention.ms": "864000000", "max.message.bytes": "500000"}


def block(language: str) -> str:
    """Return the only code block of the page in this language."""
    [found] = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


class Migration:
    def __init__(self, kafka: str, kbroker: str, directory: Path) -> None:
        self.kafka = kafka
        self.kbroker = kbroker
        self._directory = directory

    @contextmanager
    def mirror_maker(self, source: str, target: str) -> Iterator[MirrorMaker]:
        """A running MirrorMaker with the page's configuration in this direction, and with short intervals."""
        text = (
            block("properties").replace("kafka.example:9092", self.kafka).replace("kbroker.example:9092", self.kbroker)
        )
        text = text.replace("kafka->kbroker", f"{source}->{target}")
        prompt = {**PROMPT, **{f"{target}.{name}": value for name, value in PROMPT_WORKER.items()}}
        text += "".join(f"{name} = {value}\n" for name, value in prompt.items())
        mirror_maker = MirrorMaker(self._directory / f"{source}-to-{target}", text)
        mirror_maker.start()
        try:
            yield mirror_maker
        finally:
            mirror_maker.stop()

    def start_at_the_end(self) -> None:
        """Run the page's program: the way back begins with what is written from now on."""
        program = self._directory / "way_back.py"
        program.write_text(block("python"))
        subprocess.run([sys.executable, program, self.kbroker, self.kafka, TOPIC, "customers"], check=True, timeout=120)


@pytest.fixture
def migration(kafka: QuickKafka, tmp_path: Path) -> Iterator[Migration]:
    with running_broker(tmp_path, SERVER) as broker:
        yield Migration(kafka.bootstrap, broker.bootstrap, tmp_path)


def numbers(bootstrap: str) -> list[list[int]]:
    """Return the numbers of each partition, without repetitions: MirrorMaker may copy some again after a failure."""
    return [list(dict.fromkeys(map(number_of, partition))) for partition in read(bootstrap, TOPIC)]


def wait_for_copy(target: str, expected: Numbers) -> None:
    """Wait until the target has everything that was written."""
    eventually(lambda: list(map(len, numbers(target))) == expected.written, "a complete copy", interval=0.2)


def committed(bootstrap: str) -> dict[int, int]:
    """Return the offsets of the group by partition, without those of partitions that have none."""
    reader = consumer(bootstrap, GROUP)
    positions = reader.committed([TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)], DEADLINE_S)
    reader.close()
    return {position.partition: position.offset for position in positions if position.offset >= 0}


def wait_for_group(bootstrap: str, above: Mapping[int, int]) -> None:
    """Wait until the group has offsets of all partitions above these."""

    def is_there() -> bool:
        offsets = committed(bootstrap)
        return all(offsets.get(partition, -1) > offset for partition, offset in above.items())

    eventually(is_there, f"offsets of {GROUP} above {above}", interval=0.2)


def records_of(bootstrap: str, partition: int) -> list[str]:
    """Return the records as the page compares them, as JSON without their offsets, and without repetitions."""
    command = ["consume", TOPIC, "-p", str(partition), "--read-committed", "--json", "-b", bootstrap]
    output = subprocess.run([sys.executable, "-m", "kbroker", *command], check=True, capture_output=True, timeout=120)
    records = list(map(json.loads, output.stdout.splitlines()))
    for record in records:
        del record["offset"]
    return list(dict.fromkeys(map(json.dumps, records)))


def alter_configs(bootstrap: str, values: Mapping[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    entries = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in values.items()]
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)


@pytest.fixture
def application() -> Iterator[Application]:
    application = Application()
    yield application
    application.stop()


@runs_in_third(1)
@pytest.mark.feature("migration")
def test_an_application_moves_to_kbroker_and_back(migration: Migration, application: Application) -> None:
    kafka, kbroker = migration.kafka, migration.kbroker
    for topic in (TOPIC, "customers"):
        create_topic(kafka, topic, PARTITIONS, CONFIGS)
    application.write_to(kafka)
    with migration.mirror_maker("kafka", "kbroker") as there:
        application.read_from(kafka)
        wait_for_group(kbroker, dict.fromkeys(range(PARTITIONS), 0))
        application.stop_reading()
        application.read_from(kbroker)
        application.stop_writing()
        wait_for_copy(kbroker, application.numbers)
    assert configs(kbroker, TOPIC) == CONFIGS
    assert records_of(kbroker, 0) == records_of(kafka, 0)

    migration.start_at_the_end()
    alter_configs(
        kbroker, {"flush.before.ack": "true", "kbroker.dedup.window.ms": "60000", "retention.ms": "950400000"}
    )
    application.write_to(kbroker)
    before = committed(kafka)
    with migration.mirror_maker("kbroker", "kafka") as back:
        wait_for_group(kafka, before)
        expected = {**CONFIGS, "retention.ms": "950400000"}
        eventually(lambda: configs(kafka, TOPIC) == expected, "the configs that kbroker and Kafka have")
        application.stop_reading()
        application.read_from(kafka)
        application.stop_writing()
        wait_for_copy(kafka, application.numbers)
    written = [list(range(end)) for end in application.numbers.written]
    assert numbers(kbroker) == numbers(kafka) == written
    for partition in read(kafka, TOPIC):
        assert list(map(number_of, partition)).count(0) == 1, "what Kafka had before was copied back"

    application.write_to(kafka)
    eventually(lambda: application.numbers.written > list(map(len, written)), "more numbers")
    application.stop_writing()
    application.wait_until_processed()
    application.stop_reading()
    application.check_nothing_skipped()
    assert there.refusals() + back.refusals() == []
