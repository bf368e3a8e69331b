"""
JOB-FOLDER SEED STEPS: files of tensors and plain files that are names of one file, compared with a model.

Each rank has up to five names of files of tensors and four of plain files (*.bak).  Files are made, written in place, linked, renamed
and removed; then there is a commit, or another topology.  Each name has the bytes that were written under it last, or, at another
topology, the part of what all ranks have under that name.  Names of one file stay one file, but for those of another kind after a commit
(docs/tree.md, "What is left"), and, at another topology, those of files of tensors (B4).
"""
import itertools
import json
import os
import random
import shutil
import struct
import sys

JOB, SEED, STEPS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
SHARDS = [f"{n}.safetensors" for n in ("a", "b", "c", "s/d", "s/e")]
PLAIN = [f"{n}.bak" for n in ("p", "q", "s/r", "t/u")]
rng = random.Random(SEED)
inodes = itertools.count(1)
counts = dict.fromkeys(("commits", "topologies", "mixed", "names", "refused", "folders"), 0)


def write(path, values, how="wb"):
    head = json.dumps({"w": {"dtype": "I32", "shape": [len(values)], "data_offsets": [0, 4 * len(values)]}}).encode()
    data = struct.pack("<Q", len(head)) + head + struct.pack(f"<{len(values)}i", *values)
    with open(path, how) as f:
        f.write(data)
        f.truncate()


def read(path):
    with open(path, "rb") as f:
        data = f.read()
    data = data[8 + struct.unpack("<Q", data[:8])[0]:]
    return list(struct.unpack(f"<{len(data) // 4}i", data))


def control(name, words):
    fd = os.open(f"{JOB}/.ctl/{name}", os.O_WRONLY)
    try:
        os.write(fd, words.encode())
        return None
    except OSError as e:
        with open(f"{JOB}/.ctl/error", encoding="utf-8") as f:
            return f"{e.strerror}: {f.read().strip()}"
    finally:
        os.close(fd)


class File:
    """What names share: its bytes.  Committed ones with one `blob` are known to be the same on all ranks (B2)."""

    def __init__(self, values):
        self.values, self.number, self.blob, self.is_new = values, next(inodes), next(inodes), True

    def copy(self):
        return File(list(self.values))

    def write(self, values):
        self.values, self.blob, self.is_new = values, next(inodes), True

    def twin(self):
        """The same file of another rank, or of another kind."""
        other = self.copy()
        other.blob, other.is_new = self.blob, self.is_new
        return other


