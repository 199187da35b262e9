import importlib.util

from kbroker.replica.history import history_client

if importlib.util.find_spec("kbroker.archive.history") is None:
    history_client.MODULE = "tests.compat.archive.simple_history"
