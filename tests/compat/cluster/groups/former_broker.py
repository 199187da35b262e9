"""`kbroker` as in a version before group.version and share.version: it knows classic groups only, and checks no levels.

It ignores the records of other groups, so it would forget them if it became their coordinator.
"""

import sys

from kbroker.metadata import features
from protocol import apis

FIRST_NEW_API = apis.ApiKey.CONSUMER_GROUP_HEARTBEAT
NEW_APIS = {api.key for api in apis.APIS.values() if api.key >= FIRST_NEW_API and api.family}

features.SUPPORTED_FEATURES = {features.TRANSACTION_VERSION: features.SupportedVersionRange(0, 2, 2)}
features.OWN_FEATURES = features.FORMER_FEATURES
features.INITIAL_FEATURES = features.FORMER_FINALIZED
features.unsupported_levels = lambda features, supported: ""
for table in (apis.APIS, apis.ALL_APIS, apis.CLIENT_LISTENER_APIS, apis.BROKER_LISTENER_APIS):
    for key in NEW_APIS & table.keys():
        del table[key]

# Each of these reads the tables above when it is imported.
from kbroker.coordinator.group import kinds  # noqa: E402

kinds.GROUP_KINDS = kinds.GROUP_KINDS[:1]
kinds.RECORD_CODEC = kinds.GroupRecordCodec([kind.codec for kind in kinds.GROUP_KINDS])

from kbroker.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
