"""A broker inside a test: in the process of the test, with faults, a clock that moves, and a disk that fills.

    from kbroker.testing import Broker

    with Broker() as kafka:
        topic = kafka.topic(partitions=3)
        run_my_program(kafka.bootstrap)
        assert kafka.consume(topic, n=1)[0].value == b"v"

Nothing is imported before it is used: pytest loads the plugin (pytest_plugin.py) in every project.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbroker.testing.broker import Broker
    from kbroker.testing.cluster import Cluster
    from kbroker.testing.faults import Fault, RecordedRequest
    from kbroker.testing.records import ConsumedRecord

__all__ = ["Broker", "Cluster", "ConsumedRecord", "Fault", "RecordedRequest"]

_MODULES = {
    "Broker": "broker",
    "Cluster": "cluster",
    "ConsumedRecord": "records",
    "Fault": "faults",
    "RecordedRequest": "faults",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"kbroker.testing.{_MODULES[name]}"), name)
