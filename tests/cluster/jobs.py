# SPDX-License-Identifier: Apache-2.0
"""WORK BINARY [SEED]: what is done to whole jobs on a node of three, and seen on the others: names, owners, ends, settings, tags."""
import errno
import json
import os
import random
import struct
import sys
import time

from nodes import Cluster
from waits import Thread

work, binary = sys.argv[1:3]
cluster = Cluster(work, binary)
one, two, three = cluster.nodes
for n in cluster.nodes:
	n.up()


def soon(what, name, nodes=None):
	for n in nodes or cluster.nodes:
		n.wait(lambda: what(n), 30, name)


def shard(path, seed):
	header = json.dumps({"w.weight": {"dtype": "F32", "shape": [8, 12], "data_offsets": [0, 384]}}).encode()
	header += b" " * (-len(header) % 8)
	path.write_bytes(struct.pack("<Q", len(header)) + header + random.Random(seed).randbytes(384))


def make(job, node=None, commits=1):
	"""A job with versions: made on one node, seen by all."""
	node = node or one
	(node.mount / job).mkdir()
	node.must(job, "layout", "mesh tp dp\nw.weight tp=0\n*:* copy\n")
	node.must(job, "topology", "tp=1")
	soon(lambda n: (n.mount / job).is_dir() and n.read(job, "topology") == "tp=1\n", f"{job} is there")
	for i in range(commits):
		shard(node.mount / job / "0/model.safetensors", f"{job}{i}")
		(node.mount / job / "0/notes").write_text(f"{job} {i}\n")
		node.must(job, "commit", f"step={i}")
	return job


def jobs(node):
	return sorted(name for name in os.listdir(node.mount) if name != ".ctl")


def refused(what, *words):
	try:
		what()
	except OSError as e:
		for word in words[1:]:
			if word not in words[0]():
				sys.exit(f"'{word}' is not in: {words[0]()}")
		return os.strerror(e.errno)
	sys.exit("it was not refused")


def names_and_owners():
	job = make("gpt")
	os.rename(two.mount / "gpt", two.mount / "llama")
	soon(lambda n: jobs(n) == ["llama"], "it has its new name")
	for n in cluster.nodes:
		assert (n.mount / "llama/0/notes").read_text() == "gpt 0\n"
	other = make("my run: '2' \\n", three)  # a name is any that a folder may have
	why = refused(lambda: os.rename(one.mount / "llama", one.mount / other))
	assert why in ("File exists", "Directory not empty"), why
	os.chmod(three.mount / "llama", 0o2750)
	os.chown(one.mount / "llama", 12, 34)
	want = (0o2750, 12, 34)
	def has(n):
		st = (n.mount / "llama").stat()
		return (st.st_mode & 0o7777, st.st_uid, st.st_gid) == want
	soon(has, "mode and owner are all nodes'")
	# names go round, at once on two nodes
	os.rename(one.mount / "llama", one.mount / "a")
	soon(lambda n: "a" in jobs(n), "a")
	os.rename(two.mount / other, two.mount / "llama")
	soon(lambda n: jobs(n) == ["a", "llama"], "names have gone round")
	three.down()
	os.rename(one.mount / "a", one.mount / "x")
	os.rename(one.mount / "llama", one.mount / "a")
	os.rename(one.mount / "x", one.mount / "llama")
	three.up()
	soon(lambda n: jobs(n) == ["a", "llama"], "the node that was away has the names")
	for job, notes in ("llama", "gpt 0\n"), ("a", f"{other} 0\n"):
		soon(lambda n: (n.mount / job / "0/notes").read_text() == notes, f"and {job} is what it is for others")
	two.must("a", "topology", "tp=2 plain=drop")  # and commands go on
	soon(lambda n: "1" in os.listdir(n.mount / "a"), "all have the folders of the topology")


