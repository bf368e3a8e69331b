# SPDX-License-Identifier: Apache-2.0
"""
Nodes of a cluster on one machine: each daemon and an etcd in a network namespace of its own, joined by a bridge in a
namespace of the hub; nothing goes outside.  Mounts are where everybody sees them.  Needs root; exits 77 where namespaces
can't be made or there is no etcd.  It is taken down at the end of the program, and by SIGTERM; SIGUSR2 prints the stacks of all
threads of the program.  MOUNT_OPTIONS: of each mount, beside its own.  TLS=1: all speak TLS, etcd too.
FABRIC=ucx: nodes speak over UCX, by the libraries of .deps/ucx or the system's.
"""
import atexit
import base64
import contextlib
import errno
import faulthandler
import fcntl
import hashlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import ssl
import stat
import subprocess
import sys
import threading
import time
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import leftovers  # noqa: E402
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from waits import owed, stop # noqa: E402

NET = "10.213.7"
CLONE_NEWNET = 0x40000000
PROTOCOL = 2  # that a cluster speaks which this program makes
PATIENCE = int(os.environ.get("PATIENCE", 3))	# of waits, times: they are against a hang, also where others have the processors
NOT_YET = (errno.ENOENT, errno.EHOSTDOWN)
STOOD_STILL = ("is no member of the cluster now", "registration with etcd ended", "has not answered in time")
UCX = pathlib.Path(__file__).resolve().parents[2] / ".deps/ucx/lib"
OURS = pathlib.Path(__file__).resolve().parents[2] / ".deps/etcd/usr/bin/etcd"
CERTIFICATES = pathlib.Path(__file__).resolve().parents[1] / "certificates"
ETCD = shutil.which("etcd") or (str(OURS) if OURS.exists() else None)


def skip(why):
	print(f"skipped: {why}")
	sys.exit(77)


class Failed(subprocess.CalledProcessError):
	"""Of a program: with what it said."""
	def __str__(self):
		return f"{super().__str__()}\n{self.stdout}{self.stderr}".rstrip()


def run(*words, check=True):
	r = subprocess.run(words, capture_output=True, text=True)
	if check and r.returncode:
		raise Failed(r.returncode, [str(w) for w in words], r.stdout, r.stderr)
	return r


def tail(path, size):
	"""The end of a log, or that there is none."""
	try:
		return pathlib.Path(path).read_text(errors="backslashreplace")[-size:]
	except OSError as e:
		return f"({e})"


def stacks(daemon):
	"""Where the threads of a daemon are that does not do what it should."""
	return "\n".join(leftovers.stacks([daemon.pid])) if daemon and daemon.poll() is None else "it has ended"


def inside(namespace):
	return ["nsenter", f"--net=/run/netns/{namespace}"]


clusters, maker = [], os.getpid()


def terminated(*_):
	"""SIGTERM: threads of the test may wait for daemons, so that none of the threads is waited for."""
	if os.getpid() == maker:  # and no child that was forked
		for cluster in clusters:
			cluster.end()
	os._exit(128 + signal.SIGTERM)


class Host:
	"""A process in a network namespace of its own."""
	def __init__(self, cluster, name, address):
		self.cluster, self.name, self.address = cluster, name, address
		self.namespace = f"{cluster.prefix}-{name}"
		self.daemon = None

	def stop(self, on=True):
		stop(self.daemon.pid) if on else self.daemon.send_signal(signal.SIGCONT)

	def cut(self, on=True):
		"""Takes the carrier away, at the hub's side."""
		run(*inside(self.cluster.hub), "ip", "link", "set", self.name, "down" if on else "up")

	def slow(self):
		"""What arrives comes at 600 bytes a second, from now on and until deaf(False)."""
		hub = inside(self.cluster.hub)
		run(*hub, "tc", "qdisc", "replace", "dev", self.name, "root", "tbf", "rate", "4800bit", "burst", "1600b", "limit", "100kb")
		send = f"import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(bytes(1472), ('{self.address}', 9))"
		run(*hub, sys.executable, "-c", send)  # the first 1600 bytes would come at once

	def deaf(self, on=True):
		"""Nothing arrives any more, and what is sent does."""
		hub = inside(self.cluster.hub)
		if on:  # no packet is as small
			run(*hub, "tc", "qdisc", "replace", "dev", self.name, "root", "tbf", "rate", "8bit", "burst", "1b", "limit", "1b")
		else:
			run(*hub, "tc", "qdisc", "del", "dev", self.name, "root")


