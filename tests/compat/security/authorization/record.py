"""Records the responses of a real Apache Kafka to the users of the matrix:

    python -m tests.compat.security.authorization.record --settings    # prints the broker configs
    python -m tests.compat.security.authorization.record HOST:PORT [API ...]

The broker must be new, with one node, these configs, and a listener SASL_PLAINTEXT at HOST:PORT. With APIs as
arguments, the responses of all other APIs stay as they are.
"""

import sys

from tests.compat.security.authorization.case import load_rows, matrix_users, new_world, steps_of, versions_of
from tests.compat.security.authorization.recorded import Recorded
from tests.compat.security.authorization.users import settings


def main(bootstrap: str, *apis: str) -> None:
    users = matrix_users()
    recorded = Recorded(users, Recorded.load().responses if apis else {})
    with new_world(bootstrap) as world:
        for api in apis or load_rows():
            recorded.responses.pop(api, None)
            versions = versions_of(world, api)
            for version in versions:
                row_users = load_rows()[api].users(version == versions[-1])
                recorded.add(api, version, {user: steps_of(world, api, version, user) for user in row_users})
            print(api, versions, flush=True)
            recorded.save()


if __name__ == "__main__":
    if sys.argv[1:] == ["--settings"]:
        print("".join(f"{name}={value}\n" for name, value in settings(matrix_users()).items()))
    else:
        main(*sys.argv[1:])
