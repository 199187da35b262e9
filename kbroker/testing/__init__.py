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
    from kbroker.client.consumer import ConsumedRecord
    from kbroker.testing.broker import InProcessBroker as Broker
    from kbroker.testing.cluster import InProcessCluster as Cluster
    from kbroker.testing.faults import Fault, RecordedRequest

__all__ = ["Broker", "Cluster", "ConsumedRecord", "Fault", "RecordedRequest"]

_MODULES = {
    "Broker": ("kbroker.testing.broker", "InProcessBroker"),
    "Cluster": ("kbroker.testing.cluster", "InProcessCluster"),
    "ConsumedRecord": ("kbroker.client.consumer", "ConsumedRecord"),
    "Fault": ("kbroker.testing.faults", "Fault"),
    "RecordedRequest": ("kbroker.testing.faults", "RecordedRequest"),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, class_name = _MODULES[name]
    return getattr(import_module(module), class_name)
