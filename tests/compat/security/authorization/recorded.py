"""The recorded responses of Apache Kafka, in a JSON file with one line per response:

{"users": [...],
 "responses": {"Heartbeat": {"4": {"in.g": [
    ["all", {...}],
    ["nothing; only *", {"error_code": "..."}],
    ...]}}}}

The first line of a step has what is the same for all users; `only *` means all users whose names begin like this and
that no other line has.
"""

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tests.compat.wire.recorded_responses import Steps

FILE = Path(__file__).with_name("kafka-4.4.0-authorization.json")
ALL = "all"
KINDS = ("only *", "without *")
SEPARATOR = "; "

# The fields that are the same for all users, and the others with the users that have them.
Line = tuple[str, dict[str, Any]]


class Recorded:
    """The responses by API, version and step."""

    def __init__(self, users: list[str], responses: dict[str, dict[str, dict[str, list[Line]]]]) -> None:
        self.users = users
        self.responses = responses

    def add(self, api: str, version: int, steps_by_user: dict[str, Steps]) -> None:
        steps = next(iter(steps_by_user.values()))
        lines = {step: _lines({user: own[step] for user, own in steps_by_user.items()}) for step in steps}
        self.responses.setdefault(api, {})[str(version)] = lines

    def steps(self, api: str, version: int, user: str) -> Steps:
        """Return the responses to a user."""
        steps = self.responses.get(api, {}).get(str(version), {})
        return {step: _response_to(user, lines) for step, lines in steps.items()}

    def save(self) -> None:
        apis = []
        for api, versions in sorted(self.responses.items()):
            version_texts = []
            for version, steps in versions.items():
                step_texts = [
                    f"   {json.dumps(step)}: [\n" + ",\n".join(f"    {json.dumps(line)}" for line in lines) + "]"
                    for step, lines in steps.items()
                ]
                version_texts.append(f'  "{version}": {{\n' + ",\n".join(step_texts) + "}")
            apis.append(f' "{api}": {{\n' + ",\n".join(version_texts) + "}")
        head = f'{{"users": {json.dumps(self.users)},\n"responses": {{\n'
        FILE.write_text(head + ",\n".join(apis) + "}}\n")

    @classmethod
    def load(cls) -> "Recorded":
        content = json.loads(FILE.read_text())
        return cls(content["users"], content["responses"])


def _lines(responses: dict[str, dict[str, Any]]) -> list[Line]:
    """Return the lines of the responses to one request, by user."""
    first = next(iter(responses.values()))
    same = {
        path: value
        for path, value in first.items()
        if all(path in other and other[path] == value for other in responses.values())
    }
    users_of: dict[str, list[str]] = {}
    for user, response in responses.items():
        rest = {path: value for path, value in response.items() if path not in same}
        users_of.setdefault(json.dumps(rest, sort_keys=True), []).append(user)
    for kind in KINDS:
        _abbreviate(users_of.values(), kind)
    return [(ALL, same), *((SEPARATOR.join(users), json.loads(text)) for text, users in users_of.items())]


def _abbreviate(groups: Collection[list[str]], kind: str) -> None:
    """Replace the users of a kind by its abbreviation in the group that has most of them."""
    group = max(groups, key=lambda users: sum(map(_is(kind), users)))
    if any(map(_is(kind), group)):
        group[:] = [*(user for user in group if not _is(kind)(user)), kind]


def _is(kind: str) -> Callable[[str], bool]:
    return lambda user: user.startswith(kind[:-1])


def _response_to(user: str, lines: list[Line]) -> dict[str, Any]:
    (_, same), *others = lines
    by_user = {name: response for names, response in others for name in names.split(SEPARATOR)}
    kind = next((kind for kind in KINDS if _is(kind)(user)), "")
    return same | by_user[user if user in by_user else kind]