def ends():
	make("end", commits=2)
	refused(lambda: os.rmdir(one.mount / "end"), lambda: one.read("end", "error"), "scalai delete")
	(three.mount / "end/0/new").write_text("not committed\n")
	one.must("end", "config", "remove=yes")
	why = refused(lambda: os.rmdir(one.mount / "end"), lambda: one.read("end", "error"), "node 3", "rank 0: 'new'", "discard them first")
	assert why == "Device or resource busy", why
	assert all("end" in jobs(n) for n in cluster.nodes), "a removal that was refused has removed the job"
	two.must("end", "commit", "step=9")
	(one.mount / "end/0/mine").write_text("who removes it knows\n")
	held = open(two.mount / "end/0/notes")
	if os.system(f"{binary} delete {one.mount}/end > /dev/null"):
		sys.exit(f"delete: {one.read('end', 'error')}")
	soon(lambda n: "end" not in jobs(n), "it is gone everywhere")
	held.close()
	# the same name, another job
	(two.mount / "end").mkdir(0o700)
	soon(lambda n: "end" in jobs(n), "another job has the name")
	assert all(sorted(os.listdir(n.mount / "end")) == [] for n in cluster.nodes)
	os.rmdir(one.mount / "end")
	soon(lambda n: "end" not in jobs(n), "and is removed")
	make("end", two)
	trees = [n.tree("end") for n in cluster.nodes]
	assert trees[0] == trees[1] == trees[2]
	os.rmdir(two.mount / "end") if two.ctl("end", "config", "remove=yes") == "" else sys.exit("config")
	soon(lambda n: "end" not in jobs(n), "and is removed")
	# one without a version
	(one.mount / "empty").mkdir()
	soon(lambda n: "empty" in jobs(n), "empty")
	os.rmdir(three.mount / "empty")
	soon(lambda n: "empty" not in jobs(n), "an empty job is removed")


def away():
	"""Nodes that were away when a job ended: one has nothing of its own, one has a file that is nowhere else."""
	make("lost")
	make("gone")
	soon(lambda n: (n.mount / "lost/0/notes").exists(), "lost")
	(three.mount / "lost/0/new").write_text("nowhere else\n")
	three.kill()
	two.down()
	for job in ("lost", "gone"):
		if os.system(f"{binary} delete {one.mount}/{job}"):
			sys.exit(f"delete: {one.read(job, 'error')}")
	(one.mount / "lost").mkdir()
	two.up()
	three.up()
	soon(lambda n: "gone" not in jobs(n), "who was away learns of it")
	soon(lambda n: "lost" in jobs(n), "the new job is there")
	three.wait(lambda: "lost.removed-1" in jobs(three), 30, "what is nowhere else is kept")
	three.wait(lambda: "'lost.removed-1' is here only" in three.health(), 30, "health says so")
	assert (three.mount / "lost.removed-1/0/new").read_text() == "nowhere else\n"
	assert os.listdir(three.mount / "lost") == os.listdir(two.mount / "lost") == []
	assert "lost.removed-1" not in jobs(two)
	assert three.ctl("lost.removed-1", "commit", "step=1") == "No such file or directory"
	three.down()
	three.up()
	assert (three.mount / "lost.removed-1/0/new").read_text() == "nowhere else\n"
	three.wait(lambda: jobs(three) == sorted(jobs(two) + ["lost.removed-1"]), 30, "it has the others' jobs, and that one")
	if os.system(f"{binary} delete {three.mount}/lost.removed-1"):
		sys.exit(f"delete: {three.read('lost.removed-1', 'error')}")
	three.wait(lambda: jobs(three) == jobs(two) and "here only" not in three.health(), 30, "it is gone")


