# SPDX-License-Identifier: Apache-2.0
"""Ranks of several users, with files of several modes.

    modes.py save JOB SAMPLE         each rank writes its files as its user
    modes.py look JOB FOLDER...      a line for each file below these folders: path, uid, gid, mode
    modes.py check JOB FOLDER...     the same files, opened by each user: may they?  By owner, group and mode alone
"""
import os
import stat
import sys

# rank: user, mode of its folder, of model, optimizer, notes, and what the first three are committed with
RANKS = {
    0: (1001, 0o700, 0o600, 0o644, 0o644, (0o600, 0o600, 0o600)),
    1: (1001, 0o755, 0o640, 0o644, 0o640, (0o640, 0o644, 0o640)),
    2: (1002, 0o755, 0o644, 0o644, 0o604, (0o644, 0o644, 0o604)),
    3: (1002, 0o750, 0o644, 0o664, 0o600, (0o640, 0o660, 0o600)),
}
USERS = (1000, 1001, 1002, 1003)


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
    _, folder, model, optimizer, notes, _ = RANKS[rank]
    at = f"{job}/{rank}"
    os.mkdir(at)
    put(at + "/model.safetensors", sample["model"], model)
    put(at + "/optimizer.safetensors", sample["optimizer"], optimizer)
    put(at + "/notes.txt", b"the same on all ranks", notes)
    put(at + "/rng.bin", b"%d" % rank * 100, model)
    os.chmod(at, folder)
    return True


def save(job, source):
    for rank in RANKS:
        sample = {n: get(f"{source}/{rank}/{n}.safetensors") for n in ("model", "optimizer")}
        assert as_user(RANKS[rank][0], save_rank, job, sample, rank)


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


def check(job, folders):
    """Root's look at the attributes before says who may; the kernel must say the same."""
    nr = 0
    for path in files(job, folders):
        st = os.stat(f"{job}/{path}")
        above = [os.stat(job + "/" + "/".join(path.split("/")[:i])) for i in range(path.count("/") + 1)]
        for user in USERS:
            def bits(s):
                return s.st_mode >> (6 if s.st_uid == user else 3 if s.st_gid == user else 0) & 7
            want = bits(st) & 4 != 0 and all(bits(s) & 1 for s in above)
            found = as_user(user, can_open, f"{job}/{path}", os.O_RDONLY)
            assert found == want, f"user {user} {'may' if found else 'may not'} read '{path}' ({oct(st.st_mode)} of {st.st_uid})"
            nr += found
    print(f"{nr} opens were allowed")


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2], *([sys.argv[3]] if sys.argv[1] == "save" else [sys.argv[3:]]))
