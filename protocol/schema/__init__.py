"""Kafka's messages: one declaration, two readers.

`protocol/messages/` declares every message once, as classes with one row per field (message.py):

    class HeartbeatRequest(Message, key=12, kind="request", versions="0-4", flexible="4+"):
        group_id: str = row("string", "0+")
        group_instance_id: str | None = row("string", "3+", nullable="3+", default=None)

A declaration is data. Two independent programs read it:

- **Generated functions** serve the broker. For one message in one version, encoder_source.py and decoder_source.py
  write the source of a flat function, and codec.py compiles it at the first use. An interpreter of the rows needs 25 ms
  for a Metadata response of 1,000 partitions, which would block the event loop; the generated function needs a tenth:
  nested structs are inlined, adjacent fields of fixed size are one `struct` call, and one-byte varints need no call.
- **A grammar of the library `construct`** (grammar.py) serves people and tests: it is slow and obvious.
  `kbroker tools frame` shows captured frames with it, and tests compare every generated function with it.

layout.py has the fields of a struct in one version, primitives.py the primitive types, function_source.py the source of
a function while it is written.
"""
