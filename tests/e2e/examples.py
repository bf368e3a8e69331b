# SPDX-License-Identifier: Apache-2.0
"""Examples that need PyTorch alone, as their heads say: examples.py MOUNT"""
import json
import os
import re
import signal
import sys
import urllib.error
import urllib.request

import scalai
import scalai.tensors
import torch
from gang import EXAMPLES, Gang, free_port, until

MOUNT = sys.argv[1]


def bytes_of(path):
    with open(path, "rb") as f:
        return f.read()


def readme():
    """The script in README.md, by 2, 3 and 1 processes."""
    with open(os.path.join(EXAMPLES, "../README.md")) as f:
        script = re.search(r"```python\n(.*?)```", f.read(), re.S)[1]
    assert script.count("/mnt/scalai") == 1
    with open("readme.py", "w") as f:
        f.write(script.replace("/mnt/scalai", MOUNT) + "dist.destroy_process_group()\n")
    for world in (2, 3, 1):
        Gang(world, os.path.abspath("readme.py")).passed()
    assert torch.equal(torch.load(f"{MOUNT}/mine/0/state.pt")["w"], torch.arange(12.) + 3)
    assert scalai.Job(MOUNT, "mine").status().step == 3
    print("README.md: as printed")


def plain():
    """Killed in the middle, it goes on behind its last commit as one that was not."""
    whole = Gang(1, "plain.py", MOUNT, "whole", 40, launched=False)
    whole.passed()
    first = Gang(1, "plain.py", MOUNT, "plain", 1000000, launched=False)
    until("step 10 is committed", lambda: "11" in first.losses())
    first.killed()
    done = scalai.Job(MOUNT, "plain").status().step
    assert done >= 10 and done % 10 == 0, done
    second = Gang(1, "plain.py", MOUNT, "plain", done + 20, launched=False)
    second.passed()
    both = dict(first.losses(), **second.losses())
    assert list(second.losses())[0] == str(done + 1)
    assert all(both[step] == loss for step, loss in whole.losses().items() if step in both) and "11" in both
    two = Gang(2, "plain.py", MOUNT, "plain", done + 30)
    two.passed()
    assert scalai.Job(MOUNT, "plain").status().topology == "dp=2"
    print("plain: as printed")


def elastic():
    """4 -> 2 -> 4 -> 1: each loss, and each byte in the end."""
    whole = Gang(1, "elastic.py", MOUNT, "unbroken", 20)
    parts, server = {}, None
    for world, steps in ((4, 5), (2, 10), (4, 15), (1, 20)):
        gang = Gang(world, "elastic.py", MOUNT, "elastic", steps)
        gang.passed()
        parts.update(gang.losses())
        server = server or follow()
        server.has("elastic", steps)
    whole.passed()
    assert len(parts) == 20 and parts == whole.losses(), (parts, whole.losses())
    full = [bytes_of(f"{MOUNT}/{job}/.full/model.safetensors") for job in ("unbroken", "elastic")]
    assert full[0] == full[1] and len(full[0]) > 300000
    server.gang.killed()
    print("elastic, follow: as printed")


class follow:
    def __init__(self):
        self.port = free_port()
        self.gang = Gang(1, "follow.py", MOUNT, "elastic", self.port, launched=False)

    def ask(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=10) as r:
                return json.load(r)
        except (urllib.error.URLError, ConnectionError):
            return {"step": None}

    def has(self, job, step):
        """It answers by the version of this step, with the weights of that version."""
        until(f"step {step} is served", lambda: self.ask()["step"] == step)
        answer = self.ask()
        saved = scalai.tensors.load(scalai.Job(MOUNT, job), 0, topology="dp=1", version=answer["version"])
        hidden = torch.nn.functional.gelu(saved["0.weight"] @ torch.ones(64) + saved["0.bias"])
        assert abs(answer["answer"] - (saved["2.weight"] @ hidden + saved["2.bias"])[0].item()) < 1e-5, answer


signal.alarm(300)
readme()
plain()
elastic()
