# SPDX-License-Identifier: Apache-2.0
"""
WORK BINARY SEED SECONDS NODES ETCDS: jobs of a cluster under all faults at once.  Nodes are killed, stopped for longer than their registration
lasts, cut off, made deaf or mute, parted from one other node; servers of etcd are killed and stopped; stores are copied, put back
older, taken away, swapped, mounted twice.  Beside that each job has one who writes ranks and gives commands on all nodes,
writers of notes, and readers on each node, who know what each version may have.

Each read is right for a version that may be seen, never one older than what was seen before it began, or is an error; what a
commit takes is what was written before it on nodes that met no fault; a command that failed is no version.  In the end all is
healed: all nodes agree within 120 s, on each byte, and stores are clean.  What hangs for 120 s is named, with all stacks.
"""
import errno
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

from chaos_jobs import (HANGS, Job, busy, counts, end_badly, ending, jobs, lock, noter, over, peek, puts, reader, result, say, the,
			waits_for)
from nodes import Cluster, Node, inside, run, terminated
from waits import owed

TTL = 3.0
work, binary = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
seed, seconds, nr_nodes, nr_etcds = (int(x) for x in sys.argv[3:7])
the.name = f"seed {seed}, {nr_nodes} nodes, {nr_etcds} etcds, {seconds} s"


TAKEN = "another daemon is registered as this node"


def member_of(health):
	return "is a member\n" in health


def member(node):
	return member_of(peek(node.mount / ".ctl/health"))


def rise(node):
	"""Its daemon is started until it is mounted: without an etcd it gives up after a while."""
	end = time.monotonic() + HANGS
	while True:
		try:
			node.start()
			return
		except SystemExit as e:
			if node.daemon.poll() is None and time.monotonic() < end:
				node.kill()
			if time.monotonic() > end:
				end_badly("hung", f"{node.name} is not mounted: {e}")
			time.sleep(0.3)


def put_out(node):
	"""SIGTERM: it ends in seconds, whatever it waits for."""
	node.daemon.terminate()
	try:
		code = node.daemon.wait(HANGS)
	except subprocess.TimeoutExpired:
		end_badly("hung", f"{node.name} does not end by SIGTERM")
	if code:
		end_badly("wrong", f"{node.name} has ended with {code}")
	run("umount", "-l", str(node.mount), check=False)


def second(node, store, name, is_over):
	"""Mounts this store under that name, until it ends or is_over(its health).  What it said, its status or None, and its health."""
	mount = cluster.work / f"refused{node.number}"
	mount.mkdir(exist_ok=True)
	options = f"cluster=test,node={name},listen={node.address}:7078," + ",".join(f"etcd={url}" for url in cluster.urls)
	end = time.monotonic() + HANGS
	with tempfile.TemporaryFile("w+") as said:
		daemon = subprocess.Popen([*inside(node.namespace), binary, "mount", "-f", "-o", options, store, mount], stdout=said, stderr=said)
		while daemon.poll() is None and time.monotonic() < end and not is_over(peek(mount / ".ctl/health")):
			time.sleep(0.1)
		status, health = daemon.poll(), peek(mount / ".ctl/health")
		if status is None:
			daemon.terminate()
			try:
				daemon.wait(HANGS)
			except subprocess.TimeoutExpired:
				end_badly("hung", f"{store} as {name} does not end by SIGTERM")
		run("umount", "-l", str(mount), check=False)
		said.seek(0)
		text = said.read().strip()
	say(f"{store} as {name}: {status}: {text[-200:]}")
	return text, status, health


def refused(node, store, name):
	"""This store under that name: the mount ends, with a sentence."""
	text, status, health = second(node, store, name, lambda health: False)
	if not status:
		end_badly("wrong", f"{store} was not refused as {name}'s: {text}: {health}")


def twice(node):
	"""A copy of a node's store, while it is mounted: refused where it is registered.  Where it is not, since etcd has just met a fault, too,
	one of both is registered, and the other says so, and shows nothing."""
	with lock:  # what is uncommitted in the copy
		for job in jobs:
			for rank, x in node.kept[job].items():
				job.pending[node.name].setdefault(rank, set()).update(x)
	_, status, health = second(node, replace(cluster.work / f"second{node.number}", copy_of(node)), node.name, lambda health: TAKEN in health or member_of(health))
	if status:
		return
	counts["mounted twice"] += 1
	if status is None and member_of(health):
		counts["put back"] += 1  # it may have had versions that the other one does not
	elif status is not None or TAKEN not in health:
		end_badly("wrong", f"a copy of {node.name}'s store was mounted, and is neither: {status}: {health}")


def copy_of(node):
	return cluster.work / f"backup-{node.name}"


def replace(to, of):
	"""Puts a copy of a folder in the place of another one.  Two of these faults may be of the same copy."""
	with copies:
		shutil.rmtree(to, ignore_errors=True)
		shutil.copytree(of, to, symlinks=True)
	return to


