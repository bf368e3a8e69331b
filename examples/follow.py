# SPDX-License-Identifier: Apache-2.0
"""
A server that follows a trainer: it has each version as soon as it is committed, at a topology of its own, and nothing
is copied or converted for it. The trainer is elastic.py with any number of ranks.

    pip install ./python torch safetensors              # in a clone of Scalai
    python examples/follow.py /mnt/scalai elastic 8000 &
    curl http://127.0.0.1:8000/
    {"version": 7, "step": 35, "answer": -0.0123}

It reads a version by its number: `.v/7/.as/dp=1/0`. The head might be the next version in the middle of a read.
"""
import http.server
import json
import sys
import threading

import scalai
import scalai.tensors
import torch

serving = {}                                            # version, step, model: replaced as a whole


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        now = serving["now"]                            # this one, also if the next version comes meanwhile
        with torch.no_grad():
            answer = now["model"](torch.ones(64))[0].item()
        body = json.dumps({"version": now["version"], "step": now["step"], "answer": answer}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def load(job, version):
    saved = scalai.tensors.load(job, 0, topology="dp=1", version=version)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
    model.load_state_dict({name: saved[name] for name in model.state_dict()})
    step = next(v.step for v in job.versions() if v.number == version)
    return {"version": version, "step": step, "model": model}


def main(mount, name, port):
    job = scalai.Job(mount, name)
    server = None
    for version in job.follow():
        try:
            serving["now"] = load(job, version)
        except (FileNotFoundError, StopIteration):      # a job keeps its newest 4 versions: this one was overtaken
            continue
        print(f"serving version {version}, step {serving['now']['step']}", flush=True)
        if server is None:
            server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Answer)
            threading.Thread(target=server.serve_forever, daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
