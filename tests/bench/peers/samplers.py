#!/usr/bin/env python3
"""Samplers of training frameworks beside partitions, on one corpus of Megatron's.

    samplers.py make PREFIX N                    N documents of 64 tokens
    samplers.py scalai TOPOLOGY-FILE TOPOLOGY PARTITION READS
                                                 a topology is written, rank 0's partition opened
    samplers.py megatron PREFIX N READS          GPTDataset builds its indices, finds them again, and is read
    samplers.py streaming PREFIX N               MosaicML streaming's partition and shuffle of one epoch, without data

Each prints one JSON line: `first` is the seconds until the first sample is there, `rest` those of READS
more, one by one, by Megatron's own IndexedDataset.  Imports are not counted.
"""
import importlib.util
import json
import os
import sys
import tempfile
import time
import types

import numpy as np

TOKENS = 64


def make(prefix, n):
    rng = np.random.default_rng(1)
    with open(prefix + ".bin", "wb") as f:
        for at in range(0, n, 1_000_000):
            rng.integers(0, 50000, (min(n - at, 1_000_000), TOKENS), "<u2").tofile(f)
    with open(prefix + ".idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + b"\x08" + n.to_bytes(8, "little") + (n + 1).to_bytes(8, "little"))
        np.full(n, TOKENS, "<i4").tofile(f)
        (np.arange(n, dtype="<i8") * 2 * TOKENS).tofile(f)
        np.arange(n + 1, dtype="<i8").tofile(f)
    return {}


def read(dataset, ids):
    began = time.perf_counter()
    for i in ids:
        dataset[i]
    return {"rest": time.perf_counter() - began, "read": len(ids)}


def scalai(control, topology, partition, reads):
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    began = time.perf_counter()
    fd = os.open(control, os.O_WRONLY)
    os.write(fd, topology.encode())
    os.close(fd)
    d = IndexedDataset(partition)
    d[0]
    first = time.perf_counter() - began
    return {"first": first, **read(d, range(1, reads + 1))}


class Tokenizer:
    eod, pad, vocab_size, unique_identifiers = 0, 0, 50000, {"class": "none"}


def megatron(prefix, n, reads):
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split
    seconds = []
    with tempfile.TemporaryDirectory(dir=os.path.dirname(prefix)) as cache:
        for _ in range(2): # the second finds the first one's index files
            config = GPTDatasetConfig(random_seed=1, sequence_length=TOKENS, split="1", path_to_cache=cache, tokenizer=Tokenizer(),
                                      reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False,
                                      create_attention_mask=False)
            began = time.perf_counter()
            corpus = IndexedDataset(prefix)
            d = GPTDataset(corpus, prefix, np.arange(n, dtype=np.int32), n - 1, Split.train, config)
            d[0]
            seconds.append(time.perf_counter() - began)
        ids = np.random.default_rng(1).permutation(n)[:reads].tolist()
        return {"first": seconds[0], "again": seconds[1], **read(corpus, ids)}


def streaming(_prefix, n):
    # its package imports every cloud's client; these modules need none of them
    spec = importlib.util.find_spec("streaming")
    for name, path in (("streaming", spec.submodule_search_locations[0]), ("streaming.base", spec.submodule_search_locations[0] + "/base")):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [path]
    from streaming.base.partition.relaxed import get_partitions_relaxed
    from streaming.base.shuffle.py1s import get_shuffle_py1s
    began = time.perf_counter()
    ids = get_partitions_relaxed(n, 8, 1, 8, 1, 512, 0, 1)
    order = get_shuffle_py1s(np.full(n // 10_000, 10_000), 8, 1, 0)
    ids = np.where(ids == -1, -1, order[ids])
    assert ids.flat[0] >= 0
    return {"first": time.perf_counter() - began}


def main():
    what, *words = sys.argv[1:]
    print(json.dumps({"make": lambda p, n: make(p, int(n)), "scalai": lambda c, t, p, r: scalai(c, t, p, int(r)),
                      "megatron": lambda p, n, r: megatron(p, int(n), int(r)),
                      "streaming": lambda p, n: streaming(p, int(n))}[what](*words)))


if __name__ == "__main__":
    main()
