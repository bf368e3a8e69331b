#!/usr/bin/env python3
"""Every format of a dataset, written and read by its own library: partitions are opened unchanged.

    formats.py MOUNT JOB FOLDER

JOB has a topology and no datasets.  Sources are made in FOLDER, added, and read as dp=1, 2, 4 and 2
again with the position moved on; every sample comes once, and the global batches are the same.
"""
import io
import os
import subprocess
import sys

import crc32c
import numpy as np
import tfrecord
import torch
import webdataset
from megatron.core.datasets import indexed_dataset

BATCH = 8


def control(mount, job, file, text):
    try:
        with open(f"{mount}/{job}/.ctl/{file}", "w") as f:
            f.write(text + "\n")
    except OSError as e:
        raise SystemExit(f"{text}: {e}: {open(f'{mount}/{job}/.ctl/error').read()}")


# --- sources: the samples, as the reader of the format gives them ---

def make_megatron(folder, documents=True):
    """Documents of one to three sequences of tokens, some of none."""
    rng = np.random.default_rng(1)
    out = []
    for part in range(2):
        prefix = f"{folder}/{'docs' if documents else 'seqs'}{part}"
        builder = indexed_dataset.IndexedDatasetBuilder(prefix + ".bin", dtype=np.uint16)
        for _ in range(50 - 5 * part):
            document = [rng.integers(0, 60000, rng.integers(0, 200)) for _ in range(rng.integers(1, 4))]
            for sequence in document:
                builder.add_item(torch.from_numpy(sequence))
            builder.end_document()
            out += [tuple(tuple(s.tolist()) for s in document)] if documents else [(tuple(s.tolist()),) for s in document]
        builder.finalize(prefix + ".idx")
    return out


def read_megatron(path):
    d = indexed_dataset.IndexedDataset(path[:-4])
    starts = d.document_indices
    return [tuple(tuple(d[int(i)].tolist()) for i in range(starts[k], starts[k + 1])) for k in range(len(starts) - 1)]


def make_webdataset(folder):
    rng = np.random.default_rng(2)
    out = []
    for part in range(3):
        with webdataset.TarWriter(f"{folder}/web-{part:06d}.tar") as w:
            for i in range(30 + part):
                key = f"{part}/{'long-name-' * (25 if i % 7 == 0 else 1)}{i:05d}" # some need a pax header
                s = {"__key__": key, "txt": f"caption {part} {i}", "npy": rng.integers(0, 99, rng.integers(0, 400))}
                w.write(s)
                out.append((key, s["txt"], s["npy"].tobytes()))
    return out


def read_webdataset(path):
    return [(s["__key__"], s["txt"].decode(), np.load(io.BytesIO(s["npy"])).tobytes())
            for s in webdataset.WebDataset(path, shardshuffle=False, empty_check=False)]


def make_tfrecord(folder):
    out = []
    for part in range(2):
        w = tfrecord.TFRecordWriter(f"{folder}/train-{part}.tfrecord")
        for i in range(47):
            w.write({"id": (part * 1000 + i, "int"), "text": (b"x" * (i * 13 % 500), "byte")})
            out.append((part * 1000 + i, i * 13 % 500))
        w.close()
    return out


def read_tfrecord(path):
    raw, at = open(path, "rb").read(), 0
    while at < len(raw): # the library's reader skips the CRCs
        n = int.from_bytes(raw[at:at + 8], "little")
        for a, b in ((at, at + 8), (at + 12, at + 12 + n)):
            c = crc32c.crc32c(raw[a:b])
            assert ((c >> 15 | c << 17) + 0xa282ead8) & 0xffffffff == int.from_bytes(raw[b:b + 4], "little")
        at += 16 + n
    return [(int(r["id"][0]), len(r["text"])) for r in tfrecord.tfrecord_loader(path, None, {"id": "int", "text": "byte"})]


