"""After any operations, a crash leaves a state that a naive model of the disk permits.

The model keeps every state of the directory tree, and for each file every content that it has had.
"""

from collections.abc import Iterator
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.simulation.disk.disk import SimDisk
from kbroker.simulation.disk.file import SECTOR
from kbroker.simulation.runtime.environment import SimClock
from kbroker.simulation.runtime.loop import SimLoop

DIRECTORIES = ("/a", "/a/b")
FILES = ("/a/f", "/a/b/f", "/a/b/g")
SIZES = (1, 100, SECTOR, 3000, 4096, 9000)
LOSSES = 6
# Where any former content is permitted, one byte in this many is compared.
STRIDE = 97


class ModelInode:
    """`durable`: the number of bytes that survive any power loss; `former`: the contents before each truncation."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = self.synced = data
        self.durable = len(data)
        self.former: list[bytes] = []
        # A sync has failed: later syncs prove nothing about these bytes until they are truncated.
        self.doubtful_from = self.doubtful_to = 0
        self.truncated = False

    def append(self, data: bytes) -> None:
        self.data += data

    def truncate(self, size: int) -> None:
        if size > len(self.data):
            self.append(bytes(size - len(self.data)))
        self.former.append(self.data)
        self.data = self.data[:size]
        self.truncated = self.truncated or size < self.durable
        self.durable = min(self.durable, size)
        self.doubtful_to = min(self.doubtful_to, size)

    def sync(self) -> None:
        self.synced = self.data
        self.durable = self.doubtful_from if self.doubtful_from < self.doubtful_to else len(self.data)
        self.truncated = False

    def fail_sync(self) -> None:
        if self.doubtful_from >= self.doubtful_to:
            self.doubtful_from = self.durable
        self.doubtful_to = len(self.data)

    def permits(self, left: bytes, killed: bool) -> bool:
        if killed:
            return left == self.data
        contents = [self.data, *self.former]
        if left[: self.durable] != self.data[: self.durable] or len(left) > max(map(len, contents)):
            return False
        if self.truncated and self.doubtful_to == 0 and left == self.synced:
            return True
        for at in range(self.durable, len(left), STRIDE):
            if left[at] and all(at >= len(content) or content[at] != left[at] for content in contents):
                return False
        return self.truncated or self.doubtful_to > 0 or self._has_whole_sectors(left)

    def _has_whole_sectors(self, left: bytes) -> bool:
        """Nothing was overwritten: each sector was written completely or not at all."""
        for start in range(self.durable - self.durable % SECTOR, len(left), SECTOR):
            first, end = max(start, self.durable), min(start + SECTOR, len(left))
            if left[first:end] not in (self.data[first:end], bytes(end - first)):
                return False
        return True


class Model:
    """`states`: the tree after each change (-1: a directory); `changed_in`: the directories of each change."""

    def __init__(self) -> None:
        self.inodes: list[ModelInode] = []
        self.states: list[dict[str, int]] = [{"/": -1, ".": -1}]
        self.changed_in: list[tuple[str, ...]] = [()]
        # The state that is certainly on the disk.
        self.durable = 0

    @property
    def names(self) -> dict[str, int]:
        return self.states[-1]

    def inode(self, path: str) -> ModelInode:
        return self.inodes[self.names[path]]

    def change(self, names: dict[str, int], *paths: str) -> None:
        self.states.append(names)
        self.changed_in.append(tuple(path.rpartition("/")[0] or "/" for path in paths))

    def sync_dir(self, directory: str) -> None:
        changes = range(self.durable + 1, len(self.states))
        self.durable = max([self.durable, *(number for number in changes if directory in self.changed_in[number])])

    def create(self, path: str) -> None:
        self.inodes.append(ModelInode())
        self.change({**self.names, path: len(self.inodes) - 1}, path)

    def rename(self, old: str, new: str) -> None:
        names = dict(self.names)
        names[new] = names.pop(old)
        self.change(names, old, new)

    def remove(self, path: str) -> None:
        self.change({name: inode for name, inode in self.names.items() if name != path}, path)

    def permits(self, disk: SimDisk, killed: bool) -> bool:
        tree = {path: disk.read(path) for path in disk.find("")} | dict.fromkeys(walk(disk, "/"))
        states = self.states[-1:] if killed else self.states[self.durable :]
        return any(self._matches(state, tree, killed) for state in states)

    def _matches(self, state: dict[str, int], tree: dict[str, bytes | None], killed: bool) -> bool:
        if tree.keys() != {name for name in state if name != "."}:
            return False
        return all(
            (content is None) == (state[name] < 0)
            and (content is None or self.inodes[state[name]].permits(content, killed))
            for name, content in tree.items()
        )

    def restart_from(self, disk: SimDisk) -> None:
        """Continue from the state of this disk."""
        files = disk.find("")
        self.inodes = [ModelInode(disk.read(path)) for path in files]
        names = dict.fromkeys(["/", ".", *walk(disk, "/")], -1) | {path: n for n, path in enumerate(files)}
        self.states, self.changed_in, self.durable = [names], [()], 0


def walk(disk: SimDisk, path: str) -> Iterator[str]:
    yield path
    for name in sorted(disk.listdir(path)):
        below = f"{path.rstrip('/')}/{name}"
        if disk.isdir(below):
            yield from walk(disk, below)


class DiskAndModel:
    """A disk and its model; every operation is applied to pair."""

    def __init__(self, seed: int) -> None:
        self.loop = SimLoop()
        self.disk = SimDisk(SimClock(self.loop), Random(seed))
        self.model = Model()
        self.counter = 0

    def apply(self, operation: str, path: str, other: str, size: int) -> None:
        names, model, disk = self.model.names, self.model, self.disk
        directory = path.rpartition("/")[0]
        if operation == "mkdir":
            missing = [each for each in ("/a", directory) if each not in names and directory.startswith(each)]
            disk.makedirs(directory)
            for each in missing:
                model.change({**model.names, each: -1}, each)
        elif operation == "sync_dir":
            if directory in names:
                disk.sync_dir(directory)
                model.sync_dir(directory)
        elif operation == "rmtree":
            self._rmtree(directory)
        elif path not in names:
            if directory in names:
                disk.open(path, create=True)
                model.create(path)
        elif operation == "rename":
            if other.rpartition("/")[0] in names and other != path:
                disk.rename(path, other)
                model.rename(path, other)
        elif operation == "unlink":
            disk.unlink(path)
            model.remove(path)
        elif operation == "replace":
            self._replace(path, size)
        else:
            self._change_content(operation, path, size)

    def _rmtree(self, directory: str) -> None:
        before = len(self.disk._journal.pending)
        self.disk.rmtree(directory)
        for change in self.disk._journal.pending[before:]:
            assert change.path == directory or change.path.startswith(directory + "/")
            self.model.remove(change.path)
        assert not [name for name in self.model.names if name == directory or name.startswith(directory + "/")]

    def _replace(self, path: str, size: int) -> None:
        """Apply the steps of write_atomic to the model."""
        data, temporary = self.bytes(size), path + ".tmp"
        self.disk.write_atomic(path, data)
        self.model.create(temporary)
        self.model.inode(temporary).append(data)
        self.model.inode(temporary).sync()
        self.model.rename(temporary, path)
        self.model.sync_dir(path.rpartition("/")[0])

    def _change_content(self, operation: str, path: str, size: int) -> None:
        file, inode = self.disk.open(path), self.model.inode(path)
        if operation == "append":
            data = self.bytes(size)
            assert file.append(data) == size
            inode.append(data)
        elif operation == "truncate":
            file.truncate(size)
            inode.truncate(size)
        elif operation == "sync":
            file.fdatasync()
            inode.sync()
        else:
            self.disk.faults.fail_next("sync")
            try:
                file.fdatasync()
            except OSError:
                inode.fail_sync()

    def bytes(self, size: int) -> bytes:
        """Return bytes that differ from those of other appends nearby."""
        self.counter += 1
        return bytes([1 + self.counter % 250]) * size

    def check(self) -> None:
        model, disk = self.model, self.disk
        assert disk.used == sum(len(disk.data(path)) for path in disk.find(""))
        assert model.permits(disk.after_crash(keep_running=True), killed=True)
        assert disk.durable_paths() == sorted(
            set.intersection(*(set(state) for state in model.states[model.durable :]))
        )
        durable = {path: disk.durable(path) for path in disk.find("")}
        for path, content in durable.items():
            always = {state.get(path) for state in model.states[model.durable :]} == {model.names[path]}
            assert len(content) == (model.inode(path).durable if always else 0) or model.inode(path).doubtful_to
        for _ in range(LOSSES):
            left = disk.after_crash(True, keep_running=True)
            assert model.permits(left, killed=False)
            for path, content in durable.items():
                assert not content or left.read(path).startswith(content)
            # What survives is durable.
            assert left.durable_paths() == sorted([".", *walk(left, "/"), *left.find("")])
            assert all(left.durable(path) == left.read(path) for path in left.find(""))

    def crash(self, power: bool) -> None:
        self.disk = self.disk.after_crash(power)
        if power:
            self.model.restart_from(self.disk)


OPERATIONS = [
    *("append", "append", "append", "truncate", "truncate", "sync", "sync", "fail"),
    *("mkdir", "create", "rename", "unlink", "replace", "sync_dir", "sync_dir", "rmtree"),
]
STEPS = st.lists(
    st.tuples(st.sampled_from(OPERATIONS), st.sampled_from(FILES), st.sampled_from(FILES), st.sampled_from(SIZES)),
    min_size=8,
    max_size=30,
)


@settings(max_examples=250)
@given(st.lists(st.tuples(STEPS, st.booleans()), min_size=1, max_size=3), st.integers(0, 1000))
def test_a_crash_leaves_a_permitted_state(lives, seed):
    pair = DiskAndModel(seed)
    for directory in DIRECTORIES:
        pair.apply("mkdir", f"{directory}/f", "", 0)
    for path in FILES:
        for operation in ("create", "append", "sync", "append"):
            pair.apply(operation, path, "", 5000)
    for steps, power in lives:
        for operation, path, other, size in steps:
            pair.apply(operation, path, other, size)
        pair.check()
        pair.crash(power)
    pair.loop.close()


def test_the_model_rejects_other_states():
    """Each of these disks has lost what a crash cannot take, or has what was never written."""
    pair = DiskAndModel(1)
    for operation in ("mkdir", "create", "append", "sync", "sync_dir", "append"):
        pair.apply(operation, "/a/f", "", 3000)
    model = pair.model
    assert model.permits(pair.disk.after_crash(True, keep_running=True), killed=False)
    for damage in (
        lambda disk: disk.unlink("/a/f"),
        lambda disk: disk.open("/a/f").truncate(2999),
        lambda disk: disk.open("/a/f").append(bytes(6000)),
        lambda disk: disk.flip_bit("/a/f", 0),
        lambda disk: disk.open("/a/g", create=True),
        lambda disk: disk.rename("/a", "/d"),
    ):
        bad = pair.disk.after_crash(True, keep_running=True)
        damage(bad)
        assert not model.permits(bad, killed=False)
    left = pair.disk.after_crash(keep_running=True)
    left.data("/a/f")[3100:3200] = bytes(100)
    assert not model.permits(left, killed=False)
    assert not model.permits(left, killed=True)
