#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tree.py in all modes in turn, with and without kills, the store on the folder's file system and on XFS: a line of figures for each round.

    tree_all.py SCALAI FOLDER [--operations N] [--seed S] [--jobs J] [--round N] [--only KIND]

N operations in all, in rounds of some thousand, each with a seed of its own; J rounds at a time.  What a round has left is removed unless it
found a difference.  KIND is a part of the options of a mode: "kill", "xfs".
"""
import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import time

KINDS = ["--mode plain", "--mode hold --kill 1", "--mode no_passthrough", "--mode plain --xfs", "--mode io_uring", "--mode hold",
         "--mode hold --kill 1 --xfs"]
RINGS = "/sys/module/fuse/parameters/enable_uring"


def kinds():
    """The modes that this machine has."""
    out = list(KINDS)
    try:
        with open(RINGS, "w", encoding="ascii") as f:
            f.write("Y")
    except OSError:
        out.remove("--mode io_uring")
        print("skipped: io_uring: run as root, on Linux >= 6.14 built with FUSE_IO_URING")
    if os.getuid() or not os.path.exists("/dev/loop-control") or not shutil.which("mkfs.xfs"):
        out = [k for k in out if "xfs" not in k]
        print("skipped: XFS: run as root, where there are loop devices and mkfs.xfs")
    return out


def one_round(a, kind, seed, operations):
    folder = f"{a.folder}/{seed}"
    tree = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tree.py")
    words = [sys.executable, tree, a.scalai, folder, "--operations", str(operations), "--seed", str(seed), *kind.split()]
    run = subprocess.run(words, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = run.stdout.splitlines()
    print("\n".join(lines if run.returncode else lines[-1:]), flush=True)
    if not run.returncode:
        shutil.rmtree(folder, ignore_errors=True)
    return int((re.findall(r"(\d+) operations", run.stdout) or [0])[-1]), run.returncode != 0


def main():
    p = argparse.ArgumentParser()
    p.add_argument("scalai")
    p.add_argument("folder")
    p.add_argument("--operations", type=int, default=100000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--jobs", type=int, default=1)
    p.add_argument("--round", type=int, default=10000)
    p.add_argument("--only", default="")
    a = p.parse_args()
    os.makedirs(a.folder, exist_ok=True)
    begin, modes = time.monotonic(), [k for k in kinds() if a.only in k]
    nr = max(1, round(a.operations / (len(modes) * a.round)))
    each = -(-a.operations // (nr * len(modes)))
    rounds = [(kind, a.seed + i * len(modes) + n, each) for i in range(nr) for n, kind in enumerate(modes)]
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        done = list(pool.map(lambda r: one_round(a, *r), rounds))
    failed = sum(f for _, f in done)
    print(f"figure: {sum(n for n, _ in done)} operations in {len(modes)} modes, {len(rounds)} rounds, {failed} with differences, "
          f"{time.monotonic() - begin:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
