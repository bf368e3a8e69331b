# SPDX-License-Identifier: Apache-2.0
"""
Saves of examples/elastic.py that do not end: killed.py STORE MOUNT ROUNDS SEED

In each round some ranks train from the last commit on, and commit at least once.  Then one of them is killed when others have saved
and it has not, or when all have and the commit is under way, or the daemon is, with and without `hold`.  No commit that was told is
lost, and the losses of all rounds are those of one run without a restart, so that no rank has loaded of two steps.
"""
import os
import random
import re
import signal
import subprocess
import sys
import time

import scalai
from gang import Gang, until
from waits import stop

STORE, MOUNT, ROUNDS, SEED = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
KINDS = ("rank", "commit", "daemon", "mount")
job = scalai.Job(MOUNT, "killed")


class Daemon:
    def __init__(self, *options):
        with open("daemon.log", "ab") as log:
            self.process = subprocess.Popen([os.environ["SCALAI"], "mount", "-f", *options, STORE, MOUNT], stdout=log, stderr=log)
        until("the mount is live", self.pid)

    def pid(self):
        try:
            with open(f"{MOUNT}/.ctl/health") as f:
                return int(re.search(r"pid: (\d+)", f.read())[1])
        except OSError:
            assert self.process.poll() is None, "the daemon ended"
            return None

    def ended(self):
        subprocess.run([os.environ["SCALAI_FAST"], "umount", MOUNT], check=True)
        assert self.process.wait() == 0

    def killed(self):
        pid = self.pid()
        self.process.kill()  # who would start another one
        os.kill(pid, signal.SIGKILL)
        self.process.wait()
        subprocess.run(["umount", "-l", MOUNT], check=True)


def saved():
    """The ranks that have saved for the next commit."""
    return {int(line.split("/")[0]) for line in job.status().all("dirty") if line.endswith("/model.safetensors")}


def stopped(gang):
    """Stops a rank that has not saved when another one has."""
    while True:
        early = saved()
        late = set(range(len(gang.pids))) - early
        if early and late:
            rank = late.pop()
            stop(gang.pids[rank])
            if rank not in saved():
                return rank
            os.kill(gang.pids[rank], signal.SIGCONT)


def soon(holds):
    """Whether it holds within half a second: the ranks may be behind that point."""
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        if holds():
            return True
    return False


def die(kind, gang, world, daemon):
    """Returns the daemon of from now on."""
    if kind == "rank":
        gang.killed(stopped(gang))
    elif kind == "commit":
        soon(lambda: len(saved()) == world)
        gang.killed(0)
    elif kind == "daemon":
        soon(saved)
        os.kill(daemon.pid(), signal.SIGKILL)
        before = len(gang.losses())
        until("ranks go on, or end by EIO", lambda: len(gang.losses()) > before or gang.any_has_printed("Input/output error"))
        gang.killed()
    else:
        soon(saved)
        daemon.killed()
        until("rank 0 meets a dead mount", lambda: gang.has_printed("Error"))
        gang.killed()
        daemon = Daemon("-o", "hold")
    return daemon


def main():
    rng, daemon = random.Random(SEED), Daemon("-o", "hold")
    losses, mixed, times = {}, 0, []
    for n in range(ROUNDS):
        kind = KINDS[n % len(KINDS)]
        world = rng.choice((2, 4) if kind == "rank" else (1, 2, 4))
        gang = Gang(world, "elastic.py", MOUNT, "killed", 1000000)
        until("a commit", lambda: gang.has_printed("# committed"), 60)
        daemon = die(kind, gang, world, daemon)
        s, printed = job.status(), gang.printed()
        told = max(int(line.split()[2]) for line in printed if line.startswith("# committed"))
        assert s.step in (told, told + 5), (kind, s.step, told)
        mixed += 0 < len(saved()) < world
        times += [float(m[1]) for m in map(re.compile(r"# .* ranks begin .*: (\S+) ms").match, printed) if m]
        for step, loss in gang.losses().items():
            assert losses.setdefault(step, loss) == loss, (n, kind, step)
    done = job.status().step + 5
    Gang(1, "elastic.py", MOUNT, "killed", done).passed()
    whole = Gang(1, "elastic.py", MOUNT, "unbroken", done)
    whole.passed()
    expected = whole.losses()
    assert all(loss == expected.get(step, loss) for step, loss in losses.items()) and str(done - 5) in losses
    full = [open(f"{MOUNT}/{name}/.full/model.safetensors", "rb").read() for name in ("killed", "unbroken")]
    assert full[0] == full[1]
    assert mixed >= ROUNDS // len(KINDS), mixed
    print(f"{ROUNDS} kills, {mixed} of them between the saves of two ranks; {done} steps: no commit lost, no loss differs")
    print(f"restart: {sorted(times)[len(times) // 2]:.1f} ms")
    daemon.ended()


signal.alarm(3000)
main()
