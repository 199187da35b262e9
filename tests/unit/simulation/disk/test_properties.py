"""Whatever is done to a simulated disk: what a crash leaves is a legal outcome, judged by a naive account of it all.

The account keeps every state that the names have had, and for each file every content that it has had.
"""

from collections.abc import Iterator
from copy import deepcopy
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.runtime.disk import DiskFile
from kbroker.simulation.disk.disk import SimDisk
from kbroker.simulation.disk.inode import SECTOR
from kbroker.simulation.runtime.clock import SimClock
from kbroker.simulation.runtime.loop import SimLoop

DIRECTORIES = ("/a", "/a/b")
FILES = ("/a/f", "/a/b/f", "/a/b/g")
SIZES = (1, 100, SECTOR, 3000, 4096, 9000)
LOSSES = 6
# Of how many bytes one is compared where all that was ever there is permitted.
STRIDE = 97


class Inode:
    """`sure`: how many bytes no power loss can take; `seen`: the contents before each truncation."""

    def __init__(self) -> None:
        self.data = b""
        self.synced = b""
        self.sure = 0
        self.seen: list[bytes] = []
        # A sync has failed: those after it prove nothing of the bytes that were there, until they are cut off.
        self.doubtful_to = 0
        self.doubtful_from = 0
        self.cut = False

    def write(self, data: bytes) -> None:
        self.data += data

    def truncate(self, size: int) -> None:
        if size > len(self.data):
            self.write(bytes(size - len(self.data)))
        self.seen.append(self.data)
        self.data = self.data[:size]
        self.cut = self.cut or size < self.sure
        self.sure = min(self.sure, size)
        self.doubtful_to = min(self.doubtful_to, size)

    def sync(self) -> None:
        self.synced = self.data
        doubtful = self.doubtful_from < self.doubtful_to
        self.sure = self.doubtful_from if doubtful else len(self.data)
        self.cut = False

    def fail_sync(self) -> None:
        if self.doubtful_from >= self.doubtful_to:
            self.doubtful_from = self.sure
        self.doubtful_to = len(self.data)

    def permits(self, left: bytes, killed: bool) -> bool:
        if killed:
            return left == self.data
        contents = [self.data, *self.seen]
        if left[: self.sure] != self.data[: self.sure] or len(left) > max(map(len, contents)):
            return False
        if self.cut and self.doubtful_to == 0 and left == self.synced:
            return True
        for place in range(self.sure, len(left), STRIDE):
            byte = left[place]
            if byte and all(place >= len(content) or content[place] != byte for content in contents):
                return False
        if self.cut or self.doubtful_to:
            return True
        # Nothing was overwritten: each sector has it all or nothing.
        for start in range(self.sure - self.sure % SECTOR, len(left), SECTOR):
            first, end = max(start, self.sure), min(start + SECTOR, len(left))
            if left[first:end] not in (self.data[first:end], bytes(end - first)):
                return False
        return True


class Account:
    """`states`: the names as they were after each change, with the directory of the change."""

    def __init__(self) -> None:
        self.inodes: list[Inode] = []
        self.states: list[dict[str, int]] = [{"/": -1, ".": -1}]
        self.changed_in: list[tuple[str, ...]] = [()]
        self.sure = 0

    @property
    def names(self) -> dict[str, int]:
        return self.states[-1]

    def inode(self, path: str) -> Inode:
        return self.inodes[self.names[path]]

    def change(self, names: dict[str, int], *paths: str) -> None:
        self.states.append(names)
        self.changed_in.append(tuple(path.rpartition("/")[0] or "/" for path in paths))

    def sync_dir(self, directory: str) -> None:
        for number in range(len(self.states) - 1, self.sure, -1):
            if directory in self.changed_in[number]:
                self.sure = number
                return

    def create(self, path: str) -> None:
        self.inodes.append(Inode())
        self.change({**self.names, path: len(self.inodes) - 1}, path)

    def rename(self, old: str, new: str) -> None:
        names = dict(self.names)
        names[new] = names.pop(old)
        self.change(names, old, new)

    def remove(self, path: str) -> None:
        self.change({name: inode for name, inode in self.names.items() if name != path}, path)

    def permits(self, disk: SimDisk, killed: bool) -> bool:
        found = {each: disk.read(each) for each in disk.find("")} | dict.fromkeys(walk(disk, "/"))
        states = self.states[-1:] if killed else self.states[self.sure :]
        return any(self._is(state, found, killed) for state in states)

    def _is(self, state: dict[str, int], found: dict[str, bytes | None], killed: bool) -> bool:
        if found.keys() != {name for name in state if name != "."}:
            return False
        for name, content in found.items():
            if (content is None) != (state[name] < 0):
                return False
            if content is not None and not self.inodes[state[name]].permits(content, killed):
                return False
        return True

    def adopt(self, disk: SimDisk) -> None:
        """The disk's state is the one from which it goes on."""
        names = dict.fromkeys(["/", ".", *walk(disk, "/")], -1)
        self.inodes = []
        for path in disk.find(""):
            inode = Inode()
            inode.write(disk.read(path))
            inode.sync()
            names[path] = len(self.inodes)
            self.inodes.append(inode)
        self.states, self.changed_in, self.sure = [names], [()], 0


def walk(disk: SimDisk, path: str) -> Iterator[str]:
    yield path
    for name in sorted(disk.listdir(path)):
        below = f"{path.rstrip('/')}/{name}"
        if disk.isdir(below):
            yield from walk(disk, below)


