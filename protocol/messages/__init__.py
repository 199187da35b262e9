"""The messages of Kafka: one file per API, with its request and response, and the records of internal topics."""

from functools import cache
from importlib import import_module

from protocol.apis import ALL_APIS
from protocol.schema.message import Message


@cache
def message_classes(api_key: int) -> tuple[type[Message], type[Message]]:
    """Return the (request, response) classes of an API, whose module is imported at the first call."""
    api = ALL_APIS[api_key]
    module = import_module(f"protocol.messages.{api.module}")
    return getattr(module, f"{api.name}Request"), getattr(module, f"{api.name}Response")
