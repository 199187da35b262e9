"""UpdateFeatures: the finalized level of transaction.version."""

from tests.compat.support import eventually
from tests.compat.wire.story import Story, of_api

NAME = "transaction.version"
UPGRADE, SAFE, UNSAFE = 1, 2, 3  # upgrade types; version 0 has only whether a downgrade is allowed
Update = tuple[str, int, int]  # feature, level, upgrade type


@of_api("UpdateFeatures", "cluster")
def update_features(story: Story) -> None:
    try:
        changes(story)
    finally:
        row = {"feature": NAME, "max_version_level": 2, "upgrade_type": UPGRADE}
        story.call("UpdateFeatures", feature_updates=[row], timeout=10_000)


def changes(story: Story) -> None:
    def request(step: str, *updates: Update, level: int = 2, **more: object) -> None:
        """Send a request, and wait until ApiVersions has the level, which takes a moment in Kafka."""
        rows = [
            {"feature": name, "max_version_level": level, "upgrade_type": kind, "allow_downgrade": kind != UPGRADE}
            for name, level, kind in updates
        ]
        story.request(step, feature_updates=rows, timeout=10_000, **more)
        eventually(lambda: finalized(story) == level, f"level {level} after {step!r} in version {story.version}")

    request("nothing")
    request("the level that it has", (NAME, 2, UPGRADE))
    request("the level that it has, as a downgrade", (NAME, 2, SAFE))
    request("a level that does not exist", (NAME, 3, UPGRADE))
    request("a negative level", (NAME, -1, UPGRADE))
    request("an unknown feature", ("wire.unknown", 1, UPGRADE))
    request("no level of an unknown feature", ("wire.unknown", 0, SAFE))
    request("an empty name", ("", 1, UPGRADE))
    request("down as an upgrade", (NAME, 1, UPGRADE))
    request("down", (NAME, 1, SAFE), level=2 if story.version == 0 else 1)
    request("up", (NAME, 2, UPGRADE))
    request("down, and an unknown one", (NAME, 1, SAFE), ("wire.unknown", 1, UPGRADE))
    if story.version >= 1:
        request("no such upgrade type", (NAME, 1, 4))
        request("upgrade type 0", (NAME, 1, 0))
        request("down to 0", (NAME, 0, UNSAFE), level=0)
        request("up as a downgrade", (NAME, 1, SAFE), level=0)
        request("up to 1", (NAME, 1, UPGRADE), level=1)
        request("twice", (NAME, 2, UPGRADE), (NAME, 1, SAFE), level=1)
        request("up again", (NAME, 2, UPGRADE))
    if story.version >= 2:
        request("only validated", (NAME, 1, SAFE), validate_only=True)
        request("only validated, and refused", (NAME, 3, UPGRADE), validate_only=True)


def finalized(story: Story) -> int:
    """Return the finalized level in the ApiVersions response; 0 if the feature is missing."""
    response = story.call("ApiVersions", client_software_name="wire", client_software_version="1")
    levels = [row["max_version_level"] for row in response["finalized_features"] if row["name"] == NAME]
    return int(levels[0]) if levels else 0
