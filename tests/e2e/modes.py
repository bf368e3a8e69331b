# SPDX-License-Identifier: Apache-2.0
"""Ranks of several users, with files of several modes.

    modes.py save JOB SAMPLE         each rank writes its files as its user
    modes.py look JOB FOLDER...      a line for each file below these folders: path, uid, gid, mode
    modes.py check JOB SAMPLE FOLDER... [closed=RANK]
                                     the same files, opened by each user: may they?  By owner, group and mode alone; and
                                     nobody reads what the ranks' folders and files did not let him read.  closed: its owner
                                     has changed the mode of this rank's folder to 0700
"""
import numpy
import os
import stat
import sys

# rank: user, mode of its folder, of model, optimizer, notes
RANKS = {
    0: (1001, 0o700, 0o600, 0o644, 0o644),
    1: (1001, 0o755, 0o640, 0o644, 0o640),
    2: (1002, 0o755, 0o644, 0o644, 0o604),
    3: (1002, 0o750, 0o644, 0o664, 0o600),
}
OWNER = 1000  # of the job
USERS = (OWNER, 1001, 1002, 1003)


def as_user(uid, f, *args):
    """What f(*args) returns when a process of this user calls it, true or false."""
    pid = os.fork()
    if pid == 0:
        status = 2
        try:
            os.umask(0)
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            status = 0 if f(*args) else 1
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status < 2, (uid, f.__name__, args)
    return status == 0


def put(path, data, mode):
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as f:
        f.write(data)


def get(path):
    with open(path, "rb") as f:
        return f.read()


def save_rank(job, sample, rank):
    _, folder, model, optimizer, notes = RANKS[rank]
    at = f"{job}/{rank}"
    os.mkdir(at)
    for name, data, mode in written(sample, rank):
        put(f"{at}/{name}", data, mode)
    os.chmod(at, folder)
    return True


def written(sample, rank):
    _, _, model, optimizer, notes = RANKS[rank]
    yield "model.safetensors", sample[rank]["model"], model
    yield "optimizer.safetensors", sample[rank]["optimizer"], optimizer
    yield "notes.txt", b"the same on all ranks", notes
    yield "rng.bin", b"%d" % rank * 100, model


def read_sample(source):
    return {r: {n: get(f"{source}/{r}/{n}.safetensors") for n in ("model", "optimizer")} for r in RANKS}


def save(job, source):
    sample = read_sample(source)
    for rank in RANKS:
        assert as_user(RANKS[rank][0], save_rank, job, sample, rank)


def words(data, name):
    """The different words of 8 bytes in a file, without the header of tensors."""
    if name.endswith(".safetensors"):
        data = data[8 + int.from_bytes(data[:8], "little"):]
    return numpy.unique(numpy.frombuffer(data[:len(data) & ~7], "<u8"))


def hidden(sample, user, closed):
    """The words that are in no file which this user could read as the ranks wrote it."""
    seen, unseen = [], []
    for rank, (owner, folder, *_) in RANKS.items():
        shift = 6 if owner == user else 0
        folder = 0o700 if rank == closed else folder
        for name, data, mode in written(sample, rank):
            may = mode >> shift & 4 and folder >> shift & 1
            (seen if may else unseen).append(words(data, name))
    return numpy.setdiff1d(numpy.concatenate(unseen), numpy.concatenate(seen))


def files(job, folders):
    for folder in folders:
        for d, dirs, names in os.walk(f"{job}/{folder}"):
            dirs.sort()
            for n in sorted(names):
                yield os.path.relpath(f"{d}/{n}", job)


def look(job, folders):
    for path in files(job, folders):
        st = os.stat(f"{job}/{path}")
        print(path, st.st_uid, st.st_gid, oct(stat.S_IMODE(st.st_mode))[2:])


def can_open(path, flags):
    try:
        os.close(os.open(path, flags))
    except PermissionError:
        return False
    return True


def check(job, source, folders, closed=None):
    """Root's look at the attributes before says who may; the kernel must say the same."""
    sample = read_sample(source)
    # a file that several owners' bytes are in is the job owner's
    unseen = {user: hidden(sample, user, closed) for user in USERS if user != OWNER}
    assert all(len(w) > 1000 for w in unseen.values())
    nr = 0
    for path in files(job, folders):
        st = os.stat(f"{job}/{path}")
        has = words(get(f"{job}/{path}"), path)
        above = [os.stat(job + "/" + "/".join(path.split("/")[:i])) for i in range(path.count("/") + 1)]
        for user in USERS:
            def bits(s):
                return s.st_mode >> (6 if s.st_uid == user else 3 if s.st_gid == user else 0) & 7
            want = bits(st) & 4 != 0 and all(bits(s) & 1 for s in above)
            found = as_user(user, can_open, f"{job}/{path}", os.O_RDONLY)
            assert found == want, f"user {user} {'may' if found else 'may not'} read '{path}' ({oct(st.st_mode)} of {st.st_uid})"
            leaks = len(numpy.intersect1d(has, unseen[user])) if found and user != OWNER else 0
            assert not leaks, f"user {user} finds in '{path}' {leaks} of {len(has)} words that no rank let him read"
            nr += found
    print(f"{nr} opens were allowed")


if __name__ == "__main__":
    what, job, *more = sys.argv[1:]
    closed = int(more.pop()[7:]) if more[-1].startswith("closed=") else None
    {"save": lambda: save(job, more[0]), "look": lambda: look(job, more),
     "check": lambda: check(job, more[0], more[1:], closed)}[what]()