def settings():
	make("set")
	two.must("set", "config", "keep=7 show=off engine=host buffer_mib=64")
	soon(lambda n: "keep=7\n" in n.read("set", "config") and "show=off" in n.read("set", "config"), "settings are all nodes'")
	assert "engine=host" in two.read("set", "config") and "buffer_mib=64" in two.read("set", "config")
	for n in (one, three):
		assert "engine=auto" in n.read("set", "config") and "buffer_mib=256" in n.read("set", "config")
	assert one.ctl("set", "config", "keep=8 nonsense=1") and "keep=7\n" in one.read("set", "config")
	three.down()
	one.must("set", "config", "keep=9")
	two.must("set", "config", "hf_shard=5M")
	three.up()
	soon(lambda n: "keep=9\n" in n.read("set", "config") and "hf_shard=5M" in n.read("set", "config"), "also after a while away")


def tags():
	make("tag", commits=3)
	def tagged(n):
		return [name for name in ("best", "first", "four", "last") if (n.mount / "tag/.v" / name).is_dir()]
	one.must("tag", "versions", "tag 1 best")
	soon(lambda n: tagged(n) == ["best"] and (n.mount / "tag/.v/best/0/notes").read_text() == "tag 0\n", "a tag is all nodes'")
	assert two.ctl("tag", "versions", "tag 2 best") == "File exists", two.read("tag", "error")
	two.must("tag", "versions", "tag 1 first")
	three.must("tag", "versions", "tag 3 last")
	soon(lambda n: tagged(n) == ["first", "last"], "a version has one tag")
	three.down()
	one.must("tag", "versions", "untag 1")
	one.must("tag", "versions", "untag 3")
	one.must("tag", "versions", "tag 2 last")
	(one.mount / "tag/0/notes").write_text("four\n")
	one.must("tag", "commit", "step=4")
	one.must("tag", "versions", "tag 4 four")
	three.up()
	soon(lambda n: tagged(n) == ["four", "last"], "who was away has the tags")
	soon(lambda n: (n.mount / "tag/.v/last/0/notes").read_text() == "tag 1\n", "and they name the versions that they name for others")
	assert one.ctl("tag", "clone", "copy") and "cannot clone" in one.read("tag", "error"), one.read("tag", "error")


def missed():
	"""Versions that others made while a node was away are in its .v, too, and go like those that it saw."""
	make("miss", commits=2)
	one.must("miss", "config", "keep=9")
	def old(n):
		return {v: ((n.mount / f"miss/.v/{v}/0/notes").read_text(), (n.mount / f"miss/.v/{v}/0/model.safetensors").read_bytes())
			for v in sorted(os.listdir(n.mount / "miss/.v"))}
	one.must("miss", "config", "replicas=3")
	soon(lambda n: "replicas=3\n" in n.read("miss", "config"), "replicas=3")
	three.down()
	for i in range(2, 7):
		shard(one.mount / "miss/0/model.safetensors", f"again {i}")
		(two.mount / "miss/0/notes").write_text(f"miss {i}\n")
		(one if i % 2 else two).must("miss", "commit", f"step={i}")
	one.must("miss", "versions", "tag 5 middle")
	want = old(one)
	assert sorted(want) == list("1234567"), want.keys()
	three.up()
	soon(lambda n: old(n) == want, "who was away has the versions that it missed", [three])
	soon(lambda n: (n.mount / "miss/.v/middle/0/notes").read_text() == "miss 4\n", "and by their tags", [three])
	soon(lambda n: n.read("miss", "versions") == one.read("miss", "versions"), "and lists them", [three])
	three.must("miss", "wait", "\n")
	one.down()
	two.down()
	assert old(three) == want, "it has no copies of what it missed"
	one.up()
	two.up()
	three.down()
	three.up()
	one.must("miss", "config", "keep=2")
	(one.mount / "miss/0/notes").write_text("the last\n")
	three.must("miss", "commit", "step=9")
	soon(lambda n: sorted(os.listdir(n.mount / "miss/.v")) == ["5", "7", "8"], "they go as others do")


