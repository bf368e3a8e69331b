"""Files, folders and names beside libfuse's passthrough_hp, over the same file system, in turns."""
import contextlib
import json
import os
import subprocess
import time

from harness import ROOT, TOOL, Disk, Mount, Sample, pick, run, until

PASSTHROUGH = os.path.join(ROOT, ".deps/bench/passthrough_hp")
HP = "libfuse's passthrough_hp"
WANT = 0.7
FILES_A_FOLDER = 100


@contextlib.contextmanager
def passthrough(d):
    """A folder of the disk, mounted by passthrough_hp."""
    source, at = os.path.join(d.path, "plain"), os.path.join(d.folder, "passthrough")
    os.makedirs(source)
    os.makedirs(at)
    daemon = subprocess.Popen([PASSTHROUGH, "--foreground", source, at], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: os.path.ismount(at), 10)
        yield at
    finally:
        run("umount", "-l", at, check=False)
        daemon.wait(10)


def timed(*words):
    began = time.perf_counter()
    run(*words)
    return time.perf_counter() - began


def archive(folder, files):
    """A tar of so many files of 1,000 bytes, in folders of 100."""
    source = os.path.join(folder, "source")
    for i in range(files):
        at = os.path.join(source, str(i // FILES_A_FOLDER))
        if i % FILES_A_FOLDER == 0:
            os.makedirs(at)
        with open(os.path.join(at, str(i)), "wb") as f:
            f.write(b"%d\n" % i * (1000 // len(b"%d\n" % i)))
    run("tar", "-C", source, "-cf", os.path.join(folder, "files.tar"), ".")
    run("rm", "-rf", source)
    return os.path.join(folder, "files.tar")


def programs(folder, tar, after=None):
    """Seconds of what real programs do with a folder of many files; `after` is called when it is there."""
    at = os.path.join(folder, "tree")
    os.mkdir(at)
    took = {"tar -x": timed("tar", "-C", at, "-xf", tar)}
    took["find -newer (stat of all)"] = timed("find", at, "-newer", tar, "-size", "+100k")
    took["rm -r"] = timed("rm", "-r", at)
    os.mkdir(at)
    run("tar", "-C", at, "-xf", tar)
    if after:
        after()
        took["the first find after a commit"] = timed("find", at, "-newer", tar, "-size", "+100k")
        took["find again"] = timed("find", at, "-newer", tar, "-size", "+100k")
    took["rm -r after a commit"] = timed("rm", "-r", at)
    return took


def clone(folder):
    at = os.path.join(folder, "clone")
    took = timed("git", "clone", "-q", ROOT, at)
    run("rm", "-rf", at)
    return took


def add(report, what, ours, theirs, d, want=WANT, detail=""):
    """Of lists of dictionaries of seconds; `theirs` may lack some."""
    for name in ours[0]:
        if name not in theirs[0]:
            continue
        a, b = (Sample([r[name] for r in side], 1, d.fs, "warm") for side in (ours, theirs))
        report.ratio(f"{what}{name}", HP, a, b, want, detail or f"{a.median * 1e3:.0f} ms against {b.median * 1e3:.0f} ms")


def names(report, a):
    if a.check and not os.access(PASSTHROUGH, os.X_OK):
        report.skip("names", "without libfuse's passthrough_hp, which tools/bench --long builds")
        return
    files = pick(a, 10000, 1000, 100)
    with Disk("disk") as d, Mount(d, "names") as m, passthrough(d) as hp:
        m.job("job", "use replicated", "dp=1")
        rank = os.path.join(m.at, "job/0")
        os.makedirs(rank, exist_ok=True)
        for size in 0, 1000:
            ours, theirs = [], []
            for _ in range(a.reps + 1):
                for side, folder in ((theirs, hp), (ours, rank)):
                    side.append(json.loads(run(TOOL["names"], folder, files, size)))
            add(report, f"{files} {'empty files' if size == 0 else f'files of {size} bytes'}: ", ours[1:], theirs[1:], d)
        tar, ours, theirs = archive(d.folder, files), [], []
        for i in range(a.reps + 1):
            theirs.append(programs(hp, tar))
            ours.append(programs(rank, tar, lambda step=i + 1: m.commit("job", step)))
        for r in theirs:  # for passthrough_hp nothing changes
            r["the first find after a commit"] = r["find again"] = r["find -newer (stat of all)"]
        add(report, f"{files} files of 1,000 bytes: ", ours[1:], theirs[1:], d)
        ours, theirs = [], []
        for _ in range(a.reps + 1):
            theirs.append({"git clone": clone(hp)})
            ours.append({"git clone": clone(rank)})
        add(report, "", ours[1:], theirs[1:], d, 1 / 1.5)


def commits(report, a):
    """What a commit and a topology cost beside many plain files."""
    files = pick(a, 10000, 1000, 100)
    with Disk("disk") as d, Mount(d, "commits") as m:
        m.job("job", "use replicated", "dp=1", "keep=2 materialize=never")
        rank = os.path.join(m.at, "job/0")
        os.makedirs(rank, exist_ok=True)
        many, one = [], []
        for i in range(a.reps):
            folder = os.path.join(rank, f"part{i}")
            os.mkdir(folder)
            for k in range(files):
                with open(os.path.join(folder, f"{k}"), "wb") as f:
                    f.write(b"x" * 100)
            many.append(timed_commit(m, 2 * i + 1))
            with open(os.path.join(rank, "one"), "wb") as f:
                f.write(b"%d" % i)
            one.append(timed_commit(m, 2 * i + 2))
        many, one = Sample(many, 1, d.fs, "warm"), Sample(one, 1, d.fs, "warm")
        report.add(f"commit of {files} new files of 100 bytes", "", round(many.median, 3), "s", 1, "low", (many,))
        report.add(f"commit of one file beside {files * a.reps}", "", round(one.median * 1e3, 1), "ms", None, "low", (one,))


def timed_commit(m, step):
    began = time.perf_counter()
    m.commit("job", step)
    return time.perf_counter() - began

