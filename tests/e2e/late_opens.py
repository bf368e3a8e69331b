# SPDX-License-Identifier: Apache-2.0
"""
A reader whose opens are held (tests/support/kinds/late_opens.c) while the topology of its job changes.

    late_opens.py MOUNT HELD STORE view|stored|plain|folder|looked
        view      a file that is described, not written
        stored    a file of tensors that is written
        plain     a file without tensors
        folder    a file in .as/: it is held between two folders on the way to it, and the topology changes there, too
        looked    a thread that was told ESTALE looks a file up and never opens it: its bytes go when their version has gone
"""
import errno, hashlib, os, pathlib, sys, time

import numpy
from safetensors.numpy import save_file

mount, held, store, kind = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), sys.argv[4]
job = mount / kind
CHANGES = 80  # more versions than are found after they were dropped (VIEWS_LEAVING_MAX)
LEAVING_S = 2.2  # and longer than their bytes are kept (RS_LEAVING_NS)


def put(name, text):
	(job / ".ctl" / name).write_text(text)


def until(what, condition, seconds=120):
	end = time.monotonic() + seconds
	while not condition():
		assert time.monotonic() < end, what
		time.sleep(0.005)


def change(times=CHANGES):
	"""Topologies and commits, of which none is kept; then the time in which what they dropped is found is over."""
	for i in range(times):
		if kind == "plain":
			(job / "0/notes").write_text(f"other {i}\n")
			put("commit", "note=x")
		else:
			put("topology", f"tp={1 << i % 2} dp={1 + i % 2}")
	time.sleep(LEAVING_S)
	if kind not in ("view", "folder"):
		put("wait", "\n")


def blobs():
	return {name for _, _, files in os.walk(store / "blobs") for name in files}


def prepare():
	"""A version that nobody has looked at; returns the sha256 of what the reader is to find."""
	if kind == "plain":
		path.write_text("the notes to find\n")
		put("commit", "note=x")
	else:
		put("topology", "tp=4 dp=2")
	if kind == "stored":
		put("wait", "\n")
	return hashlib.sha256(path.read_bytes()).hexdigest()


def reader():
	"""-> the process, the files that hold its requests and say that one waits, and what it says at its end"""
	out, into = os.pipe()
	pid = os.fork()
	if pid == 0:
		try:
			until("the test holds this thread", pathlib.Path(f"{held}.{os.getpid()}").exists)
			os.write(into, hashlib.sha256(path.read_bytes()).hexdigest().encode())
			os._exit(0)
		except OSError as e:
			os.write(into, str(e).encode())
			os._exit(1)
	os.close(into)
	new, holds = pathlib.Path(f"{held}.{pid}.new"), pathlib.Path(f"{held}.{pid}")
	new.write_text("0\n" if kind == "folder" else "\n")
	new.rename(holds)
	return pid, holds, pathlib.Path(f"{holds}.held"), os.fdopen(out)


os.mkdir(job)
put("layout", "mesh tp dp\nrows tp=0\ncolumns tp=1\nboth copy\n")
put("topology", "tp=4")
put("config", f"plain=drop\nkeep=2\nsync=off\nmaterialize={'never' if kind in ('view', 'folder') else 'eager'}")
for rank in range(4):
	os.makedirs(job / str(rank), exist_ok=True)
	save_file({"rows": numpy.full((16, 64), rank, "f4"), "columns": numpy.full((64, 16), rank, "f4"),
		"both": numpy.full((8,), 7, "f4")}, job / str(rank) / "model.safetensors")
	(job / str(rank) / "notes").write_text("first\n")
put("commit", "step=1")
path = job / {"plain": "0/notes", "folder": ".as/tp=2/0/model.safetensors"}.get(kind, "0/model.safetensors")

if kind == "looked":
	put("wait", "\n")
	gone, others = os.open(job / "3", os.O_RDONLY | os.O_DIRECTORY), blobs()
	put("topology", "tp=2")
	put("wait", "\n")
	try:
		os.stat("model.safetensors", dir_fd=gone)
		sys.exit("a rank's folder that is gone has a file")
	except OSError as e:
		assert e.errno == errno.ESTALE, e
	os.stat(path)
	had = blobs() - others
	assert had
	for tp in (1, 4, 1, 4):
		put("topology", f"tp={tp}")
		put("wait", "\n")
	until(f"the bytes of {len(had)} files that nobody opened go", lambda: not had & blobs())
	sys.exit()
pid, holds, waits, said = reader()
until("the first open waits", waits.exists)
change()
first = prepare()
waits.unlink()
until("the second open waits", waits.exists)
change()
holds.unlink()
waits.unlink()
got = said.read()
assert os.waitpid(pid, 0)[1] == 0, got
assert got == first, (got, first)
print(kind, "opened")