def at_random(rounds=4, requests=40):
	"""Requests of all kinds on all nodes at once, nodes that are killed; afterwards all nodes show the same jobs."""
	rng = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 3)
	names = ["r0", "r1", "r2", "r3"]
	done = {}

	def request(n, r):
		job = r.choice(names)
		what = r.choice(["make", "make", "rename", "chmod", "chown", "end", "config", "tag", "untag", "commit", "write", "discard"])
		top = n.mount / job
		try:
			if what == "make":
				top.mkdir()
				n.ctl(job, "layout", "mesh tp dp\nw.weight tp=0\n*:* copy\n")
				n.ctl(job, "topology", "tp=1")
			elif what == "rename":
				os.rename(top, n.mount / r.choice(names))
			elif what == "chmod":
				top.chmod(r.choice([0o700, 0o755, 0o775]))
			elif what == "chown":
				os.chown(top, r.randrange(3), r.randrange(3))
			elif what == "end":
				n.ctl(job, "config", "remove=yes")
				os.rmdir(top)
			elif what == "write":
				(top / f"0/f{n.number}").write_text(str(r.random()))
			else:
				file, text = {"config": ("config", f"keep={r.randrange(5, 50)}"), "tag": ("versions", f"tag {r.randrange(1, 4)} {r.choice('xyz')}"),
					      "untag": ("versions", f"untag {r.randrange(1, 4)}"), "commit": ("commit", "step=1"), "discard": ("discard", "yes")}[what]
				if n.ctl(job, file, text):
					return
			done[what] = done.get(what, 0) + 1
		except OSError as e:
			if e.errno in (errno.EIO, errno.ENOTCONN, errno.EINVAL):
				raise

	def shown(n):
		found = {}
		for job in [job for job in jobs(n) if job.startswith("r")]:
			try:
				st = (n.mount / job).stat()
				found[job] = {"mode": st.st_mode, "owner": (st.st_uid, st.st_gid), "config": n.read(job, "config"),
					      "topology": n.read(job, "topology"), "tree": n.tree(job),
					      "versions": n.read(job, "versions"), ".v": sorted(os.listdir(n.mount / job / ".v"))}
			except (OSError, SystemExit) as e:
				return f"{job}: {e}"
		return found

	def same():
		all_ = [shown(n) for n in cluster.nodes]
		if any(isinstance(x, str) for x in all_):
			return str(all_)[:2000]
		for job in set().union(*all_):
			each = [x.get(job) for x in all_]
			if None in each:
				return f"{job}: who has it: {[x is not None for x in each]}"
			for what in each[0]:
				if len({str(x[what]) for x in each}) > 1:
					return f"{job}: {what}: {[x[what] for x in each]}"[:2000]
		return ""

	for _ in range(rounds):
		children = []
		for n in cluster.nodes:
			own = random.Random(rng.random())
			def work(n=n, own=own):
				for _ in range(requests):
					request(n, own)
			children.append(Thread(target=work))
		for c in children:
			c.start()
		for c in children:
			c.join()
		victim = rng.choice(cluster.nodes)
		victim.kill()
		for i in range(10):
			request(rng.choice([n for n in cluster.nodes if n is not victim]), rng)
		victim.up()
		end = time.monotonic() + 60  # it ends at once when it is true
		while True:
			for n in cluster.nodes:  # what one wrote and did not commit is seen there only
				for job in jobs(n):
					n.ctl(job, "discard", "yes")
					if ".removed-" in job:
						os.system(f"{binary} delete {n.mount / job}")
			if not (why := same()):
				break
			if time.monotonic() > end:
				sys.exit(f"nodes show different jobs: {why}")
			time.sleep(0.1)
	print(", ".join(f"{v} {k}" for k, v in sorted(done.items())))


for part in (names_and_owners, ends, away, settings, tags, missed, at_random):
	part()
	print(part.__name__, "passed", flush=True)
for n in cluster.nodes:
	n.down()
	report = os.popen(f"{binary} fsck {n.store} 2>&1").read().strip()
	if " 0 problems" not in report:
		sys.exit(f"{n.name}: {report}\n{n.log.read_text()[-3000:]}")
	print(n.name, report.splitlines()[-1])
