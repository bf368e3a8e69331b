# SPDX-License-Identifier: Apache-2.0
"""Ranks of an example, as torchrun starts them, forked of a Python that has read torch."""
import atexit
import os
import runpy
import signal
import socket
import sys
import time
import traceback

import safetensors.torch  # noqa: F401
import torch
import torch._dynamo  # noqa: F401  which the first optimizer reads, for two seconds

EXAMPLES = os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../examples")
torch.set_num_threads(1)
gangs = []


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Gang:
    """`out`: for each rank the file that has what it prints."""

    def __init__(self, world, example, *words, launched=True):
        gangs.append(self)
        self.name, self.pids, self.out, port = f"{len(gangs)}-{os.path.basename(example)}", [], [], free_port()
        for rank in range(world):
            self.out.append(f"{self.name}.{rank}.log")
            pid = os.fork()
            if pid == 0:
                self._rank(rank, world if launched else None, port, example, words)
            self.pids.append(pid)

    def _rank(self, rank, world, port, example, words):
        try:
            fd = os.open(self.out[rank], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(fd, 1), os.dup2(fd, 2)
            if world:
                os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1",
                                  MASTER_PORT=str(port))
            sys.argv = [os.path.join(EXAMPLES, example), *map(str, words)]
            runpy.run_path(sys.argv[0], run_name="__main__")
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)

    def printed(self, rank=0):
        if not os.path.exists(self.out[rank]):  # it has just been forked
            return []
        with open(self.out[rank]) as f:
            return f.read().rpartition("\n")[0].splitlines()  # without the line that is being printed

    def losses(self):
        """Step -> loss, as printed."""
        return dict(line.split(" ", 1) for line in self.printed() if line[:1].isdigit())

    def has_printed(self, text, rank=0):
        return any(text in line for line in self.printed(rank))

    def any_has_printed(self, text):
        return any(self.has_printed(text, rank) for rank in range(len(self.out)))

    def passed(self):
        """Waits for all; what rank 0 printed."""
        for rank, pid in enumerate(self.pids):
            _, status = os.waitpid(pid, 0)
            assert status == 0, (self.name, rank, status, self.printed(rank)[-12:])
        self.pids = []
        return self.printed()

    def killed(self, rank=0):
        """One rank is killed, and torchrun ends the others."""
        os.kill(self.pids[rank], signal.SIGKILL)
        for pid in self.pids:
            os.kill(pid, signal.SIGTERM)
        for pid in self.pids:
            os.waitpid(pid, 0)
        self.pids = []


@atexit.register
def end_all():
    for gang in gangs:
        for pid in gang.pids:
            os.kill(pid, signal.SIGKILL)


def until(what, holds, seconds=120):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.005)