def change_store(node, rng):
	"""What is done to a store while its node is not mounted."""
	rng.choice([put_out, Node.kill])(node)
	what = rng.choice(["backup", "older", "older", "older", "wiped", "swapped", "twice"] if copy_of(node).exists() else ["backup"])
	say(f"{node.name}: its store: {what}")
	if what == "backup":
		replace(copy_of(node), node.store)
		with lock:
			node.kept = {job: {rank: set(x) for rank, x in job.pending[node.name].items()} for job in jobs}
	elif what == "older":
		replace(node.store, copy_of(node))
		with lock:
			counts["put back"] += 1
			for job in jobs:  # what was uncommitted in it
				for rank, x in node.kept[job].items():
					job.pending[node.name].setdefault(rank, set()).update(x)
	elif what == "wiped":
		empty = cluster.work / f"empty{node.number}"
		shutil.rmtree(empty, ignore_errors=True)
		empty.mkdir()
		refused(node, empty, node.name)
	elif what == "swapped":
		other = rng.choice([n for n in cluster.nodes if n is not node])
		refused(node, replace(cluster.work / f"second{node.number}", copy_of(other)) if copy_of(other).exists() else other.store, node.name)
	rise(node)
	if what == "twice":
		twice(node)


def mute(node, on=True):
	"""What it sends is lost, and what is sent to it arrives."""
	here = inside(node.namespace)
	link = json.loads(run(*here, "ip", "-j", "link").stdout)[-1]["ifname"].split("@")[0]
	if on:
		run(*here, "tc", "qdisc", "replace", "dev", link, "root", "tbf", "rate", "8bit", "burst", "1b", "limit", "1b")
	else:
		run(*here, "tc", "qdisc", "del", "dev", link, "root")


def part_from(node, other, on=True):
	"""It reaches the other one no more, nor the other one it; both reach all else."""
	for a, b in ((node, other), (other, node)):
		run(*inside(a.namespace), "ip", "route", "add" if on else "del", "unreachable", f"{b.address}/32", check=False)  # another part has done it


def node_fault(node, rng):
	what = rng.choice(["kill", "kill", "stop", "stop", "cut", "deaf", "mute", "part", "store", "store", "store"])
	seconds_ = rng.choice([0.2, 1, TTL + 1, 2 * TTL])
	say(f"{node.name}: {what} for {seconds_} s")
	if what == "store":
		return change_store(node, rng)
	other = rng.choice([n for n in cluster.nodes if n is not node])
	hurt = {"kill": lambda on: node.kill() if on else rise(node), "stop": node.stop, "cut": node.cut, "deaf": node.deaf,
		"mute": lambda on: mute(node, on), "part": lambda on: part_from(node, other, on)}[what]
	hurt(True)
	over.wait(seconds_)
	hurt(False)
	return None


def etcd_fault(rng):
	"""One server, or a majority, or the only one."""
	seconds_ = rng.choice([0.3, 1, TTL + 2, 2.5 * TTL])
	who = rng.sample(cluster.etcds, rng.choice([1, 1, 2])) if cluster.etcds else [None]
	what = rng.choice(["kill", "stop", "cut"] if cluster.etcds else ["kill", "stop"])
	say(f"etcd {[e.name for e in who if e]}: {what} for {seconds_} s")
	for e in who:
		daemon = e.daemon if e else cluster.etcd
		if what == "cut":
			e.cut()
		elif what == "kill":
			daemon.kill()
			daemon.wait(60)
		else:
			daemon.send_signal(signal.SIGSTOP)
	over.wait(seconds_)
	for e in who:
		if what == "cut":
			e.cut(False)
		elif what == "kill":
			e.up() if e else cluster.etcd_up()
		else:
			(e.daemon if e else cluster.etcd).send_signal(signal.SIGCONT)


def faults(rng, taken):
	"""One after the other, of a node or of etcd; two of these threads never take the same one."""
	while not over.is_set():
		over.wait(rng.random() * 4)
		with lock:
			free = [n for n in [None, *cluster.nodes] if n not in taken]
			who = rng.choice(free)
			taken.append(who)
			hit = cluster.nodes if who is None else [who]
			for n in hit:
				n.epoch += 1
				n.well = False
		counts["faults"] += 1
		etcd_fault(rng) if who is None else node_fault(who, rng)
		say(f"{who.name if who else 'etcd'} is well again")
		with lock:
			taken.remove(who)


def watch():
	"""Who is well; what hangs; who has died by itself; how large daemons are."""
	while not ending.is_set():
		time.sleep(0.5)
		for n in cluster.nodes:
			if n not in taken and n.daemon.poll() is not None:
				time.sleep(0.2)
				if n not in taken:
					end_badly("wrong", f"{n.name} has died: {n.daemon.returncode}")
			if n not in taken and None not in taken and not n.well and member(n):
				with lock:
					if n not in taken and None not in taken:
						n.epoch, n.well = n.epoch + 1, True
			for line in peek(pathlib.Path(f"/proc/{n.daemon.pid}/status")).splitlines():
				if line.startswith("VmHWM:"):
					counts["largest"] = max(counts["largest"], int(line.split()[1]))
		for since, what in list(busy.values()):
			if time.monotonic() - since > HANGS:
				end_badly("hung", f"{time.monotonic() - since:.0f} s: {what}")


