# SPDX-License-Identifier: Apache-2.0
"""
The part of systemd that a unit with a descriptor store needs: kept.py SCALAI STORE MOUNT ROUNDS.  It starts holders, takes what they
give, and hands it to the next one, while another process (tests/package/user.py) has a file, a view, a mapping
and a writer open.
"""
import array
import os
import random
import signal
import socket
import subprocess
import sys
import time

scalai, store, m, rounds = *sys.argv[1:4], int(sys.argv[4])
path = os.path.abspath("notify")
listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
listener.bind(path)
listener.settimeout(60)
kept = {}	# name: descriptor
holder = None


def hear():
	"""Takes messages until the holder says that it is ready."""
	while True:
		text, control, _, _ = listener.recvmsg(1000, socket.CMSG_SPACE(4))
		words = dict(line.split("=", 1) for line in text.decode().splitlines())
		name = words.get("FDNAME")
		if "FDSTORE" in words:
			fds = array.array("i")
			fds.frombytes(control[0][2])
			os.set_inheritable(fds[0], False)
			if name in kept:
				os.close(fds[0])	# the same file: systemd does so, too
			else:
				kept[name] = fds[0]
		elif "FDSTOREREMOVE" in words:
			os.close(kept.pop(name))
		elif words == {"READY": "1"}:
			return


def start():
	"""Starts the next holder, with what is kept."""
	global holder
	names = sorted(kept)
	pid = os.fork()
	if pid == 0:
		for i, name in enumerate(names):
			os.dup2(kept[name], 100 + i)
		for i in range(len(names)):
			os.dup2(100 + i, 3 + i)
			os.close(100 + i)
		env = {**os.environ, "NOTIFY_SOCKET": path, "FDSTORE": "3", "LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(names)),
		       "LISTEN_FDNAMES": ":".join(names)}
		log = os.open("daemon.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
		os.dup2(log, 2)
		os.execve(scalai, [scalai, "mount", "-f", "-o", "hold,existing", store, m + "/"], env)
	holder = pid
	hear()


def health():
	return dict(line.split(": ", 1) for line in open(m + "/.ctl/health").read().splitlines()[1:])


def end(signal_number):
	"""Ends the holder as systemd does: after it has gone, the daemon is killed."""
	daemon = int(health()["pid"])
	os.kill(holder, signal_number)
	status = os.waitpid(holder, 0)[1]
	try:
		os.kill(daemon, signal.SIGKILL)
	except ProcessLookupError:
		pass
	return os.waitstatus_to_exitcode(status)


start()
assert sorted(kept) == ["scalai-fuse", "scalai-kept", "scalai-lock"], kept
# whoever has files open there must be another process: the next holder would wait for itself, when exec closes them in it
log = open("user.log", "w+")
user = subprocess.Popen([sys.executable, os.path.join(os.environ["E2E"], "../package/user.py"), m], stdout=log, stderr=log)
while "begun" not in open("user.log").read():
	assert user.poll() is None, open("user.log").read()
	time.sleep(0.05)
rng = random.Random(1)
for n in range(rounds):
	before = health()["pid"]
	kind = ("restart", "kill -9 of the holder", "reload")[n % 3]
	if kind == "reload":
		os.kill(holder, signal.SIGUSR1)
		hear()
	else:
		code = end(signal.SIGTERM if kind == "restart" else signal.SIGKILL)
		assert code == (0 if kind == "restart" else -signal.SIGKILL), (kind, code)
		time.sleep(rng.random() * 0.1)	# nobody serves
		start()
	assert health()["pid"] != before, kind
	assert len(kept) == 3, (kind, kept)
	time.sleep(0.1)
	assert user.poll() is None, (kind, open("user.log").read())
print(f"figure: {rounds} restarts, kills of the holder and reloads, 0 errors")

# the end: it says who is cut off, and the store is free although its lock is kept
done = subprocess.run([scalai, "umount", "--cut", m], capture_output=True, text=True, timeout=100)
assert done.returncode == 0, done.stderr
assert f"(pid {user.pid}), which uses '{m}/gpt/" in done.stderr, done.stderr
assert os.waitstatus_to_exitcode(os.waitpid(holder, 0)[1]) == 0
assert user.wait(60) == 1 and "error:" in open("user.log").read(), open("user.log").read()

# what is kept of a mount that has ended is given back, and another one begins
start()
assert len(kept) == 3 and os.path.getsize(m + "/gpt/1/new") > 0
# without users it is an umount like any other
done = subprocess.run([scalai, "umount", "--cut", m], capture_output=True, text=True)
assert (done.returncode, done.stderr) == (0, ""), done
assert os.waitstatus_to_exitcode(os.waitpid(holder, 0)[1]) == 0
