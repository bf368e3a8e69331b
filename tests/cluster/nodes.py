# SPDX-License-Identifier: Apache-2.0
"""
Nodes of a cluster on one machine: each daemon and an etcd in a network namespace of its own, joined by a bridge in a
namespace of the hub; nothing goes outside.  Mounts are where everybody sees them.  Needs root; exits 77 where namespaces
can't be made or there is no etcd.  MOUNT_OPTIONS: of each mount, beside its own.
"""
import atexit
import base64
import errno
import hashlib
import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import time

NET = "10.213.7"
OURS = pathlib.Path(__file__).resolve().parents[2] / ".deps/etcd/usr/bin/etcd"
ETCD = shutil.which("etcd") or (str(OURS) if OURS.exists() else None)


def skip(why):
	print(f"skipped: {why}")
	sys.exit(77)


def run(*words, check=True):
	return subprocess.run(words, check=check, capture_output=True, text=True)


def inside(namespace):
	return ["nsenter", f"--net=/run/netns/{namespace}"]


class Node:
	def __init__(self, cluster, number):
		self.cluster, self.number = cluster, number
		self.name = f"n{number}"
		self.namespace = f"{cluster.prefix}-{self.name}"
		self.address = f"{NET}.{number}"
		self.store = cluster.work / f"store{number}"
		self.mount = cluster.work / f"mnt{number}"
		self.log = cluster.work / f"log{number}"
		self.own = cluster.work / f"own{number}"  # where its daemon is: /proc/self/cwd of this node alone
		self.daemon = None

	def up(self, binary=None):
		self.mount.mkdir(exist_ok=True)
		self.own.mkdir(exist_ok=True)
		etcd = ",".join(f"etcd={url}" for url in self.cluster.urls)
		options = f"cluster=test,node={self.name},listen={self.address}:7077,{etcd}"
		if os.environ.get("MOUNT_OPTIONS"):
			options += "," + os.environ["MOUNT_OPTIONS"]
		with open(self.log, "ab") as log:
			self.daemon = subprocess.Popen(
				[*inside(self.namespace), binary or self.cluster.binary, "mount", "-f", "-o", options,
				 self.store, self.mount], stdout=log, stderr=log, cwd=self.own)
		self.wait(lambda: "is a member" in self.health(), 30, "it is a member")
		return self

	def health(self):
		try:
			return (self.mount / ".ctl/health").read_text()
		except OSError:
			if self.daemon.poll() is not None:
				raise SystemExit(f"{self.name} has ended: {self.log.read_text()[-2000:]}")
			return ""

	def wait(self, what, seconds, name):
		"""Until it is true.  A job that another node has just made is not there for a moment, or not known (docs/cluster.md)."""
		end, why = time.monotonic() + seconds, ""
		while True:
			try:
				if what():
					return
			except OSError as e:
				if e.errno not in (errno.ENOENT, errno.EHOSTDOWN):
					raise
				why = f" ({e})"
			if time.monotonic() > end:
				raise SystemExit(f"{self.name}: not within {seconds} s: {name}{why}\n{self.log.read_text()[-2000:]}")
			time.sleep(0.02)

	def down(self):
		run(self.cluster.binary, "umount", str(self.mount))
		if self.daemon.wait(60):
			raise SystemExit(f"{self.name} has ended with {self.daemon.returncode}: {self.log.read_text()[-3000:]}")

	def kill(self):
		self.daemon.send_signal(signal.SIGKILL)
		self.daemon.wait()
		run("umount", "-l", str(self.mount), check=False)

	def cut(self, on=True):
		"""Takes the carrier away, at the hub's side."""
		run(*inside(self.cluster.hub), "ip", "link", "set", self.name, "down" if on else "up")

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
		why = self.ctl(job, file, text)
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
	def __init__(self, work, binary, nodes=3, ttl_ms=4000, fresh_ms=1200):
		self.work, self.binary = pathlib.Path(work).resolve(), str(pathlib.Path(binary).resolve())
		self.prefix = f"sc{os.getpid()}"
		self.hub = f"{self.prefix}-hub"
		self.urls = [f"http://{NET}.254:2379"]
		self.etcd = None
		if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("nsenter"):
			skip("no network namespaces: run as root, with iproute2 and util-linux")
		if not ETCD:
			skip("there is no etcd: install Debian's etcd-server (tools/setup --test does)")
		if run("ip", "netns", "add", self.hub, check=False).returncode:
			skip("network namespaces can't be made here")
		atexit.register(self.end)
		self.nodes = [Node(self, i + 1) for i in range(nodes)]
		self.connect()
		self.start_etcd(ttl_ms, fresh_ms)

	def connect(self):
		hub = inside(self.hub)
		run(*hub, "ip", "link", "set", "lo", "up")
		run(*hub, "ip", "link", "add", "name", "hub0", "type", "bridge")
		run(*hub, "ip", "address", "add", f"{NET}.254/24", "dev", "hub0")
		run(*hub, "ip", "link", "set", "hub0", "up")
		for n in self.nodes:
			run("ip", "netns", "add", n.namespace)
			here = inside(n.namespace)
			run(*hub, "ip", "link", "add", "name", n.name, "type", "veth", "peer", "name", "eth", "netns", n.namespace)
			run(*hub, "ip", "link", "set", n.name, "master", "hub0", "up")
			run(*here, "ip", "link", "set", "lo", "up")
			run(*here, "ip", "address", "add", f"{n.address}/24", "dev", "eth")
			run(*here, "ip", "link", "set", "eth", "up")

	def start_etcd(self, ttl_ms, fresh_ms):
		url = self.urls[0]
		self.etcd = subprocess.Popen(
			[*inside(self.hub), ETCD, "--data-dir", self.work / "etcd", "--listen-client-urls", url,
			 "--advertise-client-urls", url, "--listen-peer-urls", "http://127.0.0.1:2380",
			 "--initial-advertise-peer-urls", "http://127.0.0.1:2380",
			 "--initial-cluster", "default=http://127.0.0.1:2380", "--unsafe-no-fsync"],
			stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
		value = (f"id {os.urandom(16).hex()}\nprotocol_min 1\nprotocol_max 1\nfresh_ms {fresh_ms}\nttl_ms {ttl_ms}\n"
			 "copies 1\ndomains \n")
		for _ in range(100):
			if self.put("/scalai/test/meta", value):
				return
			time.sleep(0.1)
		raise SystemExit("etcd does not start")

	def post(self, path, body):
		code = "import sys,urllib.request as u;print(u.urlopen(sys.argv[1],sys.argv[2].encode(),5).read().decode())"
		r = run(*inside(self.hub), sys.executable, "-c", code, self.urls[0] + path, json.dumps(body), check=False)
		return json.loads(r.stdout) if r.returncode == 0 else None

	def put(self, key, value):
		encode = lambda text: base64.b64encode(text.encode()).decode()
		return self.post("/v3/kv/put", {"key": encode(key), "value": encode(value)}) is not None

	def end(self):
		for n in self.nodes:
			if n.daemon and n.daemon.poll() is None:
				n.daemon.kill()
				n.daemon.wait()
			run("umount", "-l", str(n.mount), check=False)
			run("ip", "netns", "del", n.namespace, check=False)
		if self.etcd:
			self.etcd.kill()
			self.etcd.wait()
		run("ip", "netns", "del", self.hub, check=False)
