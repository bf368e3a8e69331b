"""
FOLDER ROUNDS|SECONDSs: a file that gets and loses a second name while other programs open it and ask for its attributes.

link(2) is answered by the kernel from the link count that it keeps: if a reader's answer, from after a name went, overtakes
the answer to unlink(2), the kernel counts the name down twice, and says ENOENT about a file that is there.
"""
import os
import pathlib
import sys

from waits import Amount

folder, amount = pathlib.Path(sys.argv[1]), Amount(sys.argv[2])
file, other = folder / "file", folder / "other"


def opens():
    fd = os.open(file, os.O_RDONLY)
    os.fstat(fd)
    os.close(fd)


def asks():
    os.lstat(file)
    os.path.lexists(other)


def child(f):
    pid = os.fork()
    if not pid:
        try:
            while amount.goes_on():
                f()
        except OSError as e:
            print(f.__name__, e, file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return pid


folder.mkdir()
file.write_text("something")
os.link(file, other)
readers = [child(opens), child(asks)]
rounds = 0
while amount.more(rounds):
    rounds += 1
    if rounds % 2:
        os.chmod(file, 0o640 + rounds % 4)
    else:
        os.truncate(file, rounds % 50)
    os.unlink(other)
    os.link(file, other)
for pid in readers:
    assert os.waitpid(pid, 0)[1] == 0, "a reader failed"
assert rounds > 100, rounds
print(f"{rounds} links")