class Job:
    def __init__(self, tp):
        self.tp = self.rows_tp = tp
        self.work = [{} for _ in range(tp)]     # rank -> name -> File, now
        self.rows = [{} for _ in range(tp)]     # as of the last commit, with its topology
        self.versions = {}                      # number -> {(rank, path): values}
        self.folder = "s"                       # as the folder s of all ranks is called

    def path(self, name):
        return f"{self.folder}/{name[2:]}" if name.startswith("s/") else name

    def fresh(self, like=None):
        return [rng.randrange(1 << 30) for _ in range(len(like) if like else 48 // self.tp)]

    def commit(self):
        seen = {}
        for rank in self.work:
            for file in set(rank.values()):
                counts["mixed"] += len({name in SHARDS for name in rank if rank[name] is file}) > 1
            for name, file in list(rank.items()):
                key = id(file), name in SHARDS
                rank[name] = seen.setdefault(key, file.twin())
        for name in PLAIN:
            files = [rank.get(name) for rank in self.work]
            if None not in files and all(f.is_new and f.values == files[0].values for f in files):
                for f in files:
                    f.blob = files[0].blob
        for rank in self.work:
            for file in rank.values():
                file.is_new = False
        self.rows, self.rows_tp = [dict(r) for r in self.work], self.tp

    def whole(self, name):
        return sum((rank[name].values for rank in self.rows), [])

    def part(self, name, tp, rank):
        whole = self.whole(name)
        return whole[rank * len(whole) // tp:(rank + 1) * len(whole) // tp]

    def common(self):
        """Plain files that are the same in all ranks of the last commit."""
        files = {name: [rank.get(name) for rank in self.rows] for name in PLAIN}
        same = {n: f for n, f in files.items() if None not in f and len({x.blob for x in f}) == 1}
        seen = {}
        return {n: seen.setdefault(tuple(x.number for x in f), f[0].twin()) for n, f in same.items()}

    def turn(self, tp):
        self.tp, shown = tp, []
        for r in range(tp):
            own = self.rows[r] if r < self.rows_tp else self.common()
            rank = {name: own[name] for name in own if name not in SHARDS}
            for name in self.shards():
                rank[name] = own[name] if tp == self.rows_tp else File(self.part(name, tp, r))
            shown.append(rank)
        self.work = [dict(r) for r in shown]

    def names(self):
        return {(r, self.path(name), file.number, file.blob) for r, rank in enumerate(self.work) for name, file in rank.items()}

    def shards(self):
        return [name for name in SHARDS if name in self.rows[0]]


def groups(number_of):
    names = {}
    for name, number in number_of.items():
        names.setdefault(number, []).append(name)
    return sorted(sorted(n) for n in names.values())


def check(job, what):
    for r, rank in enumerate(job.work):
        folder, numbers, links, names = f"{JOB}/{r}", {}, {}, {job.path(n): n for n in SHARDS + PLAIN}
        for top, _, files in os.walk(folder):
            for file in files:
                path = os.path.join(top, file)
                name, st = names[os.path.relpath(path, folder)], os.stat(path)
                numbers[name], links[name] = st.st_ino, st.st_nlink
        assert set(numbers) == set(rank), (what, r, sorted(numbers), sorted(rank))
        for name, file in rank.items():
            counts["names"] += 1
            found = read(f"{folder}/{job.path(name)}")
            assert found == file.values, (what, r, name, found[:4], file.values[:4])
        found, want = groups(numbers), groups({name: file.number for name, file in rank.items()})
        assert found == want, (what, r, found, want)
        for same in want:
            assert {links[n] for n in same} == {len(same)}, (what, r, same, [links[n] for n in same])


def check_committed(job, what):
    for name in job.shards():
        found = read(f"{JOB}/.full/{job.path(name)}")
        assert found == job.whole(name), (what, ".full", name, found[:4], job.whole(name)[:4])
    kept = sorted(set(job.versions) & {int(n) for n in os.listdir(f"{JOB}/.v") if n.isdigit()})
    for number in rng.sample(kept, min(2, len(kept))):
        for (r, path), values in job.versions[number].items():
            assert read(f"{JOB}/.v/{number}/{r}/{path}") == values, (what, number, r, path)


def same_everywhere(job):
    """Names of files of tensors that all ranks have, with parts of one size, or none has."""
    for name in SHARDS:
        sizes = {len(rank[name].values) if name in rank else None for rank in job.work}
        if len(sizes) > 1:
            return False
    return any(name in job.work[0] for name in SHARDS)


def at(job, r, name):
    path = f"{JOB}/{r}/{job.path(name)}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path


def unlink(job, r, name):
    os.unlink(at(job, r, name))
    del job.work[r][name]


def put_away(job, r, name):
    if name in job.work[r]:
        unlink(job, r, name)


def make(job, name):
    for r, rank in enumerate(job.work):
        put_away(job, r, name)
        rank[name] = File(job.fresh())
        write(at(job, r, name), rank[name].values)


def over(job, name):
    for r, rank in enumerate(job.work):
        if name in rank:
            rank[name].write(job.fresh(rank[name].values))
            write(at(job, r, name), rank[name].values, "r+b")


def has_other_size(job, old, new):
    """A tensor has the same shape in all versions."""
    return new in SHARDS and any(len(rank[old].values) != 48 // job.tp for rank in job.work if old in rank)


def tie(job, old, new):
    """Links, or, on some ranks, copies."""
    for r, rank in enumerate(job.work):
        if old not in rank or old == new or rank.get(new) is rank[old]:
            continue
        put_away(job, r, new)
        if rng.random() < 0.8:
            os.link(at(job, r, old), at(job, r, new))
            rank[new] = rank[old]
        else:
            shutil.copyfile(at(job, r, old), at(job, r, new))
            rank[new] = rank[old].copy()


def move(job, old, new):
    for r, rank in enumerate(job.work):
        if old not in rank or old == new or rank.get(new) is rank[old]:
            continue
        os.rename(at(job, r, old), at(job, r, new))
        rank[new] = rank.pop(old)


def turn_folder(job):
    """The folder s of all ranks gets another name."""
    counts["folders"] += 1
    was, job.folder = job.folder, "z" if job.folder == "s" else "s"
    for r, _ in enumerate(job.work):
        os.makedirs(f"{JOB}/{r}/{was}", exist_ok=True)
        if os.path.isdir(f"{JOB}/{r}/{job.folder}"):
            os.rmdir(f"{JOB}/{r}/{job.folder}")
        os.rename(f"{JOB}/{r}/{was}", f"{JOB}/{r}/{job.folder}")


def change(job):
    names = [n for n in SHARDS + PLAIN if n in job.work[0]]
    any_name = rng.choice(SHARDS + PLAIN)
    what = rng.choices(("make", "over", "tie", "move", "remove", "folder"), (2, 3, 6, 3, 2, 1))[0] if names else "make"
    old = rng.choice(names) if names else None
    if what in ("tie", "move") and has_other_size(job, old, any_name):
        what = "over"
    words = {"make": any_name, "over": old, "remove": old, "folder": ""}.get(what, f"{old} {any_name}")
    if what == "make":
        make(job, any_name)
    elif what == "over":
        over(job, old)
    elif what == "tie":
        tie(job, old, any_name)
    elif what == "move":
        move(job, old, any_name)
    elif what == "folder":
        turn_folder(job)
    else:
        for r, rank in enumerate(job.work):
            if old in rank:
                unlink(job, r, old)
    return f"{what} {words}"


def head():
    with open(f"{JOB}/.ctl/versions", encoding="utf-8") as f:
        return next(int(line.split("\t")[0].rstrip("*")) for line in f if "*" in line.split("\t")[0])


def clean(job):
    """Nothing is left that a commit would refuse: names that only some ranks have, or with parts of several sizes."""
    for name in SHARDS:
        sizes = {len(rank[name].values) if name in rank else None for rank in job.work}
        if len(sizes) > 1:
            for r, rank in enumerate(job.work):
                if name in rank:
                    unlink(job, r, name)
    if not same_everywhere(job):
        make(job, SHARDS[0])


def main():
    job, log = Job(2), []
    for step in range(STEPS):
        before = job.names()
        log = [change(job) for _ in range(rng.randrange(1, 7))]
        what = f"seed {SEED}, step {step}, tp={job.tp}: {'; '.join(log)}"
        check(job, what)
        clean(job)
        why = control("commit", f"step={step} kept=yes") # a rank whose name was moved has not written its part
        if why and "nothing was written" in why and job.names() == before:
            continue
        assert why is None, (what, why)
        counts["commits"] += 1
        job.commit()
        check(job, what + "; commit")
        check_committed(job, what + "; commit")
        job.versions[head()] = {(r, job.path(n)): f.values for r, rank in enumerate(job.work) for n, f in rank.items()}
        if rng.random() < 0.4:
            tp = rng.choice((1, 2, 3, 4))
            if control("topology", f"tp={tp} plain=drop") is None:
                counts["topologies"] += 1
                job.turn(tp)
            else:
                counts["refused"] += 1
            check(job, f"{what}; then tp={tp}")
            check_committed(job, f"{what}; then tp={tp}")
    print(", ".join(f"{v} {k}" for k, v in counts.items() if v))


main()
