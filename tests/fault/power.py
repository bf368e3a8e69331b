#!/usr/bin/env python3
"""The power fails: at any point of what a device was told, and with it any of what it had not flushed yet.

    power.py CRASH RECORDER [--points N] [--fs ext4|xfs] [--seed S] [--keep FOLDER] [SCENARIO...]
    power.py CRASH RECORDER --again FOLDER      the check of a cut that failed, once more

A store on a file system on a disk that remembers each write and flush in order (recorder.c behind a
loop device).  After a command, N points are chosen; for each, a disk is made of everything up to
the last flush before it, and of what came after that flush each write or not, some of them torn.
The file system recovers, a service starts, and `crash check` looks: old state or new, fsck clean;
only the new one if the command had returned before the point.  What a power cut does to a file system
that ignores flushes is not our subject.  Needs root.

That it is the power that fails, and not this test:
  - its mounts are in a mount namespace of its own: a namespace that somebody else makes meanwhile gets copies of all
    mounts that it can see, and a file system lives and writes until the last copy is unmounted;
  - each disk is a file of its own behind a loop device of its own, and is let go only when nobody has that device any more;
  - the disk on which the command began is the same, byte for byte, after the recording;
  - after each cut the file system itself is checked (e2fsck, xfs_repair).
Of a cut that fails FOLDER/SCENARIO-SEED-POINT has the disk as it was cut and as the check left it, what was recorded, the
states, and the kernel's last words.
"""
import argparse
import ctypes
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

SIZE = {"ext4": 48 << 20, "xfs": 320 << 20}
SCENARIOS = ("first", "import", "fsync", "commit", "topology", "materialize", "share", "mend", "collect", "rollback", "data", "position", "config",
             "mkdir", "rename-tree", "link", "symlink", "setxattr", "rmdir", "rmtree", "commit-tree",
             "exchange", "commit-links", "rollback-tree")  # what a discard drops is as durable as what it was


FSCK = {"ext4": ("e2fsck", "-fn"), "xfs": ("xfs_repair", "-n")}


def run(*words, check=True):
    return subprocess.run(words, check=check, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)