class Both:
    """A disk and its account, to which the same is done."""

    def __init__(self, seed: int) -> None:
        self.loop = SimLoop()
        self.disk = SimDisk(SimClock(self.loop), Random(seed))
        self.account = Account()
        self.files: dict[int, DiskFile] = {}
        self.counter = 0

    def step(self, what: str, path: str, other: str, size: int) -> None:
        names, account, disk = self.account.names, self.account, self.disk
        directory = path.rpartition("/")[0]
        if what == "mkdir":
            missing = [each for each in ("/a", directory) if each not in names and directory.startswith(each)]
            disk.makedirs(directory)
            for each in missing:
                account.change({**account.names, each: -1}, each)
        elif what == "sync_dir":
            if directory in names:
                disk.sync_dir(directory)
                account.sync_dir(directory)
        elif what == "rmtree":
            self._rmtree(directory)
        elif path not in names:
            if directory in names:
                disk.open(path, create=True)
                account.create(path)
        elif what == "rename":
            if other.rpartition("/")[0] in names and other != path:
                disk.rename(path, other)
                account.rename(path, other)
        elif what == "unlink":
            disk.unlink(path)
            account.remove(path)
        elif what == "replace":
            self._replace(path, size)
        else:
            self._content(what, path, size)

    def _rmtree(self, directory: str) -> None:
        before = len(self.disk._journal.pending)
        self.disk.rmtree(directory)
        for change in self.disk._journal.pending[before:]:
            assert change.path == directory or change.path.startswith(directory + "/")
            self.account.remove(change.path)
        assert not [name for name in self.account.names if name == directory or name.startswith(directory + "/")]

    def _replace(self, path: str, size: int) -> None:
        """Step by step what write_atomic is."""
        data, temporary = self.bytes(size), path + ".tmp"
        self.disk.write_atomic(path, data)
        self.account.create(temporary)
        self.account.inode(temporary).write(data)
        self.account.inode(temporary).sync()
        self.account.rename(temporary, path)
        self.account.sync_dir(path.rpartition("/")[0])

    def _content(self, what: str, path: str, size: int) -> None:
        file, inode = self.disk.open(path), self.account.inode(path)
        if what == "append":
            data = self.bytes(size)
            assert file.append(data) == size
            inode.write(data)
        elif what == "truncate":
            file.truncate(size)
            inode.truncate(size)
        elif what == "sync":
            file.fdatasync()
            inode.sync()
        else:
            self.disk.faults.fail_next("sync")
            try:
                file.fdatasync()
            except OSError:
                inode.fail_sync()

    def bytes(self, size: int) -> bytes:
        """Such as the other pieces nearby are not."""
        self.counter += 1
        return bytes([1 + self.counter % 250]) * size

    def check(self) -> None:
        account, disk = self.account, self.disk
        assert disk.used == sum(len(disk.data(path)) for path in disk.find(""))
        assert account.permits(disk.after_crash(keep_running=True), killed=True)
        assert disk.durable_paths() == sorted(
            set.intersection(*(set(state) for state in account.states[account.sure :]))
        )
        sure = {path: disk.durable(path) for path in disk.find("")}
        for path, content in sure.items():
            always = {state.get(path) for state in account.states[account.sure :]} == {account.names[path]}
            assert len(content) == (account.inode(path).sure if always else 0) or account.inode(path).doubtful_to
        for _ in range(LOSSES):
            left = disk.after_crash(True, keep_running=True)
            assert account.permits(left, killed=False)
            for path, content in sure.items():
                assert not content or left.read(path).startswith(content)
            # All that is left is durable.
            assert left.durable_paths() == sorted([".", *walk(left, "/"), *left.find("")])
            assert all(left.durable(path) == left.read(path) for path in left.find(""))

    def crash(self, power: bool) -> None:
        self.disk = self.disk.after_crash(power)
        if power:
            self.account.adopt(self.disk)


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
def test_what_a_crash_leaves_is_legal(lives, seed):
    both = Both(seed)
    for directory in DIRECTORIES:
        both.step("mkdir", f"{directory}/f", "", 0)
    for path in FILES:
        for what in ("create", "append", "sync", "append"):
            both.step(what, path, "", 5000)
    for steps, power in lives:
        for what, path, other, size in steps:
            both.step(what, path, other, size)
        both.check()
        both.crash(power)
    both.loop.close()


def test_the_account_can_say_no():
    """Each of these is a disk that lost what it must not, or has what never was."""
    both = Both(1)
    for what in ("mkdir", "create", "append", "sync", "sync_dir"):
        both.step(what, "/a/f", "", 3000)
    both.step("append", "/a/f", "", 3000)
    account = both.account
    good = both.disk.after_crash(True, keep_running=True)
    assert account.permits(good, killed=False)
    for damage in (
        lambda disk: disk.unlink("/a/f"),
        lambda disk: disk.open("/a/f").truncate(2999),
        lambda disk: disk.open("/a/f").append(bytes(6000)),
        lambda disk: disk.flip_bit("/a/f", 0),
        lambda disk: disk.open("/a/g", create=True),
        lambda disk: disk.rename("/a", "/d"),
    ):
        bad = both.disk.after_crash(True, keep_running=True)
        damage(bad)
        assert not account.permits(bad, killed=False)
    half = deepcopy(account)
    left = both.disk.after_crash(keep_running=True)
    left.data("/a/f")[3100:3200] = bytes(100)
    assert not half.permits(left, killed=False)
    assert not half.permits(left, killed=True)
