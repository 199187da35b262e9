"""The partitions of a toy coordinator follow elections: loading, waiting for the high watermark, unloading."""

import asyncio
from collections.abc import Iterator

import pytest

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.runtime.coordinator_context import CoordinatorContext, RuntimeConfig
from kbroker.coordinator.runtime.coordinator_runtime import MAX_LOAD_WAIT_S, RELOAD_DELAY_S, CoordinatorRuntime
from kbroker.coordinator.runtime.operation import CoordinatorResult
from kbroker.metadata.image import MetadataDelta, MetadataImage, PartitionChange, PartitionRegistration, TopicImage
from protocol.errors import ErrorCode
from protocol.records.batch import build_batch
from tests.unit.coordinator.runtime.test_coordinator_context import ToyShard, error_of
from tests.unit.support.internal_log import MemoryLog, VirtualLoop, virtual_environment

NODE, OTHER = 1, 2
TOPIC = "__toy"
TP = TopicPartition(TOPIC, 0)
CONFIG = RuntimeConfig(NODE, 1, max_batch_bytes=1 << 20, load_buffer_bytes=1 << 20)
LOADING, LOST = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR


class Story:
    """Broker 1 with a coordinator of one partition, whose log has one record."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.log = MemoryLog()
        self.append("a")
        self.image = MetadataImage()
        self.runtime: CoordinatorRuntime[ToyShard] = CoordinatorRuntime(
            virtual_environment(self.loop), self.log, self.image, TOPIC, lambda: CONFIG, lambda context: ToyShard()
        )
        self.partition: PartitionRegistration | None = None
        self.topic_id = b"1" * 16

    def append(self, *texts: str) -> None:
        """Append records of a former leader, which are committed unless the log is held."""
        self.log.append_internal(TP, build_batch([(0, text.encode(), b"v", ()) for text in texts]))
        if not self.log.held:
            self.log.high_watermarks[TP] = self.log.end_offset(TP)

    def change(self, new: PartitionRegistration | None) -> PartitionChange:
        old, self.partition = self.partition, new
        return PartitionChange(TP, self.topic_id, old, new)

    def elect(self, leader: int, epoch: int) -> None:
        """Apply an image in which the partition has this leader; nothing else runs before the caller continues."""
        change = self.change(PartitionRegistration(leader, epoch, [NODE, OTHER], [NODE, OTHER]))
        assert change.new is not None
        topic = TopicImage(TOPIC, self.topic_id, True, {}, [change.new])
        self.apply(MetadataDelta(created=[topic], partitions=[change]))

    def apply(self, delta: MetadataDelta) -> None:
        self.image.apply(delta)
        self.runtime.on_delta(delta)

    def state(self) -> list[str] | ErrorCode:
        """Return the records of which the coordinator knows, or the error of requests."""
        try:
            return self.runtime.context("key").shard.applied
        except KafkaError as error:
            return error.code

    def write(self, text: str) -> "asyncio.Future[None]":
        return self.context().schedule_write(lambda shard: CoordinatorResult(None, [text]))

    def context(self) -> CoordinatorContext[ToyShard]:
        return self.runtime.context("key")


@pytest.fixture
def story() -> Iterator[Story]:
    story = Story()
    yield story
    story.runtime.resign()
    story.loop.run_ready()
    story.loop.close()


def test_an_elected_leader_loads_its_partition(story: Story) -> None:
    story.elect(NODE, 0)
    assert story.state() is LOADING
    story.loop.run_ready()
    assert story.state() == ["a"]


def test_nothing_is_answered_before_the_high_watermark_has_reached_the_end_of_the_loaded_log(story: Story) -> None:
    story.log.held = True
    story.append("uncommitted")
    story.elect(NODE, 1)
    story.loop.pass_ms(60_000)
    assert story.state() is LOADING
    story.log.commit()
    story.loop.run_ready()
    assert story.state() == ["a", "uncommitted"]


def test_a_load_that_waits_for_the_high_watermark_ends_with_the_leadership(story: Story) -> None:
    story.log.held = True
    story.append("uncommitted")
    story.elect(NODE, 1)
    story.loop.run_ready()
    story.elect(OTHER, 2)
    assert story.state() is LOST
    story.loop.run_ready()
    # Not even if the records are committed after all.
    story.log.commit()
    story.loop.run_ready()
    assert story.state() is LOST
    assert asyncio.all_tasks(story.loop) == set()


def test_a_log_whose_end_is_lost_with_the_leadership_is_not_loaded(
    story: Story, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker may stop, or learn of the new leader later. It is not an error."""
    story.log.held = True
    story.append("uncommitted")
    story.elect(NODE, 1)
    story.loop.run_ready()
    story.log.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    story.loop.run_ready()
    assert story.state() is LOST
    assert caplog.records == []


