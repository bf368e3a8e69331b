# SPDX-License-Identifier: Apache-2.0
"""
ADDRESS:PORT TO:PORT FOLDER: hands on what clients of etcd say, and what it answers.  While FOLDER/watches is there, no watch goes
through: those that are open are closed.  While FOLDER/slow is there, all goes on a quarter of a second late, in each direction.
FOLDER/lose has a line "HOW COUNT KEYS": of the next COUNT transactions that put or delete a key which the expression KEYS finds
	answer		etcd does them, and the connection is closed in place of its answer,
	request		the connection is closed, and etcd never hears of them,
	late		etcd hears of them when the client has given up and FOLDER/held is gone, which has one line for each.
FOLDER/lost has their keys, FOLDER/listens is made when it is up.
"""
import asyncio
import base64
import json
import os
import re
import sys

(here, port), (there, other) = (a.rsplit(":", 1) for a in sys.argv[1:3])
flag, slow, lose, lost, held = (os.path.join(sys.argv[3], name) for name in ("watches", "slow", "lose", "lost", "held"))
watches = set()


def add(path, line):
	with open(path, "a", encoding="utf-8") as f:
		f.write(line + "\n")


async def request(reader):
	"""The next one, whole."""
	head = await reader.readuntil(b"\r\n\r\n")
	length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
	return head + (await reader.readexactly(int(length[1])) if length else b"")


def changed(data):
	"""Keys that a transaction puts or deletes."""
	if not data.startswith(b"POST /v3/kv/txn"):
		return []
	ops = json.loads(data.partition(b"\r\n\r\n")[2]).get("success", [])
	return [base64.b64decode(what["key"]).decode() for op in ops for name, what in op.items() if "range" not in name or "delete" in name.lower()]


def fate(data):
	"""What becomes of a request: "" or a HOW."""
	try:
		with open(lose, encoding="utf-8") as f:
			how, count, keys = f.read().split()
	except (FileNotFoundError, ValueError):
		return ""
	found = [key for key in changed(data) if re.search(keys, key)]
	if not found:
		return ""
	with open(lose, "w", encoding="utf-8") as f:
		f.write(f"{how} {int(count) - 1} {keys}" if int(count) > 1 else "")
	add(lost, f"{how} {found[0]}")
	return how


async def later(reader, data):
	"""Holds a request until its client has gone, and nobody holds it."""
	add(held, "a request")
	await reader.read()
	while os.path.exists(held):
		await asyncio.sleep(0.01)
	far_reader, far_writer = await asyncio.open_connection(there, int(other))
	far_writer.write(data)
	await far_writer.drain()
	await far_reader.readuntil(b"\r\n\r\n")
	add(lost, "late: it was done or refused")
	far_writer.close()


async def from_client(reader, writer, ends, loses):
	try:
		while data := await request(reader):
			if data.startswith(b"POST /v3/watch"):
				if os.path.exists(flag):
					break
				watches.add(ends)
			if os.path.exists(slow):
				await asyncio.sleep(1 / 4)
			how = fate(data)
			if how == "late":
				await later(reader, data)
			if how in ("late", "request"):
				break
			if how:
				loses.append(how)
			writer.write(data)
			await writer.drain()
	except (OSError, asyncio.IncompleteReadError):
		pass
	for w in ends:
		w.close()


async def from_etcd(reader, writer, ends, loses):
	try:
		while data := await reader.read(1 << 16):
			if loses:
				break
			if os.path.exists(slow):
				await asyncio.sleep(1 / 4)
			writer.write(data)
			await writer.drain()
	except OSError:
		pass
	for w in ends:
		w.close()


async def client(reader, writer):
	try:
		far_reader, far_writer = await asyncio.open_connection(there, int(other))
	except OSError:
		writer.close()
		return
	ends, loses = (writer, far_writer), []
	await asyncio.gather(from_client(reader, far_writer, ends, loses), from_etcd(far_reader, writer, ends, loses))
	watches.discard(ends)


async def main():
	await asyncio.start_server(client, here, int(port), limit=4 << 20)
	open(os.path.join(sys.argv[3], "listens"), "w", encoding="utf-8").close()
	while True:
		await asyncio.sleep(0.01)
		if os.path.exists(flag):
			for ends in list(watches):
				for w in ends:
					w.close()
				watches.discard(ends)
			open(flag + ".closed", "w", encoding="utf-8").close()


asyncio.run(main())
