# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY: each command that changes etcd, while its transaction's answer is lost, or the transaction itself, or that comes to etcd when
the node has given it up.  A command that says that it was done was; one that failed says that nothing was changed, which is so, and is
done when it is tried again; one of which nobody can know says so.  Then two commits at once: nobody is told that nothing was written.
CLUSTER_LONG: all that may come late does, too.
BINARY is the program that stops at steps (tests/support/stop_at_steps.c).
"""
import errno
import os
import sys
import time

import watchers
from between import Relay
from nodes import STOOD_STILL, Cluster
from waits import Thread, until

work, binary = sys.argv[1:3]
cluster = Cluster(work, binary, nodes=2, ttl_ms=4000, fresh_ms=1200)
one, two = cluster.nodes
one.protocols = two.protocols = "1-3"
LONG = bool(os.environ.get("CLUSTER_LONG"))
relay = Relay(cluster)
relay.up(one)
two.up()
watchers.make(cluster)
NOT_DONE = os.strerror(errno.EBUSY)


def calls(function, *args):
	"""Its errno as a sentence, or ''."""
	try:
		function(*args)
	except OSError as e:
		return os.strerror(e.errno)
	return ""


def ctl(file, text):
	return lambda: one.ctl("gpt", file, text)


def state():
	"""All that etcd has of jobs, but for what says which nodes show and keep what."""
	return [line for line in cluster.values("all/") if "/jobs/" in line.split()[0] and not line.split()[0].endswith("/shown") or
		any(key in line.split()[0] for key in ("/names/", "all/drain", "all/protocol"))]


def version(node):
	return int(next((line.split()[1] for line in node.read("gpt", "status").splitlines() if line.startswith("version: ")), "0").replace("none", "0"))


def written(number):
	for rank in range(2):
		one.wait(lambda: watchers.save(one, 2, rank, number) or True, 30, "it is written")


def stood_still(said):
	"""It was refused, and not done, since the machine stood still for as long as a registration lasts."""
	return said == os.strerror(errno.EHOSTDOWN) or said and any(part in one.read("gpt", "error") for part in STOOD_STILL)


def shows(line, file):
	return lambda: line in two.read("gpt", file)


def drained():
	return " ".join(cluster.values("all/drain")).split()[1:]


def tagged(name, is_there=True):
	return lambda: any(name in row.split() for row in two.read("gpt", "versions").splitlines()) == is_there


def loses(how, keys, what, is_done, fails=False):
	"""`what` is done while such a transaction is lost.  `fails`: a command that is refused then, and done when it is tried again."""
	before, name = version(one) if (one.mount / "gpt").exists() else 0, f"{how} of {keys}"
	for _ in range(10):
		one.wait(lambda: "is a member\n" in one.health() + "\n", 30, "it is a member")
		relay.lose(how, keys)
		said = what()
		lost = relay.lost()
		if not stood_still(said):
			break
		print(f"figure: {name} again: {said}", flush=True)
	if len(lost) != 1:
		sys.exit(f"{name}: lost was {lost}: {said}")
	if said == NOT_DONE and how == "answer" and keys == "/head$" and version(two) == before and not cluster.keys("/proposal"):
		return loses(how, keys, what, is_done, fails)  # the answer said that etcd refused it: a sweep was announced just then
	if said and (not fails or said != NOT_DONE or "nothing was changed; try again" not in one.read("gpt", "error")):
		sys.exit(f"{name}: {said}: {one.read('gpt', 'error')}")
	if fails:
		if not said:
			sys.exit(f"{name}: it was done, though etcd never heard of it")
		if version(two) != before or cluster.keys("/proposal"):
			sys.exit(f"{name}: it was not done, and version {version(two)} is there, {cluster.keys('/proposal')}")
	if how == "late":
		until("the proposal is gone", lambda: not cluster.keys("/proposal"))
		until("it is held", (relay.folder / "held").exists)
		was = state()
		relay.let_go()
		if state() != was:
			sys.exit(f"{name}: what came late was done: {sorted(set(state()) ^ set(was))}")
	if fails:
		one.must("gpt", *fails)
	two.wait(is_done, 30, f"{name}: it was done")


for n in cluster.nodes:
	(n.own / "samples.jsonl").write_text("".join(f"sample {i}\n" for i in range(64)))
	os.utime(n.own / "samples.jsonl", (1_700_000_000, 1_700_000_000))

# what makes versions: the proposal, what they are made of, the commit
number = 0
for how, keys, fails in (("answer", "/proposal$", False), ("request", "/proposal$", False), ("answer", "/obj/", False), ("request", "/obj/", False),
			 ("answer", "/head$", False), ("request", "/head$", True), ("late", "/head$", True)):
	number += 1
	written(number)
	loses(how, keys, ctl("commit", f"step={number}"), lambda: version(two) == number, fails and ("commit", f"step={number}"))
for how, fails in (("answer", False), ("request", True)):
	tp = 4 if fails else 3
	loses(how, "/head$", ctl("topology", f"tp={tp}"), shows(f"tp={tp}\n", "topology"), fails and ("topology", f"tp={tp}"))
	nr = version(one) + 1
	loses(how, "/head$", ctl("rollback", "2"), lambda: version(two) == nr, fails and ("rollback", "2"))
	rule = f"# {how}\n"
	layout = f"{rule}mesh tp\nw.weight tp=0\nw.{how} tp=0\n*:* copy\n"
	loses(how, "/head$", ctl("layout", layout), shows(f"w.{how}", "layout"), fails and ("layout", layout))
	data = f"add name={how} path=/proc/self/cwd/samples.jsonl global_batch=8 shuffle=none axes=tp"
	loses(how, "/head$", ctl("data", data), shows(f"\n{how}\t", "data"), fails and ("data", data))

# what is in one transaction, tried again: it is done whatever was lost
for how in ("answer", "request", *(["late"] if LONG else [])):
	keep, mode, gid = 40 + len(how), 0o740 + len(how), 100 + len(how)
	loses(how, "/config$", ctl("config", f"keep={keep}"), shows(f"keep={keep}\n", "config"))
	loses(how, "/tag/", ctl("versions", f"tag 2 {how}"), tagged(how))
	loses(how, f"/tag/{how}$", ctl("versions", "untag 2"), tagged(how, False))
	loses(how, "/name$", lambda: calls(os.chmod, one.mount / "gpt", mode), lambda: two.mount.joinpath("gpt").stat().st_mode & 0o777 == mode)
	loses(how, "/name$", lambda: calls(os.chown, one.mount / "gpt", -1, gid), lambda: two.mount.joinpath("gpt").stat().st_gid == gid)
	loses(how, f"/names/made-{how}$", lambda: calls(os.mkdir, one.mount / f"made-{how}"), (two.mount / f"made-{how}").is_dir)
	loses(how, "/first$", lambda: one.ctl(f"made-{how}", "layout", "mesh tp\nw.first tp=0\n"), lambda: "w.first" in two.read(f"made-{how}", "layout"))
	loses(how, f"/names/moved-{how}$", lambda: calls(os.rename, one.mount / f"made-{how}", one.mount / f"moved-{how}"),
	      lambda: (two.mount / f"moved-{how}").is_dir() and not (two.mount / f"made-{how}").exists())
if LONG:
	os.rmdir(one.mount / "moved-late")
loses("answer", "/removed$", lambda: calls(os.rmdir, one.mount / "moved-answer"), lambda: not (two.mount / "moved-answer").exists())
relay.lose("request", "/removed$")
if calls(os.rmdir, one.mount / "moved-request") != NOT_DONE or len(relay.lost()) != 1:
	sys.exit("a job whose end etcd never heard of was removed")
one.wait((two.mount / "moved-request").is_dir, 30, "it is there")
os.rmdir(one.mount / "moved-request")
for how, protocol in (("answer", 3), ("request", 2), *([("late", 1)] if LONG else [])):
	loses(how, "all/drain$", lambda: calls((one.mount / ".ctl/drain").write_text, two.name), lambda: drained() == ["2"])
	loses(how, "all/drain$", lambda: calls((one.mount / ".ctl/drain").write_text, f"-{two.name}"), lambda: not drained())
	loses(how, "all/protocol$", lambda: calls((one.mount / ".ctl/cluster").write_text, f"protocol={protocol}"),
	      lambda: f"\nprotocol: {protocol}\n" in (two.mount / ".ctl/cluster").read_text())

# one that comes late: the tag is there by then, and taken away again
relay.lose("late", "/tag/late$")
one.must("gpt", "versions", "tag 2 late")
two.must("gpt", "versions", "untag 2")
relay.let_go()
if cluster.keys("/tag/"):
	sys.exit(f"a tag came back: {cluster.keys('/tag/')}")

# a name that another node gives a job to, while this one's own mkdir is on its way
relay.lose("late", "/names/both$")
said = []
make = Thread(target=lambda: said.append(calls(os.mkdir, one.mount / "both")), daemon=True)
make.start()
until("it is on its way", lambda: (relay.folder / "held").exists())
os.mkdir(two.mount / "both")
make.join(30)
if said != [os.strerror(errno.EEXIST)]:
	sys.exit(f"mkdir of a name that another node has: {said}")
os.rmdir(two.mount / "both")
relay.let_go()
if [line for line in cluster.values("all/names/") if "both" in line]:
	sys.exit("a job whose mkdir failed was made")

# likewise a name that another node gives to a job by mv, which takes no number, and that is free again
relay.lose("late", "/names/given$")
said.clear()
make = Thread(target=lambda: said.append(calls(os.mkdir, one.mount / "given")), daemon=True)
make.start()
until("it is on its way", lambda: (relay.folder / "held").exists())
os.rename(two.mount / "gpt", two.mount / "given")
make.join(30)
if said != [os.strerror(errno.EEXIST)]:
	sys.exit(f"mkdir of a name that another node's mv has given: {said}")
os.rename(two.mount / "given", two.mount / "gpt")
relay.let_go()
if [line for line in cluster.values("all/names/") if "given" in line]:
	sys.exit("a job whose mkdir failed was made")
one.wait((one.mount / "gpt").is_dir, 30, "its name is back")

# nor can anybody know of a mv that was done, when others have changed by then what it has made
step = one.own / "cluster.lost"
step.touch()
relay.lose("answer", "/names/given$")
said.clear()
move = Thread(target=lambda: said.append(calls(os.rename, one.mount / "gpt", one.mount / "given")), daemon=True)
move.start()
until("its answer is lost", step.with_name("cluster.lost.at").exists)
two.wait((two.mount / "given").is_dir, 30, "it was done")
os.rename(two.mount / "given", two.mount / "third")
os.mkdir(two.mount / "given")
step.unlink()
move.join(30)
if said != [os.strerror(errno.EIO)]:
	sys.exit(f"a mv that was done, and that others went on from: {said}")
os.rmdir(two.mount / "given")
os.rename(two.mount / "third", two.mount / "gpt")
one.wait((one.mount / "gpt").is_dir, 30, "its name is back")

# nobody can know: all that is sent is lost, for longer than the command waits
relay.lose("answer", "/jobs/", 1000000)
began = time.monotonic()
said = one.ctl("gpt", "versions", "tag 3 unknown")
if said != os.strerror(errno.ESTALE) or "may be made later" not in one.read("gpt", "error"):
	sys.exit(f"a tag of which nobody knows: {said}: {one.read('gpt', 'error')}")
# what is no change of etcd is done all the same, or refused as ever
(one.mount / "gpt/0/new.txt").write_text("to be discarded")
for file, text, code in (("config", "home=0", 0), ("config", "home=", 0), ("discard", "yes", 0), ("clone", "second", errno.ENOTSUP),
			 ("data", "add name=copy path=/proc/self/cwd/samples.jsonl global_batch=8 axes=tp copy=yes", errno.ENOTSUP)):
	if one.ctl("gpt", file, text) != (os.strerror(code) if code else ""):
		sys.exit(f"'{text}' > {file} while etcd's answers are lost: {one.ctl('gpt', file, text)}: {one.read('gpt', 'error')}")
if (one.mount / "gpt/0/new.txt").exists():
	sys.exit("what was discarded is there")
print(f"figure: nobody knew after {time.monotonic() - began:.1f} s")
relay.lost()

# two commits at once
two.wait(lambda: two.read("gpt", "topology"), 30, "it has the topology")
first = int(two.read("gpt", "topology").split("=")[1])
for rank in range(first):
	watchers.save(one if rank % 2 else two, first, rank, 100)
step, begins, nr, said = one.own / "cluster.commit", two.own / "cluster.propose", version(one), {}
step.touch()
begins.touch()
commits = [Thread(target=lambda n=n: said.update({n.name: n.ctl("gpt", "commit", "step=100 note=both")}), daemon=True) for n in (one, two)]
commits[0].start()
until("the first one comes to its transaction", step.with_name("cluster.commit.at").exists)
commits[1].start()
until("the second one comes to its proposal", begins.with_name("cluster.propose.at").exists)
step.unlink()
begins.unlink()
for c in commits:
	c.join(60)
if said != {one.name: "", two.name: ""} or version(one) != nr + 1:
	sys.exit(f"two commits of the same step at once: {said}, version {version(one)} after {nr}: {two.read('gpt', 'error')}{two.read('gpt', 'versions')}")
for n in cluster.nodes:
	n.down()