def mounts_of_our_own():
    """A mount namespace: mounts end with us, and nobody copies them.  We have copied others': a copy of a FUSE mount would
    keep its daemon from ending."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_namespace, recursive, private = 0x20000, 0x4000, 1 << 18
    if libc.unshare(new_namespace) or libc.mount(b"none", b"/", None, recursive | private, None):
        raise SystemExit(f"BAD: no mount namespace: {os.strerror(ctypes.get_errno())}")
    with open("/proc/self/mounts") as f:
        copied = [line.split()[1] for line in f if line.split()[2].startswith("fuse")]
    for at in reversed(copied):
        libc.umount2(at.encode().decode("unicode_escape").encode(), 2)  # lazily; ours alone: nothing of it propagates


class Disk:
    """A file behind a loop device, mounted."""

    def __init__(self, image, at):
        self.at = at
        self.loop = run("losetup", "--find", "--show", image).stdout.strip()
        done = run("mount", self.loop, at, check=False)
        run("losetup", "-d", self.loop) # when the last one has closed it
        self.backing = f"/sys/block/{os.path.basename(self.loop)}/loop/backing_file"
        if done.returncode:
            raise SystemExit(f"BAD: the file system itself did not recover: {done.stdout}")

    def end(self):
        run("umount", self.at)
        for _ in range(2000):
            if not os.path.exists(self.backing):
                return
            time.sleep(0.01)
        raise SystemExit(f"BAD: {self.loop} is in use 20 s after it was unmounted: somebody else has opened it")


def read_log(path):
    ops, at = [], 0
    with open(path, "rb") as f:
        raw = f.read()
    while at < len(raw):
        offset, n = struct.unpack_from("<QQ", raw, at)
        ops.append((offset, raw[at + 16:at + 16 + n]) if n else None)
        at += 16 + n
    return ops


class Bench:
    def __init__(self, a, scenario, folder=None):
        self.a, self.scenario, self.recorder, self.disk = a, scenario, None, None
        self.dir = folder or tempfile.mkdtemp(prefix="scalai-power.", dir="/dev/shm")
        self.at, self.fuse, self.image = (os.path.join(self.dir, n) for n in ("mnt", "fuse", "image"))
        self.state, self.log, self.cut = (os.path.join(self.dir, n) for n in ("state", "log", "cut"))
        os.makedirs(self.at)
        os.mkdir(self.fuse)
        with open(os.path.join(self.dir, "lines.txt"), "w") as f:
            f.write("".join(f"{i}\n" for i in range(1, 21)))

    def crash(self, what):
        done = subprocess.run([self.a.crash, what, self.scenario, os.path.join(self.at, "store"), self.state], timeout=120,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return "" if done.returncode == 0 else done.stdout or f"status {done.returncode}"

    def prepare(self):
        """-> the disk as it is before the command."""
        with open(self.image, "wb") as f:
            f.truncate(SIZE[self.a.fs])
        run(f"mkfs.{self.a.fs}", "-q", *(["-b", "4096", "-E", "lazy_itable_init=0"] if self.a.fs == "ext4" else []), self.image)
        disk = Disk(self.image, self.at)
        os.mkdir(os.path.join(self.at, "store"))
        if why := self.crash("prepare"):
            raise SystemExit(f"prepare: {why}")
        disk.end()
        with open(self.image, "rb") as f:
            return f.read()

    def record(self):
        """-> the disk as it was before, what was done to it, and how much of that before the command returned."""
        base = self.prepare()
        self.recorder = recorder = subprocess.Popen([self.a.recorder, self.image, self.log, self.fuse])
        while not os.path.exists(os.path.join(self.fuse, "disk")):
            time.sleep(0.01)
        disk = Disk(os.path.join(self.fuse, "disk"), self.at)
        marks = {}
        performing = subprocess.Popen([self.a.crash, "perform", self.scenario, os.path.join(self.at, "store"), self.state],
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        while performing.poll() is None:
            if "ack" not in marks and os.path.exists(self.state + ".acknowledged"):
                marks["ack"] = os.path.getsize(self.log)
            time.sleep(0.0005)
        if performing.returncode:
            raise SystemExit(f"perform: {performing.stdout.read()}")
        disk.end()
        run("umount", self.fuse)
        recorder.wait(20)
        with open(self.image, "rb") as f:
            if f.read() != base:
                raise SystemExit("BAD: somebody else wrote to the disk while the command was recorded")
        ops, size, ack = read_log(self.log), 0, 0
        for i, op in enumerate(ops):
            size += 16 + (len(op[1]) if op else 0)
            if size <= marks.get("ack", 1 << 62):
                ack = i + 1
        return base, ops, ack

    def check(self):
        """-> what is wrong with the disk that was cut, if anything is; it recovers first.  The file system's own check is part of it."""
        disk = Disk(self.cut, self.at)
        try:
            why = self.crash("check")
        finally:
            disk.end()
        done = run(*FSCK[self.a.fs], self.cut, check=False)
        if done.returncode:
            raise SystemExit(f"BAD: the file system itself is damaged: {done.stdout[-2000:]}\n{why}")
        return why

    def keep(self, disk, about):
        """Keeps all of a failure; -> the folder."""
        folder = os.path.join(self.a.keep, f"{self.scenario}-{self.a.fs}-{self.a.seed}-{about['point']}")
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        with open(folder + "/cut", "wb") as f:
            f.write(disk)
        if os.path.exists(self.cut):
            shutil.copy(self.cut, folder + "/checked")
        for name in ("image", "log", "state", "state.acknowledged"):
            if os.path.exists(os.path.join(self.dir, name)):
                shutil.copy(os.path.join(self.dir, name), folder)
        with open(folder + "/about.json", "w") as f:
            json.dump({**about, "folder": self.dir, "scenario": self.scenario, "fs": self.a.fs, "seed": self.a.seed}, f, indent=1)
        with open(folder + "/kernel", "w") as f:
            f.write("\n".join(run("dmesg", check=False).stdout.splitlines()[-200:]) + "\n")
        return folder

    def close(self):
        """Also after a failure.  Loop devices end with the mounts."""
        for at in (self.at, self.fuse):
            while os.path.ismount(at):
                run("umount", "-l", at, check=False)
        if self.recorder and self.recorder.poll() is None:
            self.recorder.kill()
        shutil.rmtree(self.dir, ignore_errors=True)


