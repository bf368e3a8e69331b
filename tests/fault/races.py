#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writers and readers that meet commits and topology writes, on mounts of their own.

    races.py SCALAI FOLDER [--steps N | --seconds S] [--cases N | --commits N] [--load] [--seed SEED] [--only REGEX] [--hours H] [--list]

A case is KIND/LOAD/MODE: a kind of program, how starved of CPU it is, and how Scalai is mounted.  Each case mounts an
empty store in FOLDER, runs for N steps or S seconds, unmounts and checks:

  - a version has, twenty commits later and at the end, the bytes, folders, links and modes that it had when its commit
    returned;
  - no program sees an error (a commit is EBUSY while files are open, and refused while nothing was written);
  - one open committed file has one size and one content;
  - the daemon lives, but where the case kills it; `scalai fsck` finds the store clean.

Steps are commits, topologies and what goes with them, drawn by SEED: with --steps a slower machine does the same ones.  The programs
beside them do what they come to.

Without --cases all cases run; with it, each kind once and so many of the others, drawn by SEED.  Writers of four ranks
rewrite one file each while one process commits in a loop; readers read while one process changes the topology.

--commits N: cases of all modes in turn, until each mode has its share of N commits.  --load: other programs take both
cores, memory and the disk meanwhile.  A table says at the end what each mode did, and what went wrong in it.
"""
import argparse
import collections
import contextlib
import errno
import hashlib
import itertools
import multiprocessing as mp
import os
import queue
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import time

from power import mounts_of_our_own
from racers import READERS, WRITERS, foreign, hog, open_wb, read, whole, write

RANKS = 4
KILL_STEPS = 30  # between two kills, at most, where steps are counted
LATER = 20  # commits; `keep` is twice that at least
FAILED_MAX = 20  # cases of a mode, before it is given up
BAD = ("changed", "deaths", "ESTALE", "EXDEV", "ENOENT", "other", "fsck", "hangs")


def put(path, text):
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def get(path):
    with open(path, "rb") as f:
        return f.read().decode()


def pid_of(mount):
    return int(re.search(r"^pid: (\d+)", get(mount + "/.ctl/health"), re.M)[1])


class Case:
    def __init__(self, scalai, folder, name, seed):
        self.name, self.scalai = name, scalai
        self.kind, self.load, self.mode = name.split("/")
        self.folder, self.mount, self.store = folder, folder + "/mnt", folder + "/store"
        self.rng = random.Random(f"{seed} {name}")
        self.kills = "kill" in self.mode
        self.problems, self.counts, self.killed = [], collections.Counter(), 0

    def bad(self, what, sentence):
        self.problems.append(sentence)
        self.counts[what if what in BAD else "other"] += 1

    def up(self):
        options = [o for o in re.sub("-?kill", "", self.mode).split("-") if o not in ("plain", "sync", "scrub", "pidns")]
        if "scrub" in self.mode:
            options.append("scrub=1s")
        self.log = open(self.folder + "/log", "w")
        words = [self.scalai, "mount", "-f", *(["-o", ",".join(options)] if options else []), self.store, self.mount]
        if "pidns" in self.mode:  # clients have no thread's number there
            words = ["unshare", "--pid", "--fork", *words]
        self.daemon = subprocess.Popen(words, stderr=self.log, stdout=self.log)
        for _ in range(400):
            if self.daemon.poll() is not None:
                raise ValueError(f"no mount: {get(self.log.name)}")
            if os.path.exists(self.mount + "/.ctl/health"):
                return
            time.sleep(0.05)

    def down(self):
        for _ in range(100):  # a ring lets go of its files some time after its end
            if subprocess.run([self.scalai, "umount", self.mount], check=False, capture_output=True).returncode == 0:
                break
            time.sleep(0.05)
        try:
            status = self.daemon.wait(30)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            subprocess.run(["umount", "-l", self.mount], check=False)
            status = "it does not end"
        if status != 0:
            self.bad("deaths", f"the daemon's status: {status}")
        died = [int(n) for n in re.findall(r"the daemon was killed by signal (\d+)", get(self.log.name))]
        if len(died) != self.killed or set(died) - {signal.SIGKILL}:
            self.bad("deaths", f"daemons ended by signals {died}, of which {self.killed} were killed here")
        fsck = subprocess.run([self.scalai, "fsck", self.store], check=False, capture_output=True, text=True)
        if fsck.returncode:
            self.bad("fsck", f"fsck: {fsck.stdout[-600:]}")

    def command(self, name, text):
        """True: done.  False: refused for a reason that may be."""
        try:
            put(f"{self.job}/.ctl/{name}", text)
            return True
        except OSError as e:
            if e.errno in (errno.EBUSY, errno.EINVAL) or (self.kills and e.errno == errno.EIO):
                self.counts["refused"] += 1
                return False
            self.bad(errno.errorcode[e.errno], f"{name}: {e}: {get(self.job + '/.ctl/error')}")
            return False

    def version(self, nr):
        h = hashlib.sha256()
        for rank in range(RANKS):
            for folder, folders, files in os.walk(f"{self.job}/.v/{nr}/{rank}"):
                folders.sort()
                for path in sorted(f"{folder}/{name}" for name in folders + files):
                    st = os.lstat(path)
                    h.update(f"{os.path.relpath(path, self.job)} {st.st_mode} {st.st_nlink}".encode())
                    if stat.S_ISLNK(st.st_mode):
                        h.update(os.readlink(path).encode())
                    elif stat.S_ISREG(st.st_mode):
                        with open(path, "rb") as f:
                            h.update(f.read())
        return h.hexdigest()

    def commit(self):
        if not self.command("commit", "note=x"):
            time.sleep(0.001)
            return
        nr = int(re.search(r"^version: (\d+)", get(f"{self.job}/.ctl/status"), re.M)[1])
        self.sealed[nr] = self.version(nr)
        self.counts["commits"] += 1
        if len(self.sealed) > LATER:
            self.compare(list(self.sealed)[-LATER - 1])

    def compare(self, nr):
        self.counts["compared"] += 1
        if self.version(nr) != self.sealed[nr]:
            self.bad("changed", f"version {nr} has changed")

    def recheck(self):
        left = {int(w) for w in os.listdir(self.job + "/.v")}
        for nr in left & set(self.sealed):
            self.compare(nr)

    def setup(self):
        self.job, self.sealed = self.mount + "/job", {}  # by number, in order
        os.mkdir(self.job)
        readers = self.kind in READERS
        put(self.job + "/.ctl/layout", "mesh tp dp\nrows tp=0\ncolumns tp=1\nboth copy\n" if readers else "use replicated")
        put(self.job + "/.ctl/topology", "tp=2" if readers else f"dp={RANKS}")
        put(self.job + "/.ctl/config", f"plain=drop\nkeep={4 if readers else 60}\nsync={'on' if 'sync' in self.mode else 'off'}")
        for rank in range(2 if readers else RANKS):
            if readers:
                from safetensors.numpy import save_file
                save_file(whole(2, rank), f"{self.job}/{rank}/model.safetensors", metadata={"by": "races"})
            else:
                open_wb(f"{self.job}/{rank}/w{rank}", 0)
        self.commit() if not readers else put(self.job + "/.ctl/commit", "step=1")

    def step(self):
        if self.kind in READERS:
            text = f"tp={self.rng.choice((1, 2, 4))} dp={self.rng.choice((1, 2))}"
            if self.command("topology", text):
                self.counts["topologies"] += 1
                if self.rng.random() < 0.2:
                    self.command("wait", "\n")
            if self.rng.random() < 0.05:
                self.command("rollback", str(self.rng.choice(os.listdir(self.job + "/.v"))))
            return
        self.commit()
        if self.rng.random() < 0.02:
            self.command("verify", "head")
        if self.rng.random() < 0.02:
            self.command("config", f"keep={self.rng.choice((40, 60))}")

    def gather(self, programs, errors):
        """What the programs saw, while they end."""
        end = time.monotonic() + 20
        while any(p.is_alive() for p in programs) or not errors.empty():
            try:
                said = errors.get(timeout=0.05)
            except queue.Empty:
                if time.monotonic() < end:
                    continue
                for p in programs:
                    if p.is_alive():
                        self.bad("hangs", "a program hangs")
                        p.kill()
                        p.join()
                break
            if said == "EIO of a killed daemon":
                self.counts["cut"] += 1
            else:
                self.bad(said.partition(":")[0], said)
        for p in programs:
            if self.kills and self.kind in ("mmap", "load_file") and p.exitcode == -signal.SIGBUS:
                self.counts["cut"] += 1  # how a mapping says EIO
            elif p.exitcode not in (0, -signal.SIGKILL):
                self.bad("other", f"a program's status: {p.exitcode}")

    def steps(self, nr, seconds, did):
        """So many steps, and on until the programs have done something; or for so long."""
        now = time.monotonic
        began, done = now(), 0
        kill_at = 0
        while not self.problems:
            if nr and done >= nr and (did.value or now() > began + 60):
                break
            if not nr and now() > began + seconds:
                break
            self.step()
            done += 1
            if self.kills and (done if nr else now()) >= kill_at:
                kill_at = done + self.rng.randrange(KILL_STEPS) if nr else now() + self.rng.uniform(0.1, 0.5)
                os.kill(pid_of(self.mount), signal.SIGKILL)
                self.killed += 1

    def run(self, steps, seconds):
        cores = sorted(os.sched_getaffinity(0))
        stop, errors, did = mp.Event(), mp.Queue(), mp.Value("Q")
        os.makedirs(self.mount)
        try:
            self.up()
            self.setup()
            rest = (stop, errors, did, self.kills)
            target, who = (read, [()] * 3) if self.kind in READERS else (write, [(r,) for r in range(RANKS)])
            all_ = [mp.Process(target=target, args=(self.kind, self.job, *w, self.load, cores, *rest), daemon=True) for w in who]
            hogs = [mp.Process(target=hog, args=(cores,), daemon=True)] if self.load == "idle" else []
            for p in all_ + hogs:
                p.start()
            self.steps(steps, seconds, did)
            stop.set()
            for p in hogs:
                p.kill()
            self.gather(all_, errors)
            self.recheck()
            self.counts["operations"] += did.value
            if did.value == 0 or (not self.sealed and self.kind in WRITERS):
                self.bad("other", "nothing was done")
        except OSError as e:
            self.bad(errno.errorcode.get(e.errno), f"{type(e).__name__}: {e}")
        except ValueError as e:
            self.bad("other", f"{type(e).__name__}: {e}")
        finally:
            stop.set()
            self.down()
        return not self.problems


RINGS = "/sys/module/fuse/parameters/enable_uring"


@contextlib.contextmanager
def fuse_over_rings():
    """Switched on in the kernel meanwhile, if it has it and we may."""
    try:
        before = get(RINGS)
        put(RINGS, "Y")
    except OSError:
        print("skipped: FUSE over io_uring can't be switched on: run as root, on Linux >= 6.14 built with FUSE_IO_URING")
        yield
        return
    try:
        yield
    finally:
        put(RINGS, before)


def names():
    modes = ["plain", "sync", "no_passthrough", "scrub", "pidns", "hold", "hold-kill", "hold-no_passthrough-kill"]
    if os.path.exists(RINGS) and get(RINGS).startswith("Y"):
        modes.append("io_uring")
    return [f"{k}/{l}/{m}" for k, l, m in itertools.product([*WRITERS, *READERS], ("normal", "idle"), modes)]


def run_case(a, name, seed, modes):
    """Runs one case and adds what it counted to its mode.  -> no problem."""
    folder = os.path.join(a.folder, "case")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    case = Case(a.scalai, folder, name, seed)
    ok = case.run(a.steps, a.seconds)
    counts = modes[case.mode]
    counts.update(case.counts)
    counts["cases"] += 1
    if not ok:
        counts["failed"] += 1
        nr = sum(c["failed"] for c in modes.values())
        print(f"FAILED {name} seed {seed}: {len(case.problems)} problems: " + "; ".join(case.problems[:3]), flush=True)
        scenes = [p for p in case.problems[3:] if p.endswith("]")][:6]
        alike = collections.Counter(re.sub(r"\d+", "N", p.partition(" [at ")[0]) for p in case.problems)
        print("\n".join([f"  {n} times: {p}" for p, n in alike.most_common(8)] + [f"  also: {p}" for p in scenes]
                        + [f"  the daemon: {line}" for line in get(folder + "/log").splitlines()[-12:]]), flush=True)
        shutil.copy(folder + "/log", os.path.join(a.folder, f"failed-{nr}.log"))
    elif a.cases is None and not a.commits:
        print(f"ok     {name}: {dict(case.counts)}", flush=True)
    return ok


def run_rounds(a, all_, modes):
    """All cases, or some, for as long as was said."""
    until, seed = time.monotonic() + a.hours * 3600, a.seed
    while True:
        rng = random.Random(seed)
        some = all_
        if a.cases is not None:
            some = [n for n in all_ if n.endswith("/normal/plain")] + rng.sample(all_, min(a.cases, len(all_)))
        for name in some:
            run_case(a, name, seed, modes)
        seed += 1
        if time.monotonic() >= until:
            break


def shuffled(all_, mode, seed):
    """The cases of a mode with their seeds, in another order each time."""
    while True:
        some = [n for n in all_ if n.endswith("/" + mode)]
        random.Random(f"{seed} {mode}").shuffle(some)
        for name in some:
            yield name, seed
        seed += 1


def run_commits(a, all_, modes):
    """Cases of all modes in turn, until each has its share of the commits."""
    share = -(-a.commits // len(modes))
    turns = {m: shuffled(all_, m, a.seed) for m in modes}
    while going := [m for m, c in modes.items() if c["commits"] < share and c["failed"] < FAILED_MAX]:
        for mode in going:
            run_case(a, *next(turns[mode]), modes)
        print(f"{sum(c['commits'] for c in modes.values())} of {a.commits} commits", file=sys.stderr, flush=True)


def table(modes, seed):
    columns = ("cases", "commits", "refused", "topologies", "operations", "compared", *BAD)
    total = collections.Counter()
    for counts in modes.values():
        total.update(counts)
    print("  ".join([f"{'mode':26s}", *(f"{c:>10s}" for c in columns)]))
    for mode, counts in [*modes.items(), ("all", total)]:
        print("  ".join([f"{mode:26s}", *(f"{counts[c]:10d}" for c in columns)]))
    print(f"figure: seed {seed}: {total['commits']} commits and {total['topologies']} changes of topology under {total['operations']} operations "
          f"of programs in {total['cases']} cases, {total['failed']} failed")
    return total


def main():
    p = argparse.ArgumentParser()
    p.add_argument("scalai")
    p.add_argument("folder")
    p.add_argument("--seconds", type=float, default=3)
    p.add_argument("--steps", type=int, default=0, help="of a case, instead of seconds")
    p.add_argument("--cases", type=int)
    p.add_argument("--commits", type=int, default=0)
    p.add_argument("--load", action="store_true", help="beside programs that take CPU, memory and disk")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--only", default="")
    p.add_argument("--hours", type=float, default=0, help="repeat, with other seeds, for so long")
    p.add_argument("--list", action="store_true")
    a = p.parse_args()
    if os.geteuid() == 0:
        mounts_of_our_own()  # who copied ours into a namespace would keep its daemon from ending
    with fuse_over_rings():
        all_ = [n for n in names() if re.search(a.only, n)]
        if a.list:
            print("\n".join(all_))
            return 0
        os.makedirs(a.folder, exist_ok=True)
        others = foreign(a.folder) if a.load else []
        modes = {n.split("/")[2]: collections.Counter() for n in all_}
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        done = False
        try:
            (run_commits if a.commits else run_rounds)(a, all_, modes)
            done = True
        except KeyboardInterrupt:
            print("interrupted: this is what was done until then")
        finally:
            total = table(modes, a.seed)
            for o in others:
                o.kill()
    return 1 if not done or total["failed"] or total["commits"] < a.commits else 0


if __name__ == "__main__":
    sys.exit(main())
