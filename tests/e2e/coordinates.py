"""JOB-FOLDER SEED STEPS: what ranks show at topologies under which it was not written, compared with a model of rules B1 and B2 of
docs/tree.md: random files, links of both kinds, folders and attributes in ranks' folders, commits, topologies, .as.

A rank shows what the rank with its coordinates had when the last commit was made; one whose coordinates there were not shows what was
the same in all ranks.  A topology under which something would be shown by no rank is refused, unless it says plain=drop.
"""
import itertools
import os
import random
import stat
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

JOB, SEED, STEPS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
AXES = ("tp", "dp", "pp")  # the first one changes fastest
TOPOLOGIES = [dict(zip(AXES, d)) for d in itertools.product((1, 2, 3), (1, 2, 3), (1, 2)) if d[0] * d[1] * d[2] <= 6]
WHOLE = np.arange(12 * 2, dtype="float32").reshape(12, 2)
PATHS = ["a", "b.bin", "sub/c", "sub/d", "sub/deep/e", "other/f", "ckpt/g", "ckpt/h"]
SHARD = "ckpt/model.safetensors"
FOLDERS = ["sub", "sub/deep", "other", "empty", "ckpt"]
rng = random.Random(SEED)
blobs = itertools.count()
counts = {"commits": 1, "topologies": 0, "refused": 0, "presentations": 0, "linked names elsewhere": 0, "renamed": 0}


def text(topology):
    return " ".join(f"{a}={topology[a]}" for a in AXES)


def size(topology):
    return topology["tp"] * topology["dp"] * topology["pp"]


def coordinates(topology, rank):
    at = {}
    for a in AXES:
        at[a] = rank % topology[a]
        rank //= topology[a]
    return at


def rank_of(topology, at):
    rank, step = 0, 1
    for a in AXES:
        rank += at[a] * step
        step *= topology[a]
    return rank


def source(topology, rank, rows):
    at = coordinates(topology, rank)
    return rank_of(rows, at) if all(at[a] < rows[a] for a in AXES) else None


class Model:
    """trees: rank -> path -> entry; an entry is ("d",), ("l", target) or ("f", blob, bytes, mode, {attribute: value}, inode).
    shards: rank -> attributes of its file of tensors."""

    def __init__(self, topology):
        self.rows, self.trees = topology, {r: {"ckpt": ("d",)} for r in range(size(topology))}
        self.shards = {r: {} for r in self.trees}

    def common(self):
        trees = list(self.trees.values())
        shown = {}
        for path in sorted(trees[0]):
            entries = [t.get(path) for t in trees]
            if None in entries or len({e[:2] for e in entries}) > 1:
                continue
            first = entries[0]
            if first[0] == "f":
                mode = first[3]
                for e in entries[1:]:
                    mode &= e[3]
                attributes = {k: v for k, v in first[4].items() if all(e[4].get(k) == v for e in entries)}
                first = (*first[:3], mode, attributes, tuple(e[5] for e in entries))
            shown[path] = first
        return shown

    def show(self, topology, rank):
        s = source(topology, rank, self.rows)
        return dict(self.trees[s]) if s is not None else self.common()

    def show_shard(self, topology, rank):
        s = source(topology, rank, self.rows)
        if s is not None:
            return dict(self.shards[s])
        return {k: v for k, v in self.shards[0].items() if all(a.get(k) == v for a in self.shards.values())}

    def lost(self, before, after):
        """Files and links that ranks show now and none would then."""
        seen = {source(before, r, self.rows) for r in range(size(before))}
        stay = {source(after, r, self.rows) for r in range(size(after))}
        common = self.common()
        return [(s, p) for s in sorted(seen - stay - {None}) for p, e in self.trees[s].items() if e[0] != "d" and p not in common]


