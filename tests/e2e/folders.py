"""
FOLDER ROUNDS|SECONDSs: names that come and go while another program asks for their folder's attributes and lists it.  Who has made
or removed a folder in it sees the link count and the time of then, and so does everybody after him.
"""
import os
import pathlib
import sys

from waits import Amount

folder, amount = pathlib.Path(sys.argv[1]), Amount(sys.argv[2])
folder.mkdir()
reader = os.fork()
if not reader:
    while amount.goes_on():
        for _ in range(50):
            os.stat(folder)
        os.listdir(folder)
    os._exit(0)
rounds = 0
while amount.more(rounds):
    rounds += 1
    os.mkdir(folder / "name")
    made = os.stat(folder)
    assert made.st_nlink == 3, (rounds, "made", made)
    os.rmdir(folder / "name")
    removed = os.stat(folder)
    assert removed.st_nlink == 2 and removed.st_mtime_ns >= made.st_mtime_ns, (rounds, "removed", removed)
assert os.waitpid(reader, 0)[1] == 0, "the reader failed"
assert rounds > 100, rounds
print(f"{rounds} folders")