class Etcd(Host):
	"""One of several, all of which vote."""
	def __init__(self, cluster, number):
		super().__init__(cluster, f"e{number}", f"{NET}.{200 + number}")
		self.url = f"http://{self.address}:2379"

	def up(self):
		peers = ",".join(f"{e.name}=http://{e.address}:2380" for e in self.cluster.etcds)
		self.daemon = self.cluster.run_etcd(
			self.namespace, self.name, "--name", self.name,
			"--listen-client-urls", self.url, "--advertise-client-urls", self.url,
			"--listen-peer-urls", f"http://{self.address}:2380",
			"--initial-advertise-peer-urls", f"http://{self.address}:2380", "--initial-cluster", peers, "--pre-vote")

	def kill(self):
		self.daemon.kill()
		self.daemon.wait(60)


class Node(Host):
	def __init__(self, cluster, number):
		super().__init__(cluster, f"n{number}", f"{NET}.{number}")
		self.number = number
		self.store = cluster.work / f"store{number}"
		self.mount = cluster.work / f"mnt{number}"
		self.log = cluster.work / f"log{number}"
		self.certificates = cluster.work / "certificates" / self.name
		self.domain = self.protocols = None
		self.fabric = os.environ.get("FABRIC")  # tcp, ucx
		self.own = cluster.work / f"own{number}"  # where its daemon is: /proc/self/cwd of this node alone

	def start(self, binary=None):
		self.mount.mkdir(exist_ok=True)
		self.own.mkdir(exist_ok=True)
		etcd = ",".join(f"etcd={url}" for url in self.cluster.urls)
		options = f"cluster=test,node={self.name},listen={self.address}:7077,{etcd}"
		if self.cluster.tls:
			options += f",tls={self.certificates},etcd_tls={self.certificates}"
		if self.fabric:
			options += f",fabric={self.fabric}"
		if self.domain:
			options += f",domain={self.domain}"
		if os.environ.get("MOUNT_OPTIONS"):
			options += "," + os.environ["MOUNT_OPTIONS"]
		with open(self.log, "ab") as log:
			self.log_from = log.seek(0, os.SEEK_END)
			self.daemon = subprocess.Popen(
				[*inside(self.namespace), binary or self.cluster.binary, "mount", "-f", "-o", options,
				 self.store, self.mount], stdout=log, stderr=log, cwd=self.own,
				env=dict(os.environ, SCALAI_STEPS=str(self.own), LD_LIBRARY_PATH=os.environ.get("LIBUCX", str(UCX)),
					 **({"SCALAI_PROTOCOLS": self.protocols} if self.protocols else {})))
		self.wait(self.health, 30, "it is mounted")

	def up(self, binary=None):
		self.start(binary)
		self.wait(lambda: "is a member" in self.health(), 30, "it is a member")
		self.wait(lambda: " is mounted at " in self.said(), 30, "it says that it is mounted")
		# from the first on: by its log, since a registration may end where the machine stands still
		self.was_member = " is a member of cluster " in self.said().partition(" is mounted at ")[0]
		return self

	def said(self):
		"""Its log since it was started last."""
		with open(self.log, "rb") as log:
			log.seek(self.log_from)
			return log.read().decode(errors="replace")

	def health(self):
		try:
			return (self.mount / ".ctl/health").read_text()
		except OSError:
			if self.daemon.poll() is not None:
				raise SystemExit(f"{self.name} has ended with {self.daemon.returncode}: {tail(self.log, 2000)}")
			return ""

	def wait(self, what, seconds, name):
		"""Waits until it is true, and ends at once then; `seconds` are of a machine that does nothing else.  What a node may say for a
		moment is "not yet" (docs/cluster.md): ENOENT of a job that another node has just made, EHOSTDOWN of one that does not know what is
		newest."""
		seconds *= PATIENCE
		end = time.monotonic() + seconds
		while True:
			last = ""
			try:
				if what():
					return
			except OSError as e:
				if e.errno not in NOT_YET:
					raise
				last = f" ({e})"
			if time.monotonic() > end:
				# where all nodes are, and last what is missing: of a long log the end is shown
				where = "\n".join(f"{n.name}: {stacks(n.daemon)}" for n in self.cluster.nodes)
				raise SystemExit(f"{where}\n{tail(self.log, 2000)}\n{self.name}: not within {seconds} s: {name}{last}")
			time.sleep(0.02)

	def settled(self, seconds=30):
		"""Waits until its daemon owes nothing of what was asked before: files are hashed, records are written."""
		self.wait(lambda: not owed(self.mount), seconds, "it owes nothing")

	def down(self):
		"""It is unmounted, and ends with status 0; else what was said, its log and its stacks."""
		try:
			r = subprocess.run([self.cluster.binary, "umount", str(self.mount)], capture_output=True, text=True, timeout=120)
			said = f"umount: status {r.returncode}: {r.stdout}{r.stderr}" if r.returncode else ""
			code = None if said else self.daemon.wait(60)
		except subprocess.TimeoutExpired as e:
			said, code = str(e), None
		if said or code is None:
			raise SystemExit(f"{self.name} does not end: {said}\n{tail(self.log, 3000)}\n{stacks(self.daemon)}")
		if code:
			raise SystemExit(f"{self.name} has ended with {code}: {tail(self.log, 3000)}")

	def kill(self):
		self.daemon.send_signal(signal.SIGKILL)
		self.daemon.wait(60)
		run("umount", "-l", str(self.mount), check=False)

	def ctl(self, job, file, text):
		"""Writes a command; its errno's name, or ''."""
		try:
			fd = os.open(self.mount / job / ".ctl" / file, os.O_WRONLY)
			try:
				os.write(fd, text.encode())
			finally:
				os.close(fd)
		except OSError as e:
			return os.strerror(e.errno)
		return ""

	def must(self, job, file, text):
		"""What is refused since a machine stood still for as long as a registration lasts is asked again, as `error` says; it is
		printed, so that it is seen where nothing stood still."""
		end = time.monotonic() + 30
		while why := self.ctl(job, file, text):
			said = self.read(job, "error").strip()
			if time.monotonic() > end or not (why == os.strerror(errno.EHOSTDOWN) or any(part in said for part in STOOD_STILL)):
				break
			print(f"figure: {self.name} is asked again for '{text.strip()}' > {file}: {why}: {said}", flush=True)
			time.sleep(0.5)
		if why:
			raise SystemExit(f"{self.name}: '{text}' > {file}: {why}: {self.read(job, 'error')}")

	def read(self, job, file):
		return (self.mount / job / ".ctl" / file).read_text()

	def tree(self, job, attributes=True):
		"""All that can be seen of a job: a dict by path."""
		top, found = self.mount / job, {}
		def fail(error):
			raise SystemExit(f"{self.name}: {error}: {self.read(job, 'error')}\n{self.health()}")

		for folder, folders, files in os.walk(top, onerror=fail):
			for name in folders + files:
				path = pathlib.Path(folder, name)
				st = path.lstat()
				what = [stat.S_IFMT(st.st_mode)]
				if attributes:
					what += [st.st_mode, st.st_uid, st.st_gid]
				if stat.S_ISREG(st.st_mode):
					what += [st.st_size, st.st_nlink, hashlib.sha256(path.read_bytes()).hexdigest()]
					if attributes:
						what += [st.st_mtime_ns]
				elif stat.S_ISLNK(st.st_mode):
					what += [os.readlink(path)]
				found[str(path.relative_to(top))] = tuple(what)
		return found