def put(name, words):
    fd = os.open(f"{JOB}/.ctl/{name}", os.O_WRONLY)
    try:
        os.write(fd, words.encode())
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def error():
    with open(f"{JOB}/.ctl/error", encoding="utf-8") as f:
        return f.read()


def groups(inode_of):
    """The sets of names that are one file."""
    names = {}
    for path, inode in inode_of.items():
        names.setdefault(inode, set()).add(path)
    return sorted(sorted(n) for n in names.values())


def look(folder):
    """What a rank's folder shows, but for the tensors; and the names that are one file."""
    found, inodes, links = {}, {}, {}
    for top, folders, files in os.walk(folder):
        for name in folders + files:
            full = os.path.join(top, name)
            path, st = os.path.relpath(full, folder), os.lstat(full)
            if path == SHARD:
                continue
            if stat.S_ISLNK(st.st_mode):
                found[path] = ("l", os.readlink(full))
            elif stat.S_ISDIR(st.st_mode):
                found[path] = ("d",)
                subfolders = sum(1 for n in os.scandir(full) if n.is_dir(follow_symlinks=False))
                assert st.st_nlink == 2 + subfolders, (full, st.st_nlink, subfolders)
            else:
                with open(full, "rb") as f:
                    data = f.read()
                if len(data) != st.st_size:
                    again = os.lstat(full)
                    sys.exit(f"{full}: stat said {st.st_size} bytes (number {st.st_ino}), then there were {len(data)}, now {again.st_size} ({again.st_ino})")
                inodes[path], links[path] = st.st_ino, st.st_nlink
                found[path] = ("f", data, stat.S_IMODE(st.st_mode), {a: os.getxattr(full, a) for a in os.listxattr(full)})
    names = groups(inodes)
    for n in names:
        assert all(links[path] == len(n) for path in n), (folder, n, [links[path] for path in n])
    return found, names


def brief(entry):
    return entry and (entry if entry[0] != "f" else ("f", len(entry[1]), hash(entry[1]) % 1000, *entry[2:]))


def compare(model, folder, topology, what):
    ranks = sorted((n for n in os.listdir(folder) if n.isdigit()), key=int)
    assert len(ranks) == size(topology), (what, ranks)
    for r in range(size(topology)):
        shown = model.show(topology, r)
        want = {p: e if e[0] != "f" else ("f", e[2], e[3], e[4]) for p, e in shown.items()}
        linked = groups({p: e[5] for p, e in shown.items() if e[0] == "f"})
        want.setdefault("ckpt", ("d",))  # the folder of the tensors
        found, names = look(f"{folder}/{r}")
        if found != want:
            for p in sorted(set(want) | set(found)):
                if want.get(p) != found.get(p):
                    print(f"  {p}: found {brief(found.get(p))}, want {brief(want.get(p))}")
            sys.exit(f"{what}, rank {r} of {text(topology)} (rows of {text(model.rows)}): other files; seed {SEED}")
        if names != linked:
            sys.exit(f"{what}, rank {r} of {text(topology)} (rows of {text(model.rows)}): links {names}, want {linked}; seed {SEED}")
        if source(topology, r, model.rows) != r:
            counts["linked names elsewhere"] += sum(len(n) for n in names if len(n) > 1)
        part = load_file(f"{folder}/{r}/{SHARD}")["w"]
        attributes = {a: os.getxattr(f"{folder}/{r}/{SHARD}", a) for a in os.listxattr(f"{folder}/{r}/{SHARD}")}
        if attributes != model.show_shard(topology, r):
            sys.exit(f"{what}, rank {r} of {text(topology)} (rows of {text(model.rows)}): {SHARD} has {attributes}, want {model.show_shard(topology, r)}; seed {SEED}")
        cut = WHOLE.shape[0] // topology["tp"]
        at = coordinates(topology, r)["tp"]
        assert np.array_equal(part, WHOLE[cut * at : cut * (at + 1)]), (what, r)