def make_npy(folder):
    a = np.random.default_rng(3).standard_normal((93, 3, 5)).astype("<f4")
    np.save(f"{folder}/a.npy", a[:50])
    np.save(f"{folder}/b.npy", a[50:])
    np.save(f"{folder}/flat.npy", np.arange(100, dtype=">i8"))
    return [x.tobytes() for x in a]


def make_records(folder):
    a = np.random.default_rng(4).integers(0, 1 << 31, (96, 33)).astype("<i4")
    a.tofile(f"{folder}/tokens.bin")
    return [x.tobytes() for x in a]


def datasets(folder):
    docs, seqs = make_megatron(folder), make_megatron(folder, documents=False)
    flat = lambda path: [x.tobytes() for x in np.load(path)]
    return {
        "docs.bin": (docs, read_megatron, f"path={folder}/docs0 path={folder}/docs1.idx format=megatron"),
        "seqs.bin": (seqs, read_megatron, f"path={folder}/seqs0.bin path={folder}/seqs1.bin format=megatron unit=sequence"),
        "web.tar": (make_webdataset(folder), read_webdataset, f"path={folder}/web-*.tar"),
        "train.tfrecord": (make_tfrecord(folder), read_tfrecord, f"path={folder}/train-0.tfrecord path={folder}/train-1.tfrecord"),
        "a.npy": (make_npy(folder), flat, f"path={folder}/a.npy path={folder}/b.npy"),
        "flat.npy": ([x.tobytes() for x in np.arange(100, dtype=">i8")], flat, f"path={folder}/flat.npy"),
        "tokens.bin": (make_records(folder), lambda p: [x.tobytes() for x in np.fromfile(p, "<i4").reshape(-1, 33)],
                       f"path={folder}/tokens.bin format=records record=132"),
    }


# --- what the ranks read ---

def batches(parts):
    """Ranks' samples -> the global batches, in order."""
    per = BATCH // len(parts)
    return [[s for p in parts for s in p[b * per:(b + 1) * per]] for b in range(len(parts[0]) // per)]


def main():
    mount, job, folder = sys.argv[1:4]
    os.makedirs(folder, exist_ok=True)
    made = datasets(folder)
    control(mount, job, "topology", "dp=1")
    for file, (_, _, spec) in made.items():
        control(mount, job, "data", f"add name={file.split('.')[0]} global_batch={BATCH} seed=5 {spec}")
    names = sorted(os.listdir(f"{mount}/{job}/0/data"))
    assert names == sorted([*made, "docs.idx", "seqs.idx", *(f.split(".")[0] + ".next" for f in made)]), names
    whole, moved = {}, 0
    for dp in (1, 2, 4, 2):
        control(mount, job, "topology", f"dp={dp} tp=2")
        for file, (samples, read, _) in made.items():
            parts = [read(f"{mount}/{job}/{2 * r}/data/{file}") for r in range(dp)]
            got = batches(parts)
            if dp == 1:
                flat = [s for b in got for s in b]
                assert len(flat) == len(samples) - len(samples) % BATCH, (file, len(flat), len(samples))
                left = list(samples)
                for s in flat:
                    left.remove(s) # every sample once
                assert flat != samples[:len(flat)], f"{file} is not shuffled"
                whole[file] = got
                ahead = [s for b in batches([read(f"{mount}/{job}/0/data/{file.split('.')[0]}.next/{file}")]) for s in b]
                assert ahead != flat and all(s in samples for s in ahead), file
            assert got == whole[file][moved:], f"{file}: dp={dp}: other batches after {moved}"
            print(f"{file}: dp={dp}: {sum(map(len, parts))} samples by {read.__name__}")
        moved += 2
        control(mount, job, "commit", f"step={moved}")
    # the tar is one for the tar program, too
    listed = subprocess.run(["tar", "tf", f"{mount}/{job}/0/data/web.tar"], check=True, capture_output=True, text=True).stdout
    assert len(listed.split()) == 2 * len(read_webdataset(f"{mount}/{job}/0/data/web.tar"))


if __name__ == "__main__":
    main()