def test_a_load_waits_until_the_replica_leads_in_its_epoch(story: Story) -> None:
    story.log.without_role.add(TP)
    story.elect(NODE, 0)
    story.loop.pass_ms(500)
    assert story.state() is LOADING
    story.log.without_role.clear()
    story.loop.pass_ms(1_000)
    assert story.state() == ["a"]


def test_a_load_whose_replica_never_leads_is_repeated_later(story: Story) -> None:
    story.log.without_role.add(TP)
    story.elect(NODE, 0)
    story.loop.pass_ms(6_000)
    assert story.state() is LOST
    story.log.without_role.clear()
    story.loop.pass_ms(int(RELOAD_DELAY_S * 1_000))
    assert story.state() == ["a"]


def test_a_load_without_a_role_ends_with_the_leadership(story: Story) -> None:
    story.log.without_role.add(TP)
    story.elect(NODE, 0)
    story.loop.run_ready()
    story.elect(OTHER, 1)
    story.loop.run_ready()
    assert asyncio.all_tasks(story.loop) == set()


def test_the_same_leader_loads_again_in_each_new_epoch(story: Story) -> None:
    """Between the images that this broker saw another broker may have led, and written."""
    story.elect(NODE, 0)
    story.loop.run_ready()
    story.append("of another leader")
    story.elect(NODE, 2)
    assert story.state() is LOADING
    story.loop.run_ready()
    assert story.state() == ["a", "of another leader"]
    assert story.context().epoch == 2


def test_an_image_with_the_same_epoch_changes_nothing(story: Story) -> None:
    story.elect(NODE, 0)
    # The elections of the broker's start are those of the image, some of which it has seen.
    story.runtime.start()
    story.loop.run_ready()
    assert (story.state(), len(story.log.read_sizes)) == (["a"], 2)
    context = story.context()
    story.elect(NODE, 0)
    assert story.context() is context


def test_a_new_epoch_fails_the_writes_in_flight(story: Story) -> None:
    story.elect(NODE, 0)
    story.loop.run_ready()
    story.log.held = True
    appended = story.write("b")
    story.loop.run_ready()
    queued = story.write("c")
    story.elect(NODE, 1)
    assert (error_of(appended), error_of(queued)) == (LOST, LOST)
    story.loop.run_ready()
    assert story.log.record_count() == 2, "a queued write of the former epoch is not appended"
    story.log.commit()
    story.loop.run_ready()
    assert story.state() == ["a", "b"]


def test_a_resigned_broker_unloads_everything_and_can_be_elected_again(story: Story) -> None:
    story.elect(NODE, 0)
    story.loop.run_ready()
    story.runtime.resign()
    assert story.state() is LOST
    story.elect(NODE, 0)
    story.loop.run_ready()
    assert story.state() == ["a"]


@pytest.mark.parametrize("deletion_first", [True, False])
def test_a_topic_that_was_deleted_and_created_again_is_loaded_again(story: Story, deletion_first: bool) -> None:
    story.elect(NODE, 3)
    story.loop.run_ready()
    deleted = story.change(None)
    created = story.change(PartitionRegistration(NODE, 0, [NODE], [NODE]))
    assert created.new is not None
    changes = [deleted, created] if deletion_first else [created, deleted]
    topic = TopicImage(TOPIC, b"2" * 16, True, {}, [created.new])
    story.apply(MetadataDelta(deleted=[story.image.topics[TOPIC]], created=[topic], partitions=changes))
    assert story.state() is LOADING
    story.loop.run_ready()
    assert story.context().epoch == 0


def test_waiting_for_a_load_is_bounded(story: Story) -> None:
    story.log.held = True
    story.append("uncommitted")
    story.elect(NODE, 0)
    start_ns = story.loop.elapsed_ns
    story.loop.run_until_complete(story.runtime.wait_until_loaded("key"))
    assert story.loop.elapsed_ns - start_ns == MAX_LOAD_WAIT_S * 1e9
    story.log.commit()
    story.loop.run_until_complete(story.runtime.wait_until_loaded("key"))
    assert story.state() == ["a", "uncommitted"]


def test_a_topic_keeps_the_hash_of_keys_with_which_it_was_created(story: Story) -> None:
    """Otherwise the records of a group would be in two partitions. "my-app" has a negative hash."""
    partitions = [PartitionRegistration(NODE, 0, [NODE], [NODE]) for _ in range(50)]
    story.image.topics[TOPIC] = TopicImage(TOPIC, b"1" * 16, True, {}, partitions)
    assert story.runtime.partition_for("my-app") == 1086277248 % 50
    story.image.topics[TOPIC] = TopicImage(TOPIC, b"1" * 16, True, {}, partitions, has_kafka_key_hash=True)
    assert story.runtime.partition_for("my-app") == 1061206400 % 50