def parents(tree, path, root):
    for i, c in enumerate(path):
        if c == "/" and path[:i] not in tree:
            os.mkdir(f"{root}/{path[:i]}")
            tree[path[:i]] = ("d",)


def remove(tree, path, root):
    if tree.get(path, ("",))[0] in ("f", "l"):
        os.unlink(f"{root}/{path}")
        del tree[path]


def write(trees, ranks, path, data, mode):
    for r in ranks:
        if trees[r].get(path, ("",))[0] == "d":
            return
    for r in ranks:
        root = f"{JOB}/{r}"
        parents(trees[r], path, root)
        remove(trees[r], path, root)
        with open(f"{root}/{path}", "wb") as f:
            f.write(data)
        os.chmod(f"{root}/{path}", mode)
        trees[r][path] = ("f", next(blobs), data, mode, {}, next(blobs))


def share(trees, first):
    """What all ranks wrote equal, under one name, since blob `first` is one blob, of all names that the file has."""
    shared = {}
    for path in sorted(set(trees[0])):
        entries = [t.get(path, ("",)) for t in trees.values()]
        if all(e[0] == "f" and e[1] >= first and e[2] == entries[0][2] for e in entries):
            shared[path] = entries[0][1]
    for t in trees.values():
        blob = {}
        for path in sorted(shared):
            if blob.get(t[path][5], t[path][1]) == t[path][1]:
                blob[t[path][5]] = shared[path]
        for path, e in t.items():
            if e[0] == "f" and e[5] in blob:
                t[path] = ("f", blob[e[5]], *e[2:])


def set_all(tree, path, *to):
    """Changes a file under all its names."""
    inode = tree[path][5]
    for p, e in tree.items():
        if e[0] == "f" and e[5] == inode:
            tree[p] = (*e[:3], *to, inode)


def set_shard(attributes, path):
    name = f"user.{rng.choice('st')}"
    if name in attributes and rng.random() < 0.3:
        os.removexattr(path, name)
        del attributes[name]
    else:
        attributes[name] = rng.choice((b"one", b"two"))
        os.setxattr(path, name, attributes[name])


def change(trees, shards):
    """One change, of one rank or of all."""
    everybody = rng.random() < 0.4
    ranks = sorted(trees) if everybody else [rng.choice(sorted(trees))]
    what = rng.choice(("write", "write", "write", "link", "folder", "remove", "rename", "rename", "turn", "rmtree", "mode", "attribute", "hard", "hard", "shard"))
    path = rng.choice(PATHS)
    if what == "write":
        write(trees, ranks, path, rng.randbytes(rng.choice((0, 8, 100, 9000) if everybody else (8, 100, 9000))), rng.choice((0o644, 0o600, 0o755)))
        return
    target = f"t{rng.randrange(4)}"
    folder, other = rng.choice(FOLDERS), rng.choice(PATHS)
    value = rng.randbytes(8)
    for r in ranks:
        tree, root = trees[r], f"{JOB}/{r}"
        if what == "shard":
            set_shard(shards[r], f"{root}/{SHARD}")
        elif what == "link" and tree.get(path, ("",))[0] != "d":
            parents(tree, path, root)
            remove(tree, path, root)
            os.symlink(target, f"{root}/{path}")
            tree[path] = ("l", target)
        elif what == "folder" and folder not in tree:
            parents(tree, folder, root)
            os.mkdir(f"{root}/{folder}")
            tree[folder] = ("d",)
        elif what == "remove":
            remove(tree, path, root)
        elif what == "rename":
            here = [p for p in sorted(tree) if tree[p][0] != "d"]
            path = rng.choice(here) if here else ""
            if path and tree.get(other, ("",))[0] != "d" and tree[path] is not tree.get(other):
                parents(tree, other, root)
                same = tree[path][0] == "f" and tree[path][5] == tree.get(other, ("",) * 6)[-1]
                os.rename(f"{root}/{path}", f"{root}/{other}")
                if not same:  # else rename(2) does nothing
                    tree[other] = tree.pop(path)
                counts["renamed"] += 1
        elif what == "turn" and folder in tree and folder != "ckpt" and "turned" not in tree:
            os.rename(f"{root}/{folder}", f"{root}/turned")
            counts["renamed"] += 1
            for p in [p for p in tree if p == folder or p.startswith(folder + "/")]:
                tree["turned" + p[len(folder):]] = tree.pop(p)
        elif what == "rmtree" and folder in tree and folder != "ckpt":
            for p in sorted((p for p in tree if p.startswith(folder + "/")), key=len, reverse=True):
                os.rmdir(f"{root}/{p}") if tree[p][0] == "d" else os.unlink(f"{root}/{p}")
                del tree[p]
            os.rmdir(f"{root}/{folder}")
            del tree[folder]
        elif what == "mode" and tree.get(path, ("",))[0] == "f":
            os.chmod(f"{root}/{path}", 0o640)
            set_all(tree, path, 0o640, tree[path][4])
        elif what == "attribute" and tree.get(path, ("",))[0] == "f":
            os.setxattr(f"{root}/{path}", "user.x", value)
            set_all(tree, path, tree[path][3], {"user.x": value})
        elif what == "hard" and tree.get(path, ("",))[0] == "f" and tree.get(other, ("",))[0] != "d" and other != path:
            os.link(f"{root}/{path}", f"{root}/.new")
            parents(tree, other, root)
            remove(tree, other, root)
            os.rename(f"{root}/.new", f"{root}/{other}")
            tree[other] = tree[path]


