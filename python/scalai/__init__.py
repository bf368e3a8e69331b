# SPDX-License-Identifier: Apache-2.0
"""
A job of a Scalai mount, from a training script.

    job = scalai.Job("/mnt/scalai", "gpt")
    step = job.resume(f"dp={world}", rank, dist.barrier)        # on every rank: None, if nothing was committed yet
    ...
    job.commit_all(step, rank, dist.barrier)                    # every rank has saved into job.folder(rank)

What a control file refuses is an exception, Refused, with the sentence of `.ctl/error`; nothing has changed then.
scalai.tensors saves and loads what PyTorch holds.  `man scalai` says what each control file does.
"""
from __future__ import annotations

import dataclasses
import errno
import os
import select
import time
from typing import Callable, Iterator, List, Optional, Tuple, Union

__all__ = ["Job", "Refused", "Status", "Version"]


class Refused(OSError):
    """A command that a control file refused: `errno`, and `strerror`, the sentence that says why."""


@dataclasses.dataclass(frozen=True)
class Status:
    """`.ctl/status`.  `lines` has all of it; None is what a job without a version does not have."""
    version: Optional[int]
    step: Optional[int]
    topology: Optional[str]
    ranks: Optional[int]
    materialized: bool          # all files of the head are real files
    copies: Optional[str]       # of tensors that several ranks hold: pending, equal or DIFFER
    dirty: bool                 # something is uncommitted
    lines: Tuple[Tuple[str, str], ...]

    def all(self, key: str) -> List[str]:
        """The lines that begin with `key: `, such as dirty, older, damaged, replicas."""
        return [value for name, value in self.lines if name == key]


@dataclasses.dataclass(frozen=True)
class Version:
    """A line of `.ctl/versions`."""
    number: int
    head: bool
    step: Optional[int]
    topology: str
    bytes: int
    state: str
    made_by: str
    made: str
    tag: Optional[str]
    note: str


def _status(text: str) -> Status:
    lines = tuple((key, value) for key, colon, value in (line.partition(": ") for line in text.splitlines()) if colon)
    first = dict(reversed(lines))

    def number(key: str) -> Optional[int]:
        return int(first[key]) if first.get(key, "none") != "none" else None
    topology = first.get("topology", "not written yet")
    dirty = bool(number("dirty_files") or number("dirty_others") or "left out" in first)
    return Status(number("version"), number("step"), None if topology == "not written yet" else topology,
                  number("ranks"), first.get("state") == "materialized", first.get("copies"), dirty, lines)


def _axes(topology: str) -> Optional[List[str]]:
    """The axes that have more than one rank.  None: no topology."""
    words = topology.replace(",", " ").split()
    return [axis for axis in words if not axis.endswith("=1")] if words else None


def _nobody() -> None:
    """The barrier of one process."""


