#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random operations in a job's folders and the same in plain folders: each errno, each answer and whole trees compared.

    tree.py SCALAI FOLDER [--operations N] [--seed S] [--mode plain|no_passthrough|io_uring|hold] [--kill SECONDS] [--xfs]
            [--without STEP,STEP...] [--reduce]

FOLDER is on a file system that is compared with (ext4), and has the store, too (--xfs: the store is on an XFS of its own).
tree_all.py does all modes in turn.  Steps go on in /JOB/0/t and /JOB/t and
in two plain folders.  Every few hundred steps, and after each command (commit, discard, rollback, topology, a mount
anew, dropped caches), both trees are compared: names, types, modes, owners, link counts, sizes, bytes, targets,
attributes, which names are one object, the order of changes; st_ino is one to one with the objects over the run.  A
commit, a topology and back, and a mount anew must change nothing at all, times and numbers included; old versions are
compared with what was committed.  --kill: the daemon is killed every so often (with -o hold).

What a rollback or discard takes away while it is held is compared with what was removed on the plain side.  Not compared: the bytes
and the size of a descriptor opened for reading before somebody's first write after a commit; which of two reasons is told for what cannot be
made in a folder that has vanished (docs/posix.md).

The first difference ends the run: the last steps and the seed are printed.  --reduce: then a few steps that suffice.
"""
import argparse
import collections
import contextlib
import errno
import os
import pprint
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import time

from power import mounts_of_our_own
from tree_calls import REALMS, Side, dents, is_special, moved, moved_alike, order, put, rebuild, unlike, whole
from tree_steps import Steps, written

KEEP = 6  # versions
MODES = {"plain": "", "no_passthrough": "no_passthrough", "io_uring": "io_uring", "hold": "hold"}


OTHER_REASONS = ("EACCES", "EPERM", "ENOTDIR")  # than ENOENT, in a folder that has vanished (docs/posix.md)


class Difference(Exception):
    pass


def get(path):
    with open(path, "rb") as f:
        return f.read().decode(errors="replace")


class Mount:
    def __init__(self, a):
        self.a, self.at, self.store = a, a.folder + "/mnt", a.folder + ("/xfs/store" if a.xfs else "/store")
        os.makedirs(self.at, exist_ok=True)
        if a.xfs:
            os.mkdir(a.folder + "/xfs")
            subprocess.run(["truncate", "-s", "2G", a.folder + "/image"], check=True)
            subprocess.run(["mkfs.xfs", "-q", a.folder + "/image"], check=True)
            subprocess.run(["mount", "-o", "loop", a.folder + "/image", a.folder + "/xfs"], check=True)
        self.killer = None

    def up(self):
        log = open(self.a.folder + "/log", "a")
        o = MODES[self.a.mode]
        words = [self.a.scalai, "mount", "-f", *(["-o", o] if o else []), self.store, self.at]
        self.daemon = subprocess.Popen(words, stderr=log, stdout=log)
        for _ in range(400):
            if self.daemon.poll() is not None:
                raise SystemExit(f"no mount: {get(self.a.folder + '/log')[-2000:]}")
            if os.path.exists(self.at + "/.ctl/health"):
                break
            time.sleep(0.05)
        if self.a.kill:
            self.killer = os.fork()
            if self.killer == 0:
                self.kill_often()

    def kill_often(self):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.alarm(0)
        rng = random.Random(self.a.seed)
        while True:
            time.sleep(rng.uniform(0.5, 1.5) * self.a.kill)
            with contextlib.suppress(OSError, TypeError):
                os.kill(int(re.search(r"^pid: (\d+)", get(self.at + "/.ctl/health"), re.M)[1]), signal.SIGKILL)

    def down(self):
        if self.killer:
            os.kill(self.killer, signal.SIGKILL)
            os.waitpid(self.killer, 0)
            self.killer = None
        for _ in range(100):
            if subprocess.run([self.a.scalai, "umount", self.at], check=False, capture_output=True).returncode == 0:
                break
            time.sleep(0.05)
        try:
            status = self.daemon.wait(30)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            subprocess.run(["umount", "-l", self.at], check=False)
            status = "it does not end"
        if status != 0:
            raise Difference(f"the daemon's status: {status}: {get(self.a.folder + '/log')[-600:]}")


class Slot:
    def __init__(self, is_folder, realm, flags, who):
        self.is_folder, self.realm, self.flags, self.who = is_folder, realm, flags, who
        self.old_bytes = False  # others may write a copy that it does not show
        self.vanished = False   # a rollback took its name

    def writes(self):
        return self.flags & os.O_ACCMODE != os.O_RDONLY


class Run:
    """A job and the plain folders beside it."""

    def __init__(self, a, mount, nr):
        self.a, self.mount, self.job = a, mount, f"{mount.at}/job{nr}"
        self.plain_root = f"{a.folder}/plain/{nr}"
        self.m, self.p = Side(self.job, True), Side(self.plain_root, False)
        self.m.tries = 20 if a.kill else 0
        self.slots, self.listings = {}, {}
        self.number, self.object = {}, {}    # st_ino of an object, and back
        self.again = {}                      # numbers that folders have since they came back
        self.versions, self.written = {}, set()
        self.counts = collections.Counter()
        self.trace = []
        os.mkdir(self.job)
        put(self.job + "/.ctl/layout", "use replicated\nplain *model.pt\n")  # one of the names: its bytes are random
        put(self.job + "/.ctl/topology", "dp=1")
        put(self.job + "/.ctl/config", f"keep={KEEP}\nsync=off")
        for root in (self.job, self.plain_root):
            for realm in REALMS:
                os.makedirs(os.path.join(root, realm.decode()))
        put_file = os.path.join(self.job, "0/t/first"), os.path.join(self.plain_root, "0/t/first")
        for path in put_file:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
        self.command("commit")

    # --- objects ---

    def pair(self, who, ino, what):
        if self.number.setdefault(who, ino) != ino:
            raise Difference(f"{what}: st_ino was {self.number[who]}, is {ino}")
        if self.object.setdefault(ino, who) != who:
            raise Difference(f"{what}: st_ino {ino} was another object's")

    def mounted(self, at=""):
        """A tree of the mount, and what is wrong with it."""
        return self.m.patient(lambda: whole(self.job + at, True))

    def trees(self, what):
        """Compares both, and gives them."""
        (p, _), (m, wrong) = whole(self.plain_root, False), self.mounted()
        wrong += unlike(p, m) or order(p, m)
        if wrong:
            raise Difference(f"{what}: " + "; ".join(wrong[:6]))
        for path, e in p.items():
            self.pair(e.st.who, m[path].st.who, path)
        self.counts["trees"] += 1
        self.counts["objects"] += len(p)
        return p, m

    # --- steps ---

    def act(self, side, name, user, args):
        got = side.do(name, user, args)
        for _ in range(20):
            if got != "EIO" or not self.a.kill:
                break
            self.counts["cut"] += 1  # a request that the kernel was just handing over
            time.sleep(0.05)
            got = side.do(name, user, args)
        return got

    def realm(self, spec):
        return spec[1] if spec[0] == "p" else self.slots[spec[1]].realm

    def in_vanished(self, specs):
        return any(s[0] != "p" and self.slots[s[1]].vanished for s in specs)

    def step(self, step):
        """False: it makes no sense (any more)."""
        name, user, watch, *args = step
        specs = [x for x in args if isinstance(x, tuple) and x and x[0] in ("p", "d", "c")]
        used = [s[1] for s in specs if s[0] != "p"] + ([args[0]] if name.startswith("f_") and name != "f_link" else [])
        used += [args[1]] if name == "f_link" else []
        if any(slot not in self.slots for slot in used) or (name == "close" and args[0] not in self.slots):
            return False
        if name in ("command", "umask", "parts"):
            return getattr(self, name)(*args)
        # not the folder that all happens in
        if (name in ("rmdir", "rmtree") and specs[0][0] == "p" and not specs[0][2]) or (name == "open" and args[3] in used):
            return False
        if name == "open" and args[3] in self.slots:
            self.step(("close", 0, False, args[3]))
        realms = {self.realm(s) for s in specs} | ({self.slots[args[1]].realm} if name == "f_link" else set())
        if len(realms) > 1:
            return self.step_across(name, user, args)
        look = [*specs, *(s[:2] + (os.path.dirname(s[2]),) for s in specs), *used] if watch else []
        begin, m_before, p_before = time.time_ns(), self.m.glance(look), self.p.glance(look)
        who = written(self.p, name, args)
        m, p = self.act(self.m, name, user, args), self.p.do(name, user, args)
        if p == "ENOENT" and m in (*OTHER_REASONS, "EINVAL" if name == "rename" else None) and self.in_vanished(specs):
            m = p
        copied_up = name in ("open", "put") and p in ("opened", 0) and who and who not in self.written
        self.note(name, user, args, m, p)
        if watch:
            m_times, p_times = moved(m_before, self.m.glance(look)), moved(p_before, self.p.glance(look))
            if not all(moved_alike(x, y, begin, copied_up) for x, y in zip(p_times, m_times)):
                raise Difference(f"{name}: whether mtime and ctime of {look} changed: plain {p_times}, mount {m_times}")
        self.after(name, args, p, who, realms)
        return True

    def note(self, name, user, args, m, p):
        self.trace.append(f"{name} {str(args)[:300]} as {user}: {str(p)[:80]}")
        self.counts["steps"] += 1
        self.counts["refused"] += isinstance(p, str) and p.startswith("E")
        if name == "f_stat" and self.slots[args[0]].vanished and self.slots[args[0]].is_folder and hasattr(m, "who"):
            m = m._replace(mtime=p.mtime)  # the plain one was emptied first
        old = name in ("f_read", "f_pread", "f_stat", "f_seek") and self.slots[args[0]].old_bytes
        if hasattr(m, "who") and hasattr(p, "who"):
            if not (m._replace(size=p.size) if old else m).same(p):
                raise Difference(f"{name} {args}: plain {p}, mount {m}")
            self.pair(p.who, m.who, f"{name} {args}")
        elif m != p and not (old and isinstance(m, (bytes, int)) and isinstance(p, (bytes, int))):
            raise Difference(f"{name} {args} as {user}: plain {str(p)[:300]}, mount {str(m)[:300]}")

    def after(self, name, args, p, who, realms):
        if p == "opened" and args[3] is not None:
            fd = self.p.fds[args[3]]
            st = self.p.do("f_stat", 0, (args[3],))
            self.slots[args[3]] = Slot(stat.S_ISDIR(os.fstat(fd).st_mode), realms.pop(), args[1], st.who)
        elif name == "close":
            del self.slots[args[0]]
        who = who or (written(self.p, name, args) if p == "opened" else None)
        if who and not (isinstance(p, str) and p.startswith("E")) and who not in self.written:
            self.written.add(who)
            for s in self.slots.values():
                s.old_bytes |= s.who == who and not s.writes()
        for l in self.listings.values():
            names = set(os.listdir(l["plain"])) if os.fstat(l["plain"]).st_nlink else set()
            l["always"] &= names
            l["ever"] |= names

    def step_across(self, name, user, args):
        """Between a rank's folder and the job's: never."""
        m = self.act(self.m, name, user, args)
        self.trace.append(f"{name} {args} as {user}: across: {m}")
        self.counts["across"] += 1
        if m not in ("EXDEV", "ENOENT", "EEXIST", "ENOTDIR", "EACCES", "EPERM", "ELOOP", "ENAMETOOLONG", "EINVAL", "EISDIR",
                     "ENOTEMPTY", "EBUSY"):
            raise Difference(f"{name} {args} between folders of the rank and the job: {m}")
        return True

    def umask(self, bits):
        os.umask(bits)
        return True

    def parts(self, what, slot):
        """A listing in parts: what was there all the time comes once, what was never there does not come."""
        if what == "begin" and slot not in self.listings and slot in self.slots:
            flags = os.O_RDONLY | os.O_DIRECTORY
            if os.fstat(self.p.fds[slot]).st_nlink == 0:
                return False
            both = [os.open(b".", flags, dir_fd=s.fds[slot]) for s in (self.m, self.p)]
            names = set(os.listdir(both[1]))
            self.listings[slot] = {"mount": both[0], "plain": both[1], "always": names, "ever": set(names), "seen": []}
            return True
        if slot not in self.listings:
            return False
        l = self.listings[slot]
        if what == "again":
            os.lseek(l["mount"], 0, os.SEEK_SET)
            names = set(os.listdir(l["plain"])) if os.fstat(l["plain"]).st_nlink else set()
            l.update(always=names, ever=set(names), seen=[])
            return True
        if what == "end":
            return self.end_listing(slot)
        return self.go_on(slot, l)

    def go_on(self, slot, l):
        try:
            some = [os.fsdecode(n) for n in dents(l["mount"])]
        except FileNotFoundError:
            if os.fstat(l["plain"]).st_nlink:
                raise Difference("a part of a listing: ENOENT") from None
            return self.end_listing(slot)
        except OSError as e:
            if e.errno == errno.EIO and self.a.kill:
                return True
            raise Difference(f"a part of a listing: {e}") from e
        l["seen"] += [n for n in some if n not in (".", "..")]
        if some:
            return True
        seen = collections.Counter(l["seen"])
        wrong = [n for n in l["always"] if seen[n] != 1]
        wrong += [n for n in seen if n not in l["ever"]]
        self.counts["listings"] += 1
        self.end_listing(slot)
        if wrong:
            raise Difference(f"a listing in parts: {[(n, seen[n]) for n in wrong[:5]]}; always {len(l['always'])}")
        return True

    def end_listing(self, slot):
        l = self.listings.pop(slot)
        os.close(l["mount"]), os.close(l["plain"])
        return True

    # --- commands ---

    def control(self, name, text):
        """None, or the error: (errno, sentence)."""
        before = self.head()
        for _ in range(20):
            try:
                put(f"{self.job}/.ctl/{name}", text)
                return None
            except OSError as e:
                if e.errno != errno.EIO or not self.a.kill:
                    return errno.errorcode[e.errno], self.m.patient(lambda: get(self.job + "/.ctl/error")).strip()
                self.counts["cut"] += 1
                time.sleep(0.05)
                if name != "discard" and self.head() != before:
                    return None
        return "EIO", "for a long time"

    def head(self):
        status = self.m.patient(lambda: get(self.job + "/.ctl/status"))
        return int((re.search(r"^version: (\d+)", status, re.M) or [0, 0])[1])

    def command(self, what, *args):
        self.trace.append(f"command {what} {args}")
        self.counts["commands"] += 1
        before = self.trees(f"before {what}") if what != "commit" or self.versions else None
        getattr(self, "do_" + what)(before, *args)
        after = self.trees(f"after {what}")
        if what in ("commit", "mount", "caches") and before:
            self.unchanged(what, before[1], after[1])
        if what == "commit" and self.head() not in self.versions:
            self.versions[self.head()] = tuple({k: e for k, e in t.items() if not is_special(e)} for t in after)
            self.written = set()
        if what in ("commit", "rollback", "topology"):
            there = {int(v) for v in self.m.patient(lambda: os.listdir(self.job + "/.v"))}
            for nr in set(self.versions) - there:
                del self.versions[nr]
        return True

    def unchanged(self, what, a, b):
        for path in a:
            if a[path] != b[path]:
                was, now = a[path]._asdict(), b[path]._asdict()
                raise Difference(f"{what} changed {path}: " + "; ".join(f"{k} {was[k]} -> {now[k]}" for k in was if was[k] != now[k]))

    def do_commit(self, before):
        open_ones = [s for s, o in self.slots.items() if o.writes() and not o.is_folder and
                     os.fstat(self.p.fds[s]).st_nlink and stat.S_ISREG(os.fstat(self.p.fds[s]).st_mode)]
        if self.counts["commands"] % 6:  # a commit that is refused waits for a second first
            for slot in open_ones:
                self.step(("close", 0, False, slot))
            open_ones = []
        for _ in range(1 if open_ones else 60):
            error = self.control("commit", "note=x\n")
            if not error or error[0] != "EBUSY":
                break
            time.sleep(0.02)
        self.counts["commits"] += not error
        self.trace.append(f"commit: {error}; open for writing: {open_ones}")
        if error and error[0] == "EBUSY" and open_ones:
            self.counts["busy"] += 1
        elif error and not (error[0] == "EINVAL" and "nothing" in error[1]):
            raise Difference(f"commit: {error}")
        elif not error and open_ones:
            raise Difference(f"commit while {open_ones} are open for writing")

    def come_back(self, nr, before):
        """The plain side becomes a version again; what is held there and on the mount are the same objects after it."""
        for slot in list(self.listings):
            self.end_listing(slot)
        p, m = self.versions[nr]
        written = {self.number[who] for who in self.written if who in self.number}
        rebuild(self.plain_root, p)
        now, now_m = whole(self.plain_root, False)[0], self.mounted()[0]
        were = {e.st.who for e in before.values()}
        for path, e in now.items():
            ino = m[path].st.who
            while ino in self.again:
                ino = self.again[ino]
            other = now_m[path].st.who if path in now_m else ino
            if other != ino and other not in self.object and (ino not in were or (stat.S_ISREG(int(e.st.mode, 8)) and ino in written)):
                self.again[ino], ino = other, other  # somebody may hold what had this number, and has lost its name
                self.counts["again"] += 1
            self.number[e.st.who], self.object[ino] = ino, e.st.who
        self.written = set()
        place = {self.number[e.st.who]: (path, e.st.who) for path, e in now.items()}
        for slot, o in self.slots.items():
            st = self.act(self.m, "f_stat", 0, (slot,))
            if isinstance(st, str):
                raise Difference(f"fstat of what is held: {st}")
            path, who = place.get(st.who, (None, None))
            o.vanished = st.nlink == 0
            if st.nlink and path:
                self.reopen(slot, o, path)
                o.who = who

    def reopen(self, slot, o, path):
        """What is itself again on the mount."""
        old = self.p.fds[slot]
        self.p.fds[slot] = os.open(os.fsencode(self.plain_root) + b"/" + path, o.flags & (os.O_ACCMODE | os.O_APPEND) | os.O_NONBLOCK)
        if not o.is_folder:
            with contextlib.suppress(OSError):  # no FIFO has a position
                os.lseek(self.p.fds[slot], os.lseek(old, 0, os.SEEK_CUR), os.SEEK_SET)
            o.old_bytes = True
        os.close(old)

    def do_discard(self, before):
        error = self.control("discard", "\n")
        if error:
            raise Difference(f"discard: {error}")
        self.come_back(self.head(), before[1])

    def do_rollback(self, before, back):
        self.do_discard(before)
        before = self.trees("after discard")
        nr = sorted(self.versions)[-1 - back % len(self.versions)]
        error = self.control("rollback", f"{nr}\n")
        if error:
            raise Difference(f"rollback {nr}: {error}")
        self.versions[self.head()] = self.versions[nr]
        self.come_back(nr, before[1])

    def do_topology(self, before):
        self.close_all()
        for side in (self.m, self.p):  # times of folders alone are nothing that a commit takes
            side.do("setxattr", 0, (("p", 0, b""), "user.turn", b"%d" % self.counts["commands"], 0, True))
        before = self.trees("before the commit")
        self.do_commit(before)
        m = self.mounted()[0]
        self.unchanged("commit", before[1], m)
        for text in ("dp=2 plain=drop", "dp=1 plain=drop"):
            error = self.control("topology", text)
            if error:
                raise Difference(f"topology {text}: {error}")
            self.trace.append(f"topology {text}")
        self.unchanged("topology", m, self.mounted()[0])
        self.versions[self.head()] = tuple({k: e for k, e in t.items() if not is_special(e)} for t in (before[0], m))
        self.written = set()

    def do_mount(self, before):
        self.close_all()
        self.mount.down()
        self.mount.up()

    def do_caches(self, before):
        put("/proc/sys/vm/drop_caches", "2")

    def version_unlike(self, nr):
        p = self.versions[nr][0]
        m, wrong = self.mounted(f"/.v/{nr}")
        was = self.versions[nr][1]
        return wrong + unlike(p, m) + [f"{path}: mtime {e.mtime} of a version, was {was[path].mtime}"
                                       for path, e in m.items() if path in was and e.mtime != was[path].mtime]

    def do_compare(self, before):
        for nr in self.versions:
            wrong = self.version_unlike(nr)
            if wrong:
                raise Difference(f".v/{nr}: " + "; ".join(wrong[:6]))
            self.counts["versions"] += 1

    def close_all(self):
        for slot in list(self.listings):
            self.end_listing(slot)
        self.m.close_all(), self.p.close_all()
        self.slots.clear()


def hang(*_):
    raise Difference("the mount does not answer for two minutes")


def play(run, steps):
    """-> the difference, if there is one."""
    try:
        for step in [*steps, ("command", 0, False, "compare")]:
            signal.alarm(120)
            run.step(step)
    except (Difference, OSError) as e:
        return e
    return None


def kind(difference):
    return re.sub(r"b'[^']*'|\d+|\W+", " ", str(difference))[:40]


def reduced(a, mount, steps, wanted):
    """Steps of these that suffice for such a difference."""
    nr, part, tries, said = 1000, max(1, len(steps) // 2), 0, None
    until = time.monotonic() + 120
    while part:
        at = 0
        while at < len(steps):
            if time.monotonic() > until:
                part = 1
                break
            fewer = steps[:at] + steps[at + part:]
            nr, tries = nr + 1, tries + 1
            run = Run(a, mount, nr)
            difference = play(run, fewer)
            if difference and kind(difference) == kind(wanted):
                steps, said = fewer, difference
            else:
                at += part
            run.close_all()
            shutil.rmtree(run.plain_root, ignore_errors=True)
        part //= 2
    print(f"{len(steps)} steps suffice ({tries} tries)")
    pprint.pprint(steps, width=140)
    print(said)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("scalai")
    p.add_argument("folder")
    p.add_argument("--operations", type=int, default=20000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--mode", choices=MODES, default="plain")
    p.add_argument("--xfs", action="store_true")
    p.add_argument("--kill", type=float, default=0)
    p.add_argument("--without", default="", help="names of steps and commands that are left out")
    p.add_argument("--reduce", action="store_true")
    a = p.parse_args()
    a.scalai, a.folder = os.path.abspath(a.scalai), os.path.abspath(a.folder)
    a.kill and a.mode != "hold" and p.error("--kill needs --mode hold")
    shutil.rmtree(a.folder, ignore_errors=True)
    mounts_of_our_own()
    os.makedirs(a.folder + "/plain")
    os.chmod(a.folder, 0o755)
    os.umask(0)
    subprocess.run(["mount", "--bind", a.folder + "/plain", a.folder + "/plain"], check=True)
    subprocess.run(["mount", "-o", "remount,bind,nodev,nosuid", a.folder + "/plain"], check=True)  # as Scalai's are
    signal.signal(signal.SIGALRM, hang)
    mount, done, difference, begin = Mount(a), [], None, time.monotonic()
    mount.up()
    run = None
    try:
        run = Run(a, mount, 0)
        steps = Steps(run, random.Random(a.seed), a.without.split(","))
        while run.counts["steps"] < a.operations:
            signal.alarm(120)
            step = steps.next()
            done.append(step)
            run.step(step)
        run.command("compare")
        run.close_all()
    except (Difference, OSError) as e:
        difference = e
        print("DIFFERENCE:", str(e).replace("x" * 255, "(x * 255)")[:1500])
        print("\n".join(run.trace[-int(os.environ.get("TRACE", 30)):] if run else []).replace("x" * 255, "(x * 255)"))
        print(f"to replay: --seed {a.seed} --operations {a.operations} --mode {a.mode} --kill {a.kill} --without '{a.without}'")
        if run:
            run.close_all()
            if a.reduce:
                reduced(a, mount, done, e)
    finally:
        signal.alarm(0)
        os.chdir("/")
        try:
            mount.down()
            fsck = subprocess.run([a.scalai, "fsck", mount.store], check=False, capture_output=True, text=True)
            if fsck.returncode and not difference:
                difference = f"fsck: {fsck.stdout[-600:]}"
                print("DIFFERENCE:", difference)
        except Difference as e:
            difference = difference or e
            print(e)
        subprocess.run(["umount", a.folder + "/plain", *([a.folder + "/xfs"] if a.xfs else [])], check=False)
    c = run.counts if run else collections.Counter()
    died = get(a.folder + "/log").count("was killed by signal")
    print(f"figure: mode {a.mode}{' on XFS' if a.xfs else ''}, kill {a.kill:g} s, seed {a.seed}: {c['steps']} operations ({c['refused']} refused, {c['across']} across), "
          f"{c['commands']} commands ({c['commits']} commits), {c['trees']} trees, {c['objects']} objects, {c['versions']} old versions, "
          f"{c['listings']} listings in parts, {died} kills, {c['cut'] + (run.m.cut if run else 0)} cut requests, {1 if difference else 0} differences, "
          f"{time.monotonic() - begin:.0f} s")
    return 1 if difference else 0


if __name__ == "__main__":
    sys.exit(main())