def main():
    os.mkdir(JOB)
    now = rng.choice(TOPOLOGIES)
    put("layout", "mesh tp dp pp\nw tp=0\n") or sys.exit(error())
    put("config", "keep=3") or sys.exit(error())
    put("topology", text(now)) or sys.exit(error())
    for r in range(size(now)):
        os.makedirs(f"{JOB}/{r}/ckpt")
        cut = WHOLE.shape[0] // now["tp"]
        at = coordinates(now, r)["tp"]
        save_file({"w": WHOLE[cut * at : cut * (at + 1)].copy()}, f"{JOB}/{r}/{SHARD}")
    model = Model(now)
    put("commit", "step=0") or sys.exit(error())
    for step in range(1, STEPS + 1):
        trees = {r: model.show(now, r) for r in range(size(now))}
        shards = {r: model.show_shard(now, r) for r in range(size(now))}
        for t in trees.values():
            t.setdefault("ckpt", ("d",))
        first = next(blobs)
        if rng.random() < 0.6:
            for _ in range(rng.randrange(1, 12)):
                change(trees, shards)
            if put("commit", f"step={step}"):
                share(trees, first)
                model.rows, model.trees, model.shards = now, trees, shards
                counts["commits"] += 1
            elif "nothing was written" not in error():
                sys.exit(f"commit: {error()}; seed {SEED}")
            else:
                put("discard", "all")
        compare(model, JOB, now, f"step {step}, after a commit")
        other = rng.choice(TOPOLOGIES)
        compare(model, f"{JOB}/.as/{text(other).replace(' ', ',')}", other, f"step {step}, .as")
        counts["presentations"] += 1
        after = rng.choice(TOPOLOGIES)
        lost = model.lost(now, after) if after != now else []
        taken = put("topology", text(after))
        if taken != (not lost):
            sys.exit(f"step {step}: {text(now)} to {text(after)} was {'taken' if taken else 'refused'}, lost: {lost}: {error()}; seed {SEED}")
        if not taken:
            counts["refused"] += 1
            put("topology", text(after) + " plain=drop") or sys.exit(error())
        counts["topologies"] += 1
        now = after
        compare(model, JOB, now, f"step {step}, after a topology")
    print(", ".join(f"{n} {what}" for what, n in counts.items()))


main()
