"""Records are committed as soon as the followers have them, never after the long poll of a waiting Fetch."""

import asyncio
from random import Random

import pytest

from tests.sampling import third_of
from tests.unit.support.replica_cluster import ReplicaCluster, replica_test

PARTITIONS = 4
ROUNDS = 60
# A request and its response take 0.4 ms in this cluster, and a waiting Fetch up to 500 ms.
PROMPT_S = 0.1


async def change_something(c: ReplicaCluster, random: Random) -> None:
    """Elect a leader or create a topic, while Fetch requests wait or are on their way; or change nothing."""
    match random.randrange(4):
        case 0:
            topic = random.choice(list(c.topics))
            c.elect(random.randint(1, 3), index=random.randrange(PARTITIONS), topic=topic)
        case 1:
            first = random.randrange(3)
            replicas = [(first + number) % 3 + 1 for number in range(3)]
            await c.create_topic(*replicas, name=f"topic-{len(c.topics)}", partitions=PARTITIONS)


@pytest.mark.parametrize("seed", third_of(range(6)))
def test_commits_do_not_wait_for_long_polls(seed: int) -> None:
    @replica_test
    async def run(c: ReplicaCluster) -> None:
        random = Random(seed)
        await c.start(1, 2, 3)
        await c.create_topic(1, 2, 3, name="topic-0", partitions=PARTITIONS)
        for _ in range(ROUNDS):
            produced = []
            for step in random.sample(("change", "produce", "produce", "produce"), 4):
                if step == "change":
                    await change_something(c, random)
                else:
                    topic, index = random.choice(list(c.topics)), random.randrange(PARTITIONS)
                    leader = c.topics[topic].partitions[index].leader
                    produced.append(c.produce(leader, b"v", index=index, topic=topic))
                await asyncio.sleep(random.choice((0, 0, 0.0001, 0.0002, 0.0003, 0.0005)))
            await c.until(lambda produced=produced: all(each.code is not None for each in produced), PROMPT_S)  # type: ignore[misc]
            # Sometimes all fetches wait before the next round.
            await asyncio.sleep(random.choice((0, 0.01, 0.6)))

    run()