# --- the end ---

def files(job, node):
	"""SHA-256 of each rank's file, each judged; or that it is lost, where a store was put back since it was made."""
	found = {}
	for rank in range(job.tp):
		e = job.look(node, rank)
		aged = any(c.age < puts() for c in job.versions[job.head].cells) if job.head else True
		if e and not (aged and isinstance(e, OSError) and e.errno == errno.EIO):
			raise e
		found[rank] = "lost" if e else hashlib.sha256(job.path(node, rank).read_bytes()).hexdigest()
	return found


def settled(job):
	"""What is missing until all is as it is to be, or ''."""
	missing = [f"{n.name} is no member" for n in cluster.nodes if not member(n)]
	for n in cluster.nodes:
		if not missing and (said := job.discard(n)) != "ok":
			missing.append(f"{n.name}: discard: {said}")
	if missing:
		return "; ".join(missing)
	try:
		heads = {n.name: [line for line in n.read(job.name, "status").splitlines() if line.startswith("version: ")] for n in cluster.nodes}
		if any(h != [f"version: {job.head}"] for h in heads.values()) and job.head:
			return f"heads are {heads}, not {job.head}"
		shown = [(files(job, n) if job.head else {}, sorted(os.listdir(n.mount / job.name / ".v")) if job.head else []) for n in cluster.nodes]
	except OSError as e:
		return str(e)
	for rank in range(job.tp if job.head else 0):  # one may have read what is lost since
		if len({is_[0][rank] for is_ in shown} - {"lost"}) > 1:
			return f"rank {rank} is not the same on all: {[is_[0][rank] for is_ in shown]}"
	if any(is_[1] != shown[0][1] for is_ in shown):
		return f"not all have the same versions: {[is_[1] for is_ in shown]}"
	if rows := cluster.keys("/proposal"):
		return f"there is a proposal: {rows}"
	waiting = [line for n in cluster.nodes for line in (n.mount / ".ctl/metrics").read_text().splitlines() if line.startswith("scalai_reads_waiting ") and line[-2:] != " 0"]
	owing = {n.name: owed(n.mount) for n in cluster.nodes if owed(n.mount)}
	return f"it waits: {waiting} {owing}" if waiting or owing else ""


def finish():
	for job in jobs:
		end, why = time.monotonic() + HANGS, ""
		while (why := settled(job)) and time.monotonic() < end:
			time.sleep(0.3)
		if why:
			end_badly("lost" if "Input/output" in why else "hung", f"{job.name} is not settled {HANGS} s after all was healed: {why}")
		job.full, end = True, time.monotonic() + 30  # and it goes on
		while (said := job.commit(cluster.nodes[-1])) != "ok" or (said := job.topology(cluster.nodes[0], 6 if job.tp == 12 else 12)) != "ok":
			if time.monotonic() > end:
				end_badly("hung", f"{job.name} takes nothing any more: {said}")
			job.discard_all()
	taken.extend(cluster.nodes)
	for n in cluster.nodes:
		with waits_for(f"{n.name} is unmounted"):
			n.down()
		fsck = subprocess.run([binary, "fsck", n.store], capture_output=True, text=True)
		if fsck.returncode:
			end_badly("wrong", f"{n.name}: fsck: {fsck.stdout}{fsck.stderr}")


cluster = the.cluster = Cluster(work, binary, nodes=nr_nodes, ttl_ms=int(TTL * 1000), fresh_ms=900, etcds=nr_etcds)
signal.signal(signal.SIGINT, terminated)
signal.signal(signal.SIGHUP, terminated)
for node_ in cluster.nodes:
	node_.epoch, node_.well, node_.kept = 0, True, {}
	node_.up()
taken, copies = [], threading.Lock()
jobs += [Job(i + 1) for i in range(2)]
threads = [(job.runs,) for job in jobs]
for job_ in jobs:
	job_.rng = random.Random(f"{seed} {job_.name}")
	job_.commit(cluster.nodes[0])
for node_ in cluster.nodes:
	threads += [(what, node_, random.Random(f"{seed} {node_.name} {what.__name__}")) for what in (reader, reader, noter)]
threads += [(faults, random.Random(f"{seed} faults {i}"), taken) for i in range(2)]


def guarded(what, *args):
	try:
		what(*args)
	except BaseException as e:  # a fault of this script, or what node.py says that does not work
		end_badly("wrong", f"{what}: {traceback.format_exc() if not isinstance(e, SystemExit) else e}")


threads = [threading.Thread(target=guarded, args=t, daemon=True) for t in threads]
threading.Thread(target=guarded, args=(watch,), daemon=True).start()
for t in threads:
	t.start()
time.sleep(max(0.0, seconds - (time.monotonic() - the.began)))
over.set()
for t in threads:
	t.join()
say("all is healed")
guarded(finish)
ending.set()
print(result(), flush=True)
