# SPDX-License-Identifier: Apache-2.0
"""
Hugging Face's Trainer: a callback commits each checkpoint that it saves.

    pip install ./python torch transformers accelerate  # in a clone of Scalai
    python examples/hf_trainer.py /mnt/scalai trainer 40                                    # MOUNT, JOB, steps
    torchrun --standalone --nproc-per-node=2 examples/hf_trainer.py /mnt/scalai trainer 80

All ranks have the same model, so that rank 0's checkpoint is that of all; random states are each rank's own.
"""
import os
import sys

import scalai
import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Commit(TrainerCallback):
    """After each checkpoint, on every rank."""

    def __init__(self, job, rank, barrier):
        self.job, self.rank, self.barrier = job, rank, barrier

    def on_save(self, args, state, control, **_):
        self.job.commit_all(state.global_step, self.rank, self.barrier)


def rows():
    return [{"input_ids": torch.arange(8) * (i + 3) % 64, "labels": torch.arange(8) * (i + 3) % 64} for i in range(64)]


def main(mount, name, steps):
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        dist.init_process_group("gloo")
    barrier = dist.barrier if world > 1 else lambda: None
    job = scalai.Job(mount, name)
    if rank == 0:
        job.create("*rng_state*:* object\nuse replicated", f"dp={world}")
    job.resume(f"dp={world}", rank, barrier)
    folder = f"{job.folder(0)}/checkpoints"             # one for all ranks, as Trainer wants it

    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0,
                                       eos_token_id=0))
    args = TrainingArguments(output_dir=folder, max_steps=steps, save_steps=10, save_total_limit=1, use_cpu=True,
                             per_device_train_batch_size=2, report_to=[], logging_steps=1, disable_tqdm=True)
    trainer = Trainer(model=model, args=args, train_dataset=rows(), callbacks=[Commit(job, rank, barrier)])
    there = get_last_checkpoint(folder) if os.path.isdir(folder) else None
    trainer.train(resume_from_checkpoint=there)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
