# SPDX-License-Identifier: Apache-2.0
"""
Lightning: a callback saves and commits, and a restart goes on from what is committed.

    pip install ./python torch lightning                # in a clone of Scalai
    python examples/lightning_fit.py /mnt/scalai lightning 40                               # MOUNT, JOB, steps
    torchrun --standalone --nproc-per-node=2 examples/lightning_fit.py /mnt/scalai lightning 80
"""
import os
import sys

import lightning
import scalai
import torch
import torch.distributed as dist


class Commit(lightning.Callback):
    """On every rank: a checkpoint, which Lightning's rank 0 writes for all, and a commit."""

    def __init__(self, job, rank, barrier, every):
        self.job, self.rank, self.barrier, self.every = job, rank, barrier, every

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step % self.every == 0:
            trainer.save_checkpoint(f"{self.job.folder(0)}/last.ckpt")
            self.job.commit_all(trainer.global_step, self.rank, self.barrier)


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))

    def training_step(self, batch, _):
        loss = (self.layers(batch) - batch).square().mean()
        if self.global_rank == 0:
            print(self.global_step + 1, repr(loss.item()), flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main(mount, name, steps):
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        dist.init_process_group("gloo")
    barrier = dist.barrier if world > 1 else lambda: None
    job = scalai.Job(mount, name)
    if rank == 0:
        job.create("use replicated", f"dp={world}")
    done = job.resume(f"dp={world}", rank, barrier)

    trainer = lightning.Trainer(accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto",
                                max_steps=steps, callbacks=[Commit(job, rank, barrier, 10)], enable_checkpointing=False,
                                logger=False, enable_progress_bar=False, enable_model_summary=False)
    data = torch.utils.data.DataLoader(torch.randn(80, 64, generator=torch.Generator().manual_seed(2)), batch_size=8)
    trainer.fit(Model(), data, ckpt_path=f"{job.folder(rank)}/last.ckpt" if done is not None else None)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
