#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Uses a mount until SIGTERM: user.py MOUNT.  Reads an open file, a view and a mapping, and writes; a line for the first error."""
import mmap
import os
import signal
import sys
import time

m = sys.argv[1]
over = []
signal.signal(signal.SIGTERM, lambda *_: over.append(True))
real, view = open(m + "/gpt/0/model.safetensors", "rb"), open(m + "/gpt/.as/tp=4,dp=2/3/model.safetensors", "rb")
want_real, want_view = real.read(), view.read()
mapped = mmap.mmap(view.fileno(), 0, prot=mmap.PROT_READ)
w = os.open(m + "/gpt/1/new", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
written = 0
print("begun", flush=True)
while not over:
	try:
		assert os.pread(real.fileno(), len(want_real), 0) == want_real, "a file has other bytes"
		assert os.pread(view.fileno(), len(want_view), 0) == want_view, "a view has other bytes"
		assert mapped[:] == want_view, "a mapping has other bytes"
		assert os.write(w, b"x") == 1
		written += 1
		assert os.fstat(w).st_size == written, "a write is lost"
		assert "model.safetensors" in os.listdir(m + "/gpt/0"), "a name is lost"
	except (AssertionError, OSError) as e:
		print("error:", e, flush=True)
		sys.exit(1)
	time.sleep(0.01)
print("ended", written, flush=True)