def cut(base, ops, point, rng):
    """A disk whose power failed there."""
    flushed = max([i for i in range(point) if ops[i] is None], default=0)
    disk = bytearray(base)
    for i, op in enumerate(ops[:point]):
        if op is None:
            continue
        offset, data = op
        if i > flushed:
            if rng.random() < 0.5:
                continue
            if rng.random() < 0.2 and len(data) > 4096: # torn, between sectors of 4 KiB
                data = data[:rng.randrange(len(data) // 4096) * 4096]
        disk[offset:offset + len(data)] = data
    return disk


def cuts(a, scenario):
    """-> how many power cuts were checked, or what was seen to be lost."""
    bench = Bench(a, scenario)
    try:
        base, ops, ack = bench.record()
        late = 0
        for nr in range(a.points):
            rng = random.Random(f"{a.seed} {scenario} {nr}")  # whatever was cut before
            # most before the command returned, many just after it
            low, high = rng.choice([(1, ack), (1, ack), (ack, min(ack + 4, len(ops))), (1, len(ops))])
            point = rng.randrange(low, high + 1)
            disk = cut(base, ops, point, rng)
            bench.cut = os.path.join(bench.dir, f"cut-{nr}")
            with open(bench.cut, "xb") as f:
                f.write(disk)
            acknowledged = bench.state + ".acknowledged"
            if point >= ack:
                open(acknowledged, "w").close()
                late += 1
            elif os.path.exists(acknowledged):
                os.unlink(acknowledged)
            try:
                why = bench.check()
            except (Exception, SystemExit) as e:
                print(f"kept in {bench.keep(disk, {'point': point, 'returned': ack, 'ops': len(ops), 'why': str(e)})}", file=sys.stderr)
                raise
            if why and a.control:
                return why
            if why:
                folder = bench.keep(disk, {"point": point, "returned": ack, "ops": len(ops), "why": why})
                raise SystemExit(f"BAD: {scenario}: power cut at {point} of {len(ops)} (returned at {ack}), seed {a.seed}, "
                                 f"kept in {folder}: {why}")
            os.unlink(bench.cut)
        print(f"ok      {scenario:12s} {len(ops):5d} writes and flushes, {a.points} power cuts, {late} after it had returned, 0 bad states",
              flush=True)
        return a.points
    finally:
        bench.close()


def again(a):
    """The check of a cut that was kept."""
    with open(a.again + "/about.json") as f:
        about = json.load(f)
    a.fs = about["fs"]
    bench = Bench(a, about["scenario"], about["folder"])
    try:
        for name in ("cut", "state", "state.acknowledged"):
            if os.path.exists(os.path.join(a.again, name)):
                shutil.copy(os.path.join(a.again, name), bench.dir)
        why = bench.check()
    finally:
        bench.close()
    print(f"BAD: {why}" if why else "ok: the same cut is right now")
    return 1 if why else 0


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("crash")
    ap.add_argument("recorder")
    ap.add_argument("--points", type=int, default=120, help="of each scenario")
    ap.add_argument("--fs", choices=SIZE, default="ext4")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--keep", default="/var/tmp/scalai-power", help="where failures are kept")
    ap.add_argument("--again", help="a failure that was kept")
    ap.add_argument("--control", action="store_true", help="with sync=off: passes if something is lost, which shows that a loss is seen")
    ap.add_argument("scenarios", nargs="*", default=SCENARIOS)
    a = ap.parse_intermixed_args()
    total = 0
    os.environ["CRASH_CONFIG"] = "sync=off" if a.control else "sync=on"
    signal.signal(signal.SIGTERM, signal.default_int_handler) # cleans up
    mounts_of_our_own()
    if a.again:
        return again(a)
    for scenario in a.scenarios or SCENARIOS:
        done = cuts(a, scenario)
        if isinstance(done, str):
            print(f"ok      {scenario}: seen to fail, as it must with sync=off: {done.strip()}")
            return 0
        total += done
    if a.control:
        raise SystemExit("BAD: nothing was lost with sync=off: these tests can't see a loss")
    print(f"{total} power cuts on {a.fs}, 0 bad states (seed {a.seed})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
