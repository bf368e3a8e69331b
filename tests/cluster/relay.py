# SPDX-License-Identifier: Apache-2.0
"""
ADDRESS:PORT TO:PORT FOLDER: hands on what clients of etcd say, and what it answers.  While FOLDER/watches is there, no watch goes
through: those that are open are closed.  While FOLDER/slow is there, all goes on a quarter of a second late, in each direction.
FOLDER/listens is made when it is up.
"""
import asyncio
import os
import sys

(here, port), (there, other) = (a.rsplit(":", 1) for a in sys.argv[1:3])
flag, slow = (os.path.join(sys.argv[3], name) for name in ("watches", "slow"))
watches = set()


async def pass_on(reader, writer, ends, is_client):
	try:
		while data := await reader.read(1 << 16):
			if is_client and data.startswith(b"POST /v3/watch"):
				if os.path.exists(flag):
					break
				watches.add(ends)
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
	ends = (writer, far_writer)
	await asyncio.gather(pass_on(reader, far_writer, ends, True), pass_on(far_reader, writer, ends, False))
	watches.discard(ends)


async def main():
	await asyncio.start_server(client, here, int(port))
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