class Cluster:
	def __init__(self, work, binary, nodes=3, ttl_ms=4000, fresh_ms=1200, etcds=1, tls=os.environ.get("TLS") == "1", protocol=PROTOCOL,
		     etcd_options=()):
		self.work, self.binary = pathlib.Path(work).resolve(), str(pathlib.Path(binary).resolve())
		# whose they are is seen by the name: of the case that is run (tests/support/leftovers.py), and the process
		self.prefix = f"sc{os.getpid()}-{leftovers.namespace_part(os.environ.get('WORK') or self.work)}"
		self.hub = f"{self.prefix}-hub"
		self.etcd = None  # one in the hub, if there are not several
		self.etcds = [Etcd(self, i + 1) for i in range(etcds)] if etcds > 1 else []
		self.tls = tls  # not with several etcds
		self.etcd_options = etcd_options  # of the one in the hub
		self.urls = [e.url for e in self.etcds] or [f"http{'s' if tls else ''}://{NET}.254:2379"]
		if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("nsenter"):
			skip("no network namespaces: run as root, with iproute2 and util-linux")
		if not ETCD:
			skip("there is no etcd: install Debian's etcd-server (tools/setup --test does)")
		with open(__file__, encoding="utf-8") as lock:  # the machine's first makes a mount for them all: not twice at a time
			fcntl.flock(lock, fcntl.LOCK_EX)
			made = run("ip", "netns", "add", self.hub, check=False)
		if made.returncode:
			skip("network namespaces can't be made here")
		atexit.register(self.end)
		clusters.append(self)
		if threading.current_thread() is threading.main_thread():
			signal.signal(signal.SIGTERM, terminated)
		faulthandler.register(signal.SIGUSR2, all_threads=True)
		self.work.mkdir(parents=True, exist_ok=True)
		self.nodes = [Node(self, i + 1) for i in range(nodes)]
		if tls:
			names = [n.name for n in self.nodes]
			run(CERTIFICATES, self.work / "certificates", "2", f"etcd={NET}.254", *names)
		self.connect()
		self.start_etcd(ttl_ms, fresh_ms, protocol)

	def connect(self):
		hub = inside(self.hub)
		run(*hub, "ip", "link", "set", "lo", "up")
		run(*hub, "ip", "link", "add", "name", "hub0", "type", "bridge")
		run(*hub, "ip", "address", "add", f"{NET}.254/24", "dev", "hub0")
		run(*hub, "ip", "link", "set", "hub0", "up")
		# UCX takes names of interfaces from /sys, which is the outer namespace's: one of the same name, and it is this one
		link = next((name for name in sorted(os.listdir("/sys/class/net")) if name != "lo"), "eth")
		for n in self.nodes + self.etcds:
			run("ip", "netns", "add", n.namespace)
			here = inside(n.namespace)
			run(*hub, "ip", "link", "add", "name", n.name, "type", "veth", "peer", "name", link, "netns", n.namespace)
			run(*hub, "ip", "link", "set", n.name, "master", "hub0", "up")
			run(*here, "ip", "link", "set", "lo", "up")
			run(*here, "ip", "address", "add", f"{n.address}/24", "dev", link)
			run(*here, "ip", "link", "set", link, "up")

	def etcd_up(self):
		"""The one in the hub, with what is in its folder."""
		url = self.urls[0]
		self.etcd = self.run_etcd(
			self.hub, "etcd", "--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", "http://127.0.0.1:2380",
			"--initial-advertise-peer-urls", "http://127.0.0.1:2380", "--initial-cluster", "default=http://127.0.0.1:2380",
			*self.etcd_certificates(), *self.etcd_options)

	def start_etcd(self, ttl_ms, fresh_ms, protocol):
		for e in self.etcds:
			e.up()
		if not self.etcds:
			self.etcd_up()
		value = (f"id {os.urandom(16).hex()}\nprotocol_min {protocol}\nprotocol_max {protocol}\nfresh_ms {fresh_ms}\nttl_ms {ttl_ms}\n"
			 "copies 1\ndomains \n")
		for _ in range(100):
			if self.put("/scalai/test/meta", value):
				return
			time.sleep(0.1)
		logs = [self.work / f"{e.name}.log" for e in self.etcds] or [self.work / "etcd.log"]
		raise SystemExit("etcd does not start\n" + "\n".join(f"{log.name}: {tail(log, 1000)}" for log in logs))

	def run_etcd(self, namespace, name, *options):
		with open(self.work / f"{name}.log", "ab") as log:
			return subprocess.Popen([*inside(namespace), ETCD, "--data-dir", self.work / name, "--unsafe-no-fsync",
						 "--log-level", "warn", *options], stdout=subprocess.DEVNULL, stderr=log)

	def etcd_certificates(self):
		at = self.work / "certificates/etcd"
		return ["--cert-file", at / "cert.pem", "--key-file", at / "key.pem", "--trusted-ca-file", at / "ca.pem",
			"--client-cert-auth"] if self.tls else []

	def post(self, path, body, url=None):
		"""The answer, or None: asked from the hub, of one server, or of the first that answers."""
		for u in [url] if url else self.urls:
			answer = self.post_to(u, path, body)
			if answer is not None:
				return answer
		return None

	def post_to(self, url, path, body):
		"""By a thread that is in the hub's namespace until it ends: a program for each question would be most of what a test costs."""
		answer, at = [], urllib.parse.urlsplit(url)

		def ask():
			try:
				with open(f"/run/netns/{self.hub}", "rb") as namespace:
					if leftovers.libc.setns(namespace.fileno(), CLONE_NEWNET):
						return
				connection = http.client.HTTPConnection(at.hostname, at.port, timeout=2)
				if self.tls:
					connection = http.client.HTTPSConnection(at.hostname, at.port, timeout=2, context=self.tls_context())
				with contextlib.closing(connection):
					connection.request("POST", path, json.dumps(body))
					said = connection.getresponse()
					if said.status == 200:
						answer.append(json.loads(said.read()))
			except (OSError, http.client.HTTPException):
				pass

		thread = threading.Thread(target=ask)
		thread.start()
		thread.join()
		return answer[0] if answer else None

	def tls_context(self):
		at = self.work / "certificates/etcd"
		context = ssl.create_default_context(cafile=at / "ca.pem")
		context.load_cert_chain(at / "cert.pem", at / "key.pem")
		return context

	def put(self, key, value):
		encode = lambda text: base64.b64encode(text.encode()).decode()
		return self.post("/v3/kv/put", {"key": encode(key), "value": encode(value)}) is not None

	def leader(self):
		for e in self.etcds:
			status = self.post_to(e.url, "/v3/maintenance/status", {})
			if status and status["header"]["member_id"] == status.get("leader"):
				return e
		return None

	def keys(self, part):
		"""Those below all/ that have this in their name."""
		first, last = (base64.b64encode(k).decode() for k in (b"/scalai/test/all/", b"/scalai/test/all0"))
		answer = self.post("/v3/kv/range", {"key": first, "range_end": last, "keys_only": True})
		names = [base64.b64decode(kv["key"]).decode() for kv in answer.get("kvs", [])]
		return [name for name in names if part in name]

	def values(self, prefix):
		first, last = (base64.b64encode(f"/scalai/test/{p}".encode()).decode() for p in (prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)))
		answer = self.post("/v3/kv/range", {"key": first, "range_end": last})
		return [" ".join(base64.b64decode(kv.get(k, "")).decode() for k in ("key", "value")) for kv in answer.get("kvs", [])]

	def end(self):
		"""Nothing of it stays.  What can't be taken away is said, and all else is, in spite of it."""
		daemons = [d for d in [h.daemon for h in self.etcds + self.nodes] + [self.etcd] if d]
		for daemon in daemons:
			if daemon.poll() is None:
				daemon.kill()
		for n in self.nodes:
			for path in leftovers.mounts_below(n.mount):
				leftovers.unmount(path)
		end = time.monotonic() + 30
		for daemon in daemons:  # by no means of Popen's: in a signal's handler it may be at this very thing
			while daemon.poll() is None and (leftovers.stat_of(daemon.pid) or "Z")[0] not in "ZX":
				if time.monotonic() > end:
					print(f"the cluster's end: a daemon does not go\n{stacks(daemon)}", flush=True)
					break
				time.sleep(0.01)
		for name in [h.namespace for h in self.etcds + self.nodes] + [self.hub]:
			if os.path.exists(f"/run/netns/{name}"):
				r = run("ip", "netns", "del", name, check=False)
				if r.returncode:
					print(f"the cluster's end: {r.stderr}", flush=True)
