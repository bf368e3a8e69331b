#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
What commands say of how far they are: progress.py commands|scrub|fsck SCALAI MOUNT WORK DAEMON

A command is let run for a moment now and then until it has told what is waited for, so that it takes its time on any machine.
"""
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios

what, program, mount, work, daemon = sys.argv[1:]
MIB = 1 << 20
TENSORS, EACH = 16, 8 * MIB
NUMBERS = r"(\d+) %, ([^,]+), ([\d.]+) of ([\d.]+) MiB, [\d.]+ MiB/s"
FAR = re.compile(rf"(.+): {NUMBERS}(?:, (.+) left)?")
END = re.compile(r"(.+): 100 %, done, ([\d.]+) MiB in \d+ s, [\d.]+ MiB/s")
model = os.path.join(work, "model.safetensors")


def make_model():
    header = {f"w{i}": {"dtype": "U8", "shape": [EACH], "data_offsets": [i * EACH, (i + 1) * EACH]} for i in range(TENSORS)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(model, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for i in range(TENSORS):
            f.write(bytes([i + 1]) * EACH)
    return os.path.getsize(model)


class Command:
    """A command whose stderr is a terminal, or a pipe; its stdout is a file."""

    def __init__(self, *words, terminal=False, columns=0):
        self.out = open(os.path.join(work, "out"), "w+b")
        self.fd, other = pty.openpty() if terminal else os.pipe()
        if columns:
            fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.said, self.alone = b"", words[0] == "fsck"
        self.process = subprocess.Popen([program, *words], stdout=self.out, stderr=other)
        os.close(other)

    def read(self, seconds):
        """Takes what there is; False at the end."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            part = os.read(self.fd, 65536)
        except OSError:  # a terminal that nobody has open any more
            part = b""
        self.said += part
        return bool(part)

    def until(self, enough, pause, may_end=False):
        """Lets it run little by little, or the daemon that it waits for, until it has said enough (or has ended)."""
        pid = self.process.pid if self.alone else int(daemon)
        while not enough(self.said.decode()):
            os.kill(pid, signal.SIGCONT)
            going = self.read(0.002)
            if not going and may_end:
                break
            assert going, f"it has ended, and said {self.said}"
            os.kill(pid, signal.SIGSTOP)
            self.read(pause)
        os.kill(pid, signal.SIGCONT)
        return self

    def end(self, status=0):
        """-> what it said, and what it printed"""
        while self.read(60):
            pass
        assert self.process.wait(60) == status, (self.process.returncode, self.said)
        os.close(self.fd)
        self.out.seek(0)
        return self.said.decode(), self.out.read().decode()


def check(lines, name, what, total, least=2):
    """Of lines that say how far a command is, and of its end: numbers grow, and are those of `total` bytes."""
    found = [FAR.fullmatch(line) for line in lines[:-1]]
    assert len(found) >= least and all(found), lines
    assert {(f[1], f[3]) for f in found} == {(name, what)}, lines
    done = [float(f[4]) for f in found]
    assert done == sorted(done) and int(found[0][2]) < 100, lines
    for f in found:
        assert abs(float(f[5]) - total / MIB) < 1, lines
        assert abs(int(f[2]) - 100 * float(f[4]) / float(f[5])) <= 1, lines
        assert f[6] or f[2] == "100" or float(f[4]) == 0, lines
    last = END.fullmatch(lines[-1])
    assert last and last[1] == name and abs(float(last[2]) - total / MIB) < 1, lines


def drawn(said):
    """-> what was drawn in the line of a terminal, one after the other."""
    assert said.startswith("\r\x1b[K") and said.endswith("\r\n") and said.count("\n") == 1, said
    return [line for line in said[:-2].split("\r\x1b[K") if line]


def rows(said):
    """Lines of a command, but for those that have only a time: of a commit, and before the daemon has counted bytes."""
    return [line for line in said if not re.search(r": \w+, \d+ s$", line)]


def in_lines(name, step, total, *words):
    """With --progress, on a pipe; -> what it printed."""
    said, printed = Command(*words, "--progress").until(lambda s: s.count(" MiB/s") >= 2, 0.3).end()
    check(rows(said.splitlines()), name, step, total)
    return printed


def on_terminal(name, step, total, *words):
    said, printed = Command(*words, terminal=True).until(lambda s: s.count(" MiB/s") >= 2, 0.1).end()
    check(rows(drawn(said)), name, step, total)
    return printed


def fsck(name, step, total, *words):
    """As on_terminal(); fsck may be done before this program gets a processor, and begins again then."""
    said = ""
    while said.count(" of ") < 2:
        if "--rebuild" in words:
            os.replace(store + "/scalai.db", work + "/lost")
        said, printed = Command("fsck", *words, store, terminal=True).until(lambda s: s.count(" of ") >= 2, 0.3, may_end=True).end()
    check(rows(drawn(said)), name, step, total)
    return printed


