# SPDX-License-Identifier: Apache-2.0
"""WORK BINARY: datasets of a job on three nodes, each of which has the sources under the same path, as files of its own."""
import errno
import os
import random
import sys

from nodes import Cluster

work, binary = sys.argv[1:3]
cluster = Cluster(work, binary)
one, two, three = cluster.nodes
rng = random.Random(5)
HERE = "/proc/self/cwd"  # of each daemon


def source(name, content, nodes=None):
	for i, n in enumerate(nodes or cluster.nodes):
		(n.own / name).write_bytes(content)
		os.utime(n.own / name, (1_700_000_000 + 1000 * n.number, 1_700_000_000 + 1000 * n.number))


def lines(begin, end):
	return "".join(f"sample {i} {'x' * (i % 7)}\n" for i in range(begin, end)).encode()


def read(n, file, rank=0):
	return (n.mount / "j" / str(rank) / "data" / file).read_bytes()


def parts(file, ranks):
	"""The partitions, which are the same on all nodes."""
	found = [[read(n, file, r) for r in range(ranks)] for n in cluster.nodes]
	assert found[0] == found[1] == found[2], f"nodes show other partitions of {file}"
	return found[0]


def fails(n, *words):
	try:
		read(n, "text.jsonl")
	except OSError as e:
		assert e.errno == errno.EIO, e
		for word in words:
			assert word in n.read("j", "error"), n.read("j", "error")
		return
	raise AssertionError(f"{n.name} reads a source that it should not")


os.makedirs(work, exist_ok=True)
for n in cluster.nodes:
	n.up()
source("text.jsonl", lines(0, 1000))
source("rows.bin", rng.randbytes(16 * 480))

(one.mount / "j").mkdir()
one.must("j", "layout", "mesh tp dp\nw.weight tp=0\n*:* copy\n")
one.must("j", "topology", "dp=2")
for n in (two, three):
	n.wait(lambda: n.read("j", "topology") == "dp=2\n", 30, "the job is there")

# the first version, made by a dataset on another node than the job
two.must("j", "data", f"add name=text path={HERE}/text.jsonl global_batch=8 shuffle=none")
assert sorted(b"".join(parts("text.jsonl", 2)).splitlines()) == sorted(lines(0, 1000).splitlines())
assert one.read("j", "data") == two.read("j", "data") == three.read("j", "data")
three.must("j", "data", f"add name=rows path={HERE}/rows.bin global_batch=8 record=16 format=records")
assert sorted(b"".join(parts("rows.bin", 2))) == sorted((one.own / "rows.bin").read_bytes())

# the position moves on any node; another topology deals the rest
one.must("j", "commit", "step=10")
two.must("j", "commit", "step=25")
three.must("j", "topology", "dp=4")
left = parts("text.jsonl", 4)
assert sorted(b"".join(left).splitlines()) == sorted(lines(200, 1000).splitlines())
one.must("j", "rollback", "3")
assert len(b"".join(parts("text.jsonl", 2)).splitlines()) == 920

# a node that was away, and one that starts again
two.down()
three.must("j", "topology", "dp=4")
two.up()
assert len(parts("text.jsonl", 4)) == 4

# a source that one node has not, or has otherwise, is this node's trouble alone
before = read(one, "text.jsonl")
(three.own / "text.jsonl").unlink()
fails(three, "was removed or replaced", "text.jsonl")
fails(three, "cannot be opened any more: No such file", "text.jsonl")
assert read(one, "text.jsonl") == read(two, "text.jsonl") == before
source("text.jsonl", lines(0, 999) + b"other" + b"y" * (len(lines(999, 1000)) - 6) + b"\n", [three])
fails(three, "is not, on this node, the file that was added on another one")
source("text.jsonl", lines(0, 1000)[:-5], [three])
fails(three, "became shorter")
(three.own / "text.jsonl").unlink()
source("text.jsonl", lines(0, 1000), [three])
assert read(three, "text.jsonl") == before
os.utime(three.own / "text.jsonl")
fails(three, "was written to")
(three.own / "text.jsonl").unlink()
source("text.jsonl", lines(0, 1000), [three])
fails(three, "was removed or replaced")
assert read(three, "text.jsonl") == before

# the table of borders comes from the node that added the text, and only at its first use
one.down()
two.kill()
one.up()
try:
	read(one, "text.jsonl")
	sys.exit("there is no table")
except OSError as e:
	assert e.errno == errno.EIO and "the table of '/proc/self/cwd/text.jsonl': blob" in one.log.read_text(), one.log.read_text()
assert read(three, "text.jsonl") == before
two.up()
one.wait(lambda: (one.mount / "j/0/data/text.jsonl").is_file() and read(one, "text.jsonl") == before, 30, "the table is there")

# text that has grown on all nodes, taken in on one that did not add it
for n in cluster.nodes:
	with open(n.own / "text.jsonl", "ab") as f:
		f.write(lines(1000, 1200))
assert parts("text.jsonl", 4)[0] == before
three.must("j", "data", "refresh name=text")
after = b"".join(parts("text.next/text.jsonl", 4))
assert sorted(after.splitlines()) == sorted(lines(0, 1200).splitlines())

assert one.ctl("j", "data", f"add name=c path={HERE}/rows.bin global_batch=8 record=16 copy=yes") == "Operation not supported"
assert "copy=yes" in one.read("j", "error")
assert two.ctl("j", "data", f"add name=text path={HERE}/text.jsonl global_batch=8 start=0") == "File exists"
two.must("j", "data", "remove name=text\nremove name=rows")
for n in cluster.nodes:
	assert not (n.mount / "j/0/data").exists()
	n.down()
	report = os.popen(f"{binary} fsck {n.store} 2>&1 | tail -1").read().strip()
	assert " 0 problems" in report, report
	print(n.name, report)
