"""
FOLDER ROUNDS|SECONDSs: names that come and go while other programs list their folder.  FOLDER is JOB/RANK/NAME, to be made.

Two programs list the folder without a pause, which makes the kernel keep what it reads.  A third one makes, renames and
removes a file, commits, and rolls back; whatever it has done, its next listing shows that and nothing older: of the
folder opened anew, and of a descriptor that it holds.
"""
import os
import pathlib
import random
import sys

from waits import Amount

folder = pathlib.Path(sys.argv[1])
ctl = folder.parent.parent / ".ctl"
always = {f"always{i}" for i in range(300)}


def command(name, text="\n"):
    with open(ctl / name, "w") as f:
        f.write(text)


def lister(amount):
    while amount.goes_on():
        missing = always - set(os.listdir(folder))
        assert not missing, missing


def child(f, *args):
    pid = os.fork()
    if not pid:
        try:
            f(*args)
        except BaseException as e:
            print(type(e).__name__, e, file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return pid


folder.mkdir()
for name in always:
    (folder / name).write_text(name)
command("commit")

# a command that nobody sees by the folder's times, while nobody has it open
times = folder.stat()
(folder / "more").touch()
os.utime(folder, ns=(times.st_atime_ns, times.st_mtime_ns))
for _ in range(2):
    assert set(os.listdir(folder)) == always | {"more"}
command("discard")
assert set(os.listdir(folder)) == always

amount = Amount(sys.argv[2])
listers = [child(lister, amount) for _ in range(2)]
held = os.open(folder, os.O_RDONLY)
expected, committed, rounds, commands, rng = set(always), set(always), 0, 0, random.Random(1)
while amount.more(rounds):
    rounds += 1
    mine = sorted(expected - always)
    do = rng.random()
    if do < 0.005:
        commands += 1
        if rng.random() < 0.5:
            if expected != committed:
                command("commit")
            committed = set(expected)
        else:
            command("discard")
            expected = set(committed)
    elif not mine or (do < 0.4 and len(mine) < 5):
        name = f"new{rng.randrange(100)}"
        (folder / name).touch()
        expected.add(name)
    elif do < 0.6:
        name = f"new{rng.randrange(100)}"
        os.rename(folder / mine[0], folder / name)
        expected -= {mine[0]}
        expected.add(name)
    else:
        os.unlink(folder / mine[-1])
        expected.remove(mine[-1])
    # what another program was told before the change may become what the kernel keeps after the first of these
    for where in (folder, held, folder, folder):
        seen = set(os.listdir(where))
        assert seen == expected, (rounds, "a descriptor" if where is held else "opened anew", sorted(seen ^ expected))
for pid in listers:
    assert os.waitpid(pid, 0)[1] == 0, "a program that lists the folder failed"
assert rounds > 100 and commands, (rounds, commands)
print(f"{rounds} changes, {commands} commands")