def quiet(*words):
    said, printed = Command(*words).end()
    assert said == "", said
    return printed


def control(path):
    with open(os.path.join(mount, path)) as f:
        return f.read()


def numbers(text, prefix):
    """-> the numbers of lines that begin so, by the rest of their names; {}: there are none."""
    return {key: float(value) for key, value in re.findall(rf"^{prefix}(\w+): ([\d.]+)$", text, re.M)}


def gauge(name):
    return int(re.search(rf"^{name} (\d+)$", control(".ctl/metrics"), re.M)[1])


def follow(see, going):
    """
    Sees numbers of work until it is over, or other work has begun: they grow, and `going` is their gauge.  -> the total; 0: too few
    were seen of this work
    """
    seen, left, now, before = [], [], see(), None
    while now and (not before or (now["bytes_total"] == before["bytes_total"] and now["bytes_done"] >= before["bytes_done"])):
        assert now["bytes_done"] <= now["bytes_total"], now
        seen.append(now["bytes_done"])
        left.append(gauge(going))
        before, now = now, see()
    if len(set(seen)) < 2 or not any(left):
        return 0
    assert all(n <= before["bytes_total"] for n in left), left
    return before["bytes_total"]


if what == "commands":
    size = make_model()
    held = TENSORS * EACH
    to = ["--topology", "dp=1", "--layout", "replicated"]
    print("import")
    in_lines("import 'a'", "copying", size, "import", "a", model, *to)
    on_terminal("import 'b'", "copying", size, "import", "b", model, *to)
    quiet("import", "c", model, *to)
    narrow = Command("import", "d", model, *to, terminal=True, columns=30).until(lambda s: s.count("\x1b[K") >= 2, 0.1).end()[0]
    assert max(map(len, drawn(narrow))) < 30, narrow
    said = Command("import", "e", os.path.join(work, "none"), *to, "--progress").end(status=1)[0]
    assert said.splitlines() == [f"scalai: cannot read '{work}/none': No such file or directory"], said
    for job in "bcd":
        quiet("delete", os.path.join(mount, job))
    print("verify with a file")
    words = ["verify", "a", "--reference", model]
    text = on_terminal("verify 'a'", "comparing", held, *words)  # before the kernel has kept what it reads
    assert quiet(*words) == text
    said, text = Command(*words, "--json", "--progress").end()
    assert END.fullmatch(said.strip()) and json.loads(text)[0]["result"] == "equal"
    print("verify")
    while "copies: pending" in control("a/.ctl/status"):
        pass
    text = quiet("verify", "a")
    said = ""
    while said.count(" of ") == 0:  # the daemon may have read all before it is asked how far it is: again
        said, printed = Command("verify", "a", terminal=True).until(lambda s: " of " in s, 0.1, may_end=True).end()
        assert printed == text
    check(rows(drawn(said)), "verify 'a'", "verifying", size, least=1)
    total = 0
    while not total:
        running = Command("verify", "a")
        while running.process.poll() is None and not total:
            total = follow(lambda: numbers(control("a/.ctl/status"), "verify_"), "scalai_verify_left_bytes")
        assert running.end()[0] == ""
    assert total == size and gauge("scalai_verify_left_bytes") == 0, total
    shown = ""
    while "verify" not in shown:  # until one was begun before it, and went on
        running = Command("verify", "a")
        shown = Command("status", "-w", "a").end()[1]
        running.end()
    assert re.fullmatch(rf"a: {NUMBERS}(?:, .+ left)?", shown.splitlines()[0])[2] == "verify of version 1", shown
    assert shown.splitlines()[-1] == "a: 100 %, done", shown
elif what == "scrub":
    shown = ""
    while "the store" not in shown:  # what is due is read each second
        shown = Command("status", "-w", "a").end()[1]
    assert re.fullmatch(rf"a: 100 %, done; the store: {NUMBERS}(?:, .+ left)?\n", shown)[2] == "scrubbing", shown
    while not follow(lambda: numbers(control(".ctl/health"), "scrub_"), "scalai_scrub_left_bytes"):
        pass
else:
    store = os.path.join(work, "store")
    blobs = sum(os.path.getsize(os.path.join(at, f)) for at, _, files in os.walk(store + "/blobs") for f in files)
    text = quiet("fsck", store)
    assert text.splitlines()[-1].startswith("clean\t"), text
    print("fsck")
    assert fsck("fsck", "checking", 2 * blobs) == text
    said, text = Command("fsck", "--json", "--progress", store).end()
    assert END.fullmatch(said.strip()) and json.loads(text)[-1]["result"] == "clean"
    print("fsck --rebuild")
    fsck("fsck --rebuild", "reading", blobs, "--rebuild")
