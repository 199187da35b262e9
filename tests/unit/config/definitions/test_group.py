"""The configs of a kind of group take effect, since its APIs are served."""

from kbroker.config.definitions.group import KINDS
from kbroker.metadata.features import SUPPORTED_FEATURES
from protocol.apis import APIS, ApiKey

FEATURES = {"consumer": "group.version", "share": "share.version", "streams": "streams.version"}


def test_apis_and_features_of_a_kind_agree() -> None:
    for kind in KINDS:
        is_served = ApiKey[f"{kind.upper()}_GROUP_HEARTBEAT"] in APIS
        assert is_served == (SUPPORTED_FEATURES[FEATURES[kind]].highest > 0), kind