class Job:
    """The job `name` of the mount at `mount`.  It holds nothing open: any number of processes may have one."""

    def __init__(self, mount: Union[str, "os.PathLike[str]"], name: str) -> None:
        self.mount, self.name = os.fspath(mount), name
        self.path = os.path.join(self.mount, name)

    # --- control files ---

    def _open(self, control: str, flags: int) -> int:
        try:
            return os.open(os.path.join(self.path, ".ctl", control), flags | os.O_CLOEXEC)
        except FileNotFoundError as e:
            if os.path.isdir(os.path.join(self.path, ".ctl")):
                raise
            there = os.path.isdir(os.path.join(self.mount, ".ctl"))
            raise FileNotFoundError(errno.ENOENT, "no such job; create() makes it" if there else
                                    "no Scalai is mounted there; 'scalai mount STORE MOUNTPOINT' does that",
                                    self.path if there else self.mount) from e

    def read(self, control: str) -> str:
        """The text of a control file."""
        with open(self._open(control, os.O_RDONLY), encoding="utf-8", errors="surrogateescape") as f:
            return f.read()

    def write(self, control: str, text: str) -> None:
        """One command, which is decided when this returns."""
        data, fd = text.encode("utf-8", "surrogateescape"), self._open(control, os.O_WRONLY | os.O_TRUNC)
        try:
            try:
                while data:  # more than once of a long layout only
                    data = data[os.write(fd, data):]
            finally:
                os.close(fd)  # which judges a layout of several lines
        except OSError as e:
            raise Refused(e.errno, self._why() or f"{control}: {e.strerror}", self.path) from e

    def _why(self) -> str:
        """The sentence of the last refusal, which another process's may be that commands the job at the same time."""
        try:
            return self.read("error").strip()
        except OSError:
            return ""

    def status(self) -> Status:
        return _status(self.read("status"))

    def versions(self) -> List[Version]:
        """The versions that are kept, oldest first."""
        found = []
        for line in self.read("versions").splitlines()[1:]:
            number, step, topology, size, state, made_by, made, tag, note = line.split("\t", 8)
            found.append(Version(int(number.rstrip("*")), number.endswith("*"), None if step == "-" else int(step),
                                 topology.replace(",", " "), int(size), state, made_by, made,
                                 None if tag == "-" else tag, note))
        return found

    # --- commands: by one process of the job ---

    def create(self, layout: str, topology: str) -> None:
        """Makes the job, if it has no version yet: its layout, and its first topology."""
        os.makedirs(self.path, exist_ok=True)
        if self.status().version is None:
            self.write("layout", layout.rstrip("\n") + "\n")
            self.reshard(topology)

    def reshard(self, topology: str) -> None:
        """When this returns, all files of the topology's ranks can be read."""
        self.write("topology", topology + "\n")

    def commit(self, step: int, samples: Optional[int] = None, kept: bool = False, note: str = "") -> int:
        """What ranks have saved becomes a version: its number."""
        self.write("commit", f"step={step}" + (f" samples={samples}" if samples is not None else "") +
                   (" kept=yes" if kept else "") + (f" note={note}" if note else "") + "\n")
        return self.status().version or 0

    def discard(self) -> None:
        """Drops what was saved since the last version."""
        self.write("discard", "now\n")

    def rollback(self, version: Union[int, str]) -> None:
        """Makes a new head that equals a version, which is a number or a tag."""
        self.write("rollback", f"{version}\n")

    def tag(self, version: int, name: str) -> None:
        """The version is kept whatever `keep` says."""
        self.write("versions", f"tag {version} {name}\n")

    def untag(self, version: int) -> None:
        self.write("versions", f"untag {version}\n")

    def wait(self, version: Optional[int] = None) -> None:
        """Returns when a version (None: the head) has real files; raises what their writing failed with."""
        self.write("wait", "\n" if version is None else f"{version}\n")

    # --- together: on every rank ---

    def resume(self, topology: str, rank: int = 0, barrier: Callable[[], object] = _nobody,
               local_rank: Optional[int] = None) -> Optional[int]:
        """
        The start of a script, after a crash and with another number of ranks, too: what nobody has committed is
        dropped, and the job has this topology.  Returns the step of the version that ranks load now; None: there is
        none yet.  Where ranks are on several nodes of a cluster, `local_rank` is 0 on one rank of each node.
        """
        if (rank if local_rank is None else local_rank) == 0 and self.status().dirty:
            self.discard()
        barrier()
        if rank == 0 and _axes(self.status().topology or "") != _axes(topology):
            self.reshard(topology)
        barrier()
        # the topology makes it, but another node of a cluster may hear of that a moment later
        os.makedirs(self.folder(rank), exist_ok=True)
        return self.status().step

    def commit_all(self, step: int, rank: int = 0, barrier: Callable[[], object] = _nobody, note: str = "") -> None:
        """Commits when all ranks have saved; no rank goes on, and writes again, before that is done."""
        barrier()
        if rank == 0:
            self.commit(step, note=note)
        barrier()

    # --- files ---

    def folder(self, rank: int, topology: Optional[str] = None, version: Optional[Union[int, str]] = None) -> str:
        """The folder of a rank: of the head, where it saves; of another topology, or of a version, to be read."""
        return os.path.join(self.path, *([] if version is None else [".v", str(version)]),
                            *([] if topology is None else [".as", topology]), str(rank))

    def follow(self, after: Optional[int] = None, timeout: Optional[float] = None) -> Iterator[int]:
        """
        The head's number, if it is not `after`, then that of each new head; of several that come at once the last.
        Ends when none comes for `timeout` seconds.  Read it below `folder(version=...)`: the head may be the next one
        meanwhile.
        """
        with open(self._open("status", os.O_RDONLY), "rb", buffering=0) as f:
            news, end = select.poll(), time.monotonic() + (timeout or 0)
            news.register(f, select.POLLIN)
            while True:
                f.seek(0)
                version = _status(f.read().decode("utf-8", "surrogateescape")).version
                if version is not None and version != after:
                    after = version
                    yield version
                    end = time.monotonic() + (timeout or 0)
                elif timeout is not None and time.monotonic() >= end:
                    return
                else:  # a second at most: a daemon that was replaced does not tell
                    news.poll(1000 if timeout is None else min(1000, max(1, int((end - time.monotonic()) * 1000))))
