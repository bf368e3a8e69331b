# SPDX-License-Identifier: Apache-2.0
"""
heads.py JOB CHANGES|SECONDSs: beside programs that list a rank's folder, each topology is shown by the first stat(2) after the
write(2) that made it, and by the later ones.
"""
import json
import multiprocessing
import os
import struct
import sys
import time

from waits import Amount

job = sys.argv[1]
path = f"{job}/0/model.safetensors"


def control(file, text):
	fd = os.open(f"{job}/.ctl/{file}", os.O_WRONLY)
	os.write(fd, text.encode())
	os.close(fd)


def lists():
	while True:
		fd = os.open(f"{job}/0", os.O_RDONLY)
		list(os.scandir(fd))
		try:
			os.stat(path)
		except OSError:
			pass
		os.close(fd)


def sizes():
	found = {}
	for tp in (2, 4):
		control("topology", f"tp={tp}")
		found[tp] = os.stat(path).st_size
	return found


os.mkdir(job)
control("layout", "mesh tp\nw.weight tp=0\n*:* copy\n")
control("topology", "tp=2")
for rank in range(2):
	data = os.urandom(2048 * 16)
	header = json.dumps({"w.weight": {"dtype": "F32", "shape": [2048, 4], "data_offsets": [0, len(data)]}}).encode()
	header += b" " * (-len(header) % 8)
	os.makedirs(f"{job}/{rank}", exist_ok=True)
	with open(f"{job}/{rank}/model.safetensors", "wb") as f:
		f.write(struct.pack("<Q", len(header)) + header + data)
control("commit", "step=1")
is_size = sizes()
programs = [multiprocessing.Process(target=lists, daemon=True) for _ in range(6)]
for p in programs:
	p.start()
amount, changes = Amount(sys.argv[2]), 0
while amount.more(changes):
	for tp in (2, 4):
		control("topology", f"tp={tp}")
		changes += 1
		for look in range(4):
			size = os.stat(path).st_size
			if size != is_size[tp]:
				sys.exit(f"change {changes}, look {look}: {size} bytes of the version before, not {is_size[tp]}")
			time.sleep(0.0005)
gone = [p.exitcode for p in programs if not p.is_alive()]
for p in programs:
	p.kill()
if gone:
	sys.exit(f"programs that list have ended: {gone}")
print(f"{changes} topologies beside 6 programs that list")
