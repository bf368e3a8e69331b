#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints with changed bytes: read by Scalai where the readers of tests/support/formats read them, and refused where they refuse.

    hostile.py archives LIST_TORCH FILES NR SEED      files of torch.save(), by the parser: the same tensors, too
    hostile.py folder JOB FOLDER NR SEED              .metadata of a folder, by commits of a job
"""
import glob
import io
import os
import random
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support/formats"))
import read_dcp
import read_pt
from pkl import Refused

UNCLEAR = "unclear"
OPCODES = b"()].}Rab\x85\x86\x87qhKMJX0tlNseuQc2\x80\x81"


def overwrite(rng, data, first=0, end=None):
    for _ in range(rng.choice((1, 2, 4))):
        data[rng.randrange(first, end or len(data))] = rng.randrange(256)


def change(rng, data):
    for _ in range(rng.choice((1, 1, 2, 5))):
        how, i = rng.randrange(5), rng.randrange(len(data))
        if how == 0:
            data[i] = rng.randrange(256)
        elif how == 1:
            data[i] = rng.choice(OPCODES)
        elif how == 2:
            data[i:i + rng.randrange(1, 9)] = bytes(rng.choice((0, 255, 127)) for _ in range(rng.randrange(1, 9)))
        elif how == 3:
            del data[i:i + rng.randrange(1, 40)]
        else:
            data[i:i] = data[rng.randrange(len(data)):][:rng.randrange(1, 40)]


def pickled(rng, data):
    """Its pickle changed, and nothing else: as many bytes, so that the archive around it stays right."""
    at, size = read_pt.zip_records(read_pt.Window(io.BytesIO(data), 0, len(data)))["data.pkl"]
    part = data[at:at + size]
    (overwrite if rng.randrange(3) else change)(rng, part)
    data[at:at + size] = (part + bytes(size))[:size]


def tensors_of(path):
    """What the reader makes of a file, as lines of list_torch; None: it refuses it; UNCLEAR, where lines could not tell names apart."""
    try:
        found = read_pt.read_pt(path).tensors
    except Refused:
        return None
    if any(c < " " for t in found for c in t.path):
        return UNCLEAR
    lines = []
    for t in found:
        dense = read_pt.Tensor(t.storage, t.dtype, t.shape, t.stride, t.offset).contiguous()
        dtype = "-" if t.dtype == "C128" else t.dtype
        lines.append(f"{t.path}\t{dtype}\t{list(t.shape)}\t" + ("\t" if 0 in t.shape else f"{'' if dense else list(t.stride)}\t{t.at}"))
    return lines


def listed(text):
    """The same of a file's part of list_torch's output.  Where a tensor without elements is, and what is a DTensor, is no matter."""
    if text.startswith("refused: "):
        assert len(text) > len("refused: ") + 10, text
        return None
    lines = [line.removesuffix("\tDTensor").split("\t") for line in text.split("\n") if line and not line.startswith("inside: ")]
    if any(len(x) != 5 for x in lines):
        return UNCLEAR
    return ["\t".join([*x[:3], *(["", ""] if "0" in x[2].strip("[]").split(", ") else x[3:])]) for x in lines]


def archives(program, samples, nr, seed):
    rng, counts = random.Random(int(seed)), {True: 0, False: 0}
    seeds = [open(f, "rb").read() for f in sorted(glob.glob(f"{samples}/*.pt"))]
    with tempfile.TemporaryDirectory() as folder:
        for start in range(0, int(nr), 200):
            files = [f"{folder}/{i}.pt" for i in range(start, start + 200)]
            for i, f in enumerate(files):
                data = bytearray(rng.choice(seeds))
                (overwrite, change, pickled, pickled)[i % 4](rng, data)
                with open(f, "wb") as out:
                    out.write(data)
            done = subprocess.run([program, *files], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            assert done.returncode == 0, done.stderr.decode()[-2000:]
            parts = done.stdout.decode("utf-8", "surrogateescape").split("== " + folder)[1:]
            assert len(parts) == len(files)
            for f, part in zip(files, parts):
                ours, theirs = listed(part.split("\n", 1)[1]), tensors_of(f)
                if theirs is None and "\tDTensor\n" in part:
                    ours = None                        # its mesh is not judged: a commit refuses every DTensor
                counts[theirs is not None] += 1
                if ours != theirs and (None in (ours, theirs) or UNCLEAR not in (ours, theirs)):
                    shutil.copy(f, "differs.pt")
                    sys.exit(f"differs.pt, seed {seed}: {ours} here, {theirs} by the reader")
                os.unlink(f)
    check(counts)


def check(counts):
    print(f"agreed on {counts[True]} that are read, {counts[False]} that are refused")
    assert min(counts.values()) * 20 > sum(counts.values()), "too few of one kind: this tests little"


def read(path):
    with open(path, errors="replace") as f:
        return f.read()


def folder(job, source, nr, seed):
    rng, counts, tags = random.Random(int(seed)), {True: 0, False: 0}, 0
    name = "changed"
    shutil.copytree(source, f"{job}/{name}")
    with open(f"{source}/.metadata", "rb") as f:
        good = f.read()
    for i in range(int(nr)):
        data = bytearray(good)
        if i:                                          # the first is right
            overwrite(rng, data, *((good.index(b"planner_data"), good.index(b"storage_data")) if i % 2 else ()))
        for at in (f"{job}/{name}", source):
            with open(f"{at}/.metadata", "wb") as f:
                f.write(data)
        try:
            theirs = sorted(read_dcp.read_dcp(source).tensors)
        except (Refused, OSError):
            theirs = None
        versions = read(f"{job}/.ctl/versions")
        try:
            with open(f"{job}/.ctl/commit", "w") as f:
                f.write(f"note={i}\n")
            why = f"checkpoint: '{name}' has {len(theirs or [])} tensors"
            shown = any(line.startswith(why) and " shows it as " in line for line in read(f"{job}/.ctl/status").splitlines())
        except OSError:
            shown = False
            why = read(f"{job}/.ctl/error")
            assert versions == read(f"{job}/.ctl/versions") and name in why, why
            assert open(f"{job}/{name}/.metadata", "rb").read() == data
        counts[theirs is not None] += 1
        if shown != (theirs is not None):
            with open("differs.metadata", "wb") as f:
                f.write(data)
            sys.exit(f"differs.metadata, seed {seed}, {i}: shown {shown}, {why}, {read(f'{job}/.ctl/status')}; by the reader: {theirs}")
    check(counts)


if __name__ == "__main__":
    {"archives": archives, "folder": folder}[sys.argv[1]](*sys.argv[2:])
