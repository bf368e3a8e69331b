#!/usr/bin/env python3
"""The power fails: at any point of what a device was told, and with it any of what it had not flushed yet.

    power.py CRASH RECORDER [--points N] [--fs ext4|xfs] [--seed S] [SCENARIO...]

A store on a file system on a disk that remembers each write and flush in order (recorder.c behind a
loop device).  After a command, N points are chosen; for each, a disk is made of everything up to
the last flush before it, and of what came after that flush each write or not, some of them torn.
The file system recovers, a service starts, and `crash check` looks: old state or new, fsck clean;
only the new one if the command had returned before the point.  What a power cut does to a file system
that ignores flushes is not our subject.  Needs root.
"""
import argparse
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time

SIZE = {"ext4": 48 << 20, "xfs": 320 << 20}
SCENARIOS = ("first", "import", "fsync", "commit", "topology", "materialize", "share", "mend", "collect", "rollback", "data", "position", "config")


def run(*words, check=True):
    return subprocess.run(words, check=check, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)


def mount(image, at):
    loop = run("losetup", "--find", "--show", image).stdout.strip()
    done = run("mount", loop, at, check=False)
    if done.returncode:
        run("losetup", "-d", loop, check=False)
        raise SystemExit(f"BAD: the file system itself did not recover: {done.stdout}")
    return loop


def umount(loop, at):
    run("umount", at)
    run("losetup", "-d", loop)


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
    def __init__(self, a, scenario):
        self.a, self.scenario, self.recorder, self.loop = a, scenario, None, None
        self.dir = tempfile.mkdtemp(prefix="scalai-power.", dir="/dev/shm")
        self.at, self.fuse, self.image = (os.path.join(self.dir, n) for n in ("mnt", "fuse", "image"))
        self.state, self.log = os.path.join(self.dir, "state"), os.path.join(self.dir, "log")
        os.mkdir(self.at)
        os.mkdir(self.fuse)
        with open(os.path.join(self.dir, "lines.txt"), "w") as f:
            f.write("".join(f"{i}\n" for i in range(1, 21)))

    def crash(self, what):
        done = subprocess.run([self.a.crash, what, self.scenario, os.path.join(self.at, "store"), self.state], timeout=120,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return "" if done.returncode == 0 else done.stdout or f"status {done.returncode}"

    def record(self):
        """-> the disk as it was before, what was done to it, and how much of that before the command returned."""
        with open(self.image, "wb") as f:
            f.truncate(SIZE[self.a.fs])
        run(f"mkfs.{self.a.fs}", "-q", *(["-b", "4096", "-E", "lazy_itable_init=0"] if self.a.fs == "ext4" else []), self.image)
        loop = mount(self.image, self.at)
        os.mkdir(os.path.join(self.at, "store"))
        if why := self.crash("prepare"):
            raise SystemExit(f"prepare: {why}")
        umount(loop, self.at)
        self.recorder = recorder = subprocess.Popen([self.a.recorder, self.image, self.log, self.fuse])
        while not os.path.exists(os.path.join(self.fuse, "disk")):
            time.sleep(0.01)
        loop = self.loop = mount(os.path.join(self.fuse, "disk"), self.at)
        marks = {}
        performing = subprocess.Popen([self.a.crash, "perform", self.scenario, os.path.join(self.at, "store"), self.state],
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        while performing.poll() is None:
            if "ack" not in marks and os.path.exists(self.state + ".acknowledged"):
                marks["ack"] = os.path.getsize(self.log)
            time.sleep(0.0005)
        if performing.returncode:
            raise SystemExit(f"perform: {performing.stdout.read()}")
        umount(loop, self.at)
        self.loop = None
        run("umount", self.fuse)
        recorder.wait(20)
        with open(self.image, "rb") as f:
            base = f.read()
        ops, size, ack = read_log(self.log), 0, 0
        for i, op in enumerate(ops):
            size += 16 + (len(op[1]) if op else 0)
            if size <= marks.get("ack", 1 << 62):
                ack = i + 1
        return base, ops, ack

    def cut(self, base, ops, point, rng):
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
        path = os.path.join(self.dir, "cut")
        with open(path, "wb") as f:
            f.write(disk)
        return path

    def close(self):
        """Also after a failure: file system, loop device, disk, in this order."""
        for at in (self.at, self.fuse):
            if os.path.ismount(at):
                run("umount", "-l", at, check=False)
        if self.loop: # of the recorder; others are ended where they are made
            run("losetup", "-d", self.loop, check=False)
        if self.recorder and self.recorder.poll() is None:
            self.recorder.kill()
        shutil.rmtree(self.dir, ignore_errors=True)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("crash")
    ap.add_argument("recorder")
    ap.add_argument("--points", type=int, default=120, help="of each scenario")
    ap.add_argument("--fs", choices=SIZE, default="ext4")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--control", action="store_true", help="with sync=off: passes if something is lost, which shows that a loss is seen")
    ap.add_argument("scenarios", nargs="*", default=SCENARIOS)
    a = ap.parse_intermixed_args()
    rng, total = random.Random(a.seed), 0
    os.environ["CRASH_CONFIG"] = "sync=off" if a.control else "sync=on"
    for scenario in a.scenarios or SCENARIOS:
        bench = Bench(a, scenario)
        try:
            base, ops, ack = bench.record()
            acknowledged = bench.state + ".acknowledged"
            late = 0
            for _ in range(a.points):
                # most before the command returned, many just after it
                low, high = rng.choice([(1, ack), (1, ack), (ack, min(ack + 4, len(ops))), (1, len(ops))])
                point = rng.randrange(low, high + 1)
                loop = mount(bench.cut(base, ops, point, rng), bench.at)
                if point >= ack:
                    open(acknowledged, "w").close()
                    late += 1
                elif os.path.exists(acknowledged):
                    os.unlink(acknowledged)
                why = bench.crash("check")
                umount(loop, bench.at)
                if why and a.control:
                    print(f"ok      {scenario}: seen to fail, as it must with sync=off: {why.strip()}")
                    return 0
                if why:
                    raise SystemExit(f"BAD: {scenario}: power cut at {point} of {len(ops)} (returned at {ack}), seed {a.seed}: {why}")
                total += 1
            print(f"ok      {scenario:12s} {len(ops):5d} writes and flushes, {a.points} power cuts, {late} after it had returned, 0 bad states",
                  flush=True)
        finally:
            bench.close()
    if a.control:
        raise SystemExit("BAD: nothing was lost with sync=off: these tests can't see a loss")
    print(f"{total} power cuts on {a.fs}, 0 bad states (seed {a.seed})")


if __name__ == "__main__":
    sys.exit(main())
