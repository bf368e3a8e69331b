#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
[WATCHES [ROUNDS]]: how long a change takes until the last of 2,000 real watches on one etcd is told.  Each is a connection of
its own to etcd's gateway, as a daemon's; the change is a commit's transaction.  In a network namespace of its own; exits
77 where that can't be made or there is no etcd.
"""
import base64
import http.client
import json
import os
import resource
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from nodes import ETCD, skip
from late import late

PORT, ALL = 2379, "/scalai/production-1/all/"
nr_watches = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 30
if "INSIDE" not in os.environ:
	if not ETCD:
		skip("there is no etcd: install Debian's etcd-server (tools/setup --test does)")
	if os.geteuid() != 0 or subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode:
		skip("network namespaces can't be made here: run as root")
	os.execvpe("unshare", ["unshare", "--net", sys.executable, *sys.argv], dict(os.environ, INSIDE="1"))
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
wanted = nr_watches + 100
resource.setrlimit(resource.RLIMIT_NOFILE, (max(wanted, 20000), max(wanted, 20000)))


def b64(text):
	return base64.b64encode(text.encode()).decode()


def post(path, body):
	"""The answer, and when it was sent and came."""
	wire = http.client.HTTPConnection("127.0.0.1", PORT, timeout=20)
	wire.connect()
	sent = time.monotonic()
	wire.request("POST", path, json.dumps(body))
	answer = json.loads(wire.getresponse().read())
	return answer, sent, time.monotonic()


def start_etcd(folder):
	url = f"http://127.0.0.1:{PORT}"
	etcd = subprocess.Popen([ETCD, "--data-dir", folder, "--listen-client-urls", url, "--advertise-client-urls", url,
				 "--unsafe-no-fsync"],
				stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
	for _ in range(1200):
		try:
			post("/v3/kv/range", {"key": b64("x")})
			return etcd
		except OSError:
			time.sleep(0.05)
	sys.exit("etcd does not start")


def watch():
	body = json.dumps({"create_request": {"key": b64(ALL), "range_end": b64(ALL[:-1] + "0")}})
	s = socket.create_connection(("127.0.0.1", PORT))
	s.sendall(f"POST /v3/watch HTTP/1.1\r\nHost: etcd\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
	return s


def until(sockets, poll, word, seconds):
	"""Reads until each has been sent this word; when the first and the last one had it."""
	left, seen, first = dict(sockets), dict.fromkeys(sockets, b""), None
	end = time.monotonic() + seconds
	while left:
		ready = poll.poll(max(end - time.monotonic(), 0))
		if not ready:
			sys.exit(f"{len(left)} of {len(sockets)} watches are not told within {seconds} s")
		for fd, _ in ready:
			data = sockets[fd].recv(65536)
			if not data:
				sys.exit("etcd has closed a watch")
			seen[fd] = seen[fd][-20:] + data
			if fd in left and word in seen[fd]:
				first = first or time.monotonic()
				del left[fd]
	return first, time.monotonic()


def commit(nr):
	"""A transaction as a commit's, with values as large as its are."""
	job = ALL + "jobs/f0e1d2c3b4a59687/"
	put = lambda key, bytes: {"request_put": {"key": b64(key), "value": b64("v" * bytes)}}
	return {"success": [put(job + "head", 250), put(job + f"store/{nr}", 180), put(ALL + "tick", 0),
			    {"request_delete_range": {"key": b64(job + "proposal")}}]}


with tempfile.TemporaryDirectory() as folder:
	etcd = start_etcd(folder)
	try:
		began = time.monotonic()
		poll, sockets = select.epoll(), {}
		for _ in range(nr_watches):
			s = watch()
			sockets[s.fileno()] = s
			poll.register(s.fileno(), select.EPOLLIN)
		until(sockets, poll, b'"created":true', 120)
		made = time.monotonic() - began
		first, last = [], []
		for nr in range(rounds):
			answer, sent, _ = post("/v3/kv/txn", commit(nr))
			if not answer.get("succeeded"):
				sys.exit(f"etcd refuses the change: {answer}")
			told = until(sockets, poll, b'"events"', 30)
			first.append((told[0] - sent) * 1000)
			last.append((told[1] - sent) * 1000)
			time.sleep(0.1)
		memory = int(open(f"/proc/{etcd.pid}/statm").read().split()[1]) * resource.getpagesize() >> 20
	finally:
		etcd.kill()
		etcd.wait()
print(f"figure: {nr_watches} watches, made in {made:.1f} s; {rounds} changes: the last one is told after "
      f"{statistics.median(last):.0f} ms ({min(last):.0f} to {max(last):.0f}), the first one after "
      f"{statistics.median(first):.1f} ms; etcd has {memory} MiB")
late("the last of all watches is told", f"{max(last):.0f} ms", "1000 ms")
