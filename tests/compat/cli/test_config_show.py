"""`kbroker config show` of a running broker."""

import pytest

from tests.compat.cli.conftest import Kbroker
from tests.compat.support import eventually

pytestmark = pytest.mark.feature("configs")

NAME = "log.cleaner.backoff.ms"


def test_altered_configs_of_a_running_broker_are_shown(
    kbroker: Kbroker, environment: dict[str, str], try_kbroker: Kbroker
) -> None:
    bootstrap = environment["KBROKER_BOOTSTRAP"]

    def show(*options: str) -> dict[str, tuple[str, str]]:
        listed = kbroker("config", "show", "--bootstrap", bootstrap, "--json", *options).json()
        return {config["name"]: (config["value"], config["source"]) for config in listed}

    node = show("--all")["node.id"][0]
    assert NAME not in show()
    kbroker("configs", "set", "broker", "--default", f"{NAME}=15001")
    try:
        eventually(lambda: show().get(NAME) == ("15001", "altered, all brokers"), "the config of all brokers")
        kbroker("configs", "set", "broker", node, f"{NAME}=15002")
        eventually(lambda: show().get(NAME) == ("15002", "altered, this broker"), "the broker's own config")
    finally:
        kbroker("configs", "unset", "broker", node, NAME)
        kbroker("configs", "unset", "broker", "--default", NAME)
    eventually(lambda: show("--all")[NAME] == ("15000", "default"), "the default")
    assert "no broker has node.id 77" in try_kbroker("config", "show", "-b", bootstrap, "--set", "node.id=77").err
