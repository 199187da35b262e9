"""Views of a topic "orders", and batches with the headers from which their filters select."""

from kbroker.simulation.runtime.environment import EPOCH_MS
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.messages.k19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from protocol.records.batch import build_batch
from tests.unit.support.client import Client

Tagged = tuple[bytes, bytes | None, bytes | None]


def tagged(*records: Tagged, codec: int = 0) -> bytearray:
    """Build a batch of (value, TAGS, KEYS)."""
    encoded = []
    for value, tag, keys in records:
        headers = [(name, text) for name, text in ((b"TAGS", tag), (b"KEYS", keys)) if text is not None]
        encoded.append((EPOCH_MS, b"k", value, headers))
    return build_batch(encoded, codec=codec)


async def create(
    client: Client, name: str, configs: dict[str, str], partitions: int = -1, factor: int = -1
) -> tuple[int, str]:
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=1000)
    response = await client.request(request, 7, CreateTopicsResponse)
    return response.topics[0].error_code, response.topics[0].error_message or ""


async def create_view(client: Client, name: str = "paid", expression: str = "paid", source: str = "orders") -> None:
    configs = {"kbroker.view.of": source, "kbroker.view.filter": expression}
    assert await create(client, name, configs) == (0, "")


async def delete(client: Client, *names: str) -> dict[str, tuple[int, str]]:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names], timeout_ms=1000)
    response = await client.request(request, 6, DeleteTopicsResponse)
    return {result.name or "": (result.error_code, result.error_message or "") for result in response.responses}


async def describe(client: Client, name: str) -> MetadataResponse:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    return await client.request(request, 12, MetadataResponse)
