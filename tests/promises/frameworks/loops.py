"""A training in the loops of four frameworks, left and resumed.

Three epochs, and a checkpoint at each step.

Each loop appends the digest of every batch to `FOLDER/batches.RANK`, and leaves the weights in
`FOLDER/weights.RANK` at its end.
"""

import hashlib
import json
import os
import signal
import warnings
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DistributedSampler

from penstock import DataLoader, TorchLoader, build_train_loader, compose

EPOCHS, STEPS, SIZE = 3, 6, 4
WORDS = ["dataset.count=30", "dataset.size=48", f"batch.size={SIZE}"]


class Rows(torch.utils.data.Dataset):
    """22 rows that draw at random."""

    def __len__(self):
        return 22

    def __getitem__(self, index):
        return {"image": torch.full((30,), index / 22) + torch.rand(30), "landmarks": torch.ones(2)}


class Net(torch.nn.Module):
    """Linear, with dropout, which draws from the process's generators."""

    def __init__(self, dropout=0.2):
        super().__init__()
        self.dropout = dropout
        self.linear = torch.nn.Linear(30, 2)

    def forward(self, image, landmarks):
        inputs = torch.nn.functional.dropout(image.float().flatten(1)[:, :30] / 99, self.dropout)
        loss = (self.linear(inputs) - landmarks.float().flatten(1)[:, :2]).square().mean()
        return {"loss": loss}


def made(kind, workers, config=False):
    """A `DataLoader` ("dropin"), or the configured loader."""
    if kind == "dropin":
        return DataLoader(Rows(), batch_size=SIZE, shuffle=True, num_workers=workers, seed=3)
    ranks = ["distributed=ddp"] if "WORLD_SIZE" in os.environ else []
    composed = compose(*WORDS, *ranks, f"loader.num_workers={workers}")
    return composed if config else TorchLoader(build_train_loader(composed))


def wrapped(kind, workers):
    """A `TorchLoader`, of which a `DataLoader` among several ranks has its share."""
    ranks, rank = (
        int(os.environ.get(name, default)) for name, default in (("WORLD_SIZE", 1), ("RANK", 0))
    )
    if kind == "configured" or ranks == 1:
        loader = made(kind, workers)
        return loader if isinstance(loader, TorchLoader) else TorchLoader(loader)
    rows = Rows()
    own = DistributedSampler(rows, ranks, rank)
    return TorchLoader(DataLoader(rows, batch_size=SIZE, sampler=own, num_workers=workers, seed=3))


def batches_of(kind, epochs=EPOCHS):
    """Digests of a run without a framework."""
    loader = made(kind, 0)
    loader = loader.loader if isinstance(loader, TorchLoader) else loader
    return [digest(batch) for _ in range(epochs) for batch in loader]


def digest(batch):
    return hashlib.sha256(np.ascontiguousarray(batch["image"].numpy())).hexdigest()[:16]


class Log:
    """Counts steps, and stops the process at one of them.

    Args:
        stop: a step, "kill", "term" or "leave", and whether to kill a worker before it.
    """

    def __init__(self, folder, stop=None):
        self.rank = int(os.environ.get("RANK", "0"))
        self.folder, self.stop = Path(folder), stop
        self.file = (self.folder / f"batches.{self.rank}").open("a")

    def note(self, step, batch):
        """Before the step's update."""
        print(step, digest(batch), file=self.file, flush=True)
        if self.stop is None:
            return
        at, how, worker = self.stop
        if worker and step == at - 1:
            workers = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
            if workers:
                os.kill(int(workers[0]), signal.SIGKILL)
        if step == at:
            if how == "leave":
                raise KeyboardInterrupt
            os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGTERM)

    def end(self, model):
        self.file.close()
        weights = [value.flatten().tolist() for value in model.state_dict().values()]
        (self.folder / f"weights.{self.rank}").write_text(json.dumps(weights))


def newest(folder, pattern, but_each=None):
    """The checkpoint of the latest step, of those that are complete; without each n-th."""
    numbers = {path: int(path.stem.split("-")[1]) for path in Path(folder).glob(pattern)}
    kept = [path for path, step in numbers.items() if but_each is None or step % but_each]
    return max(kept, key=numbers.get, default=None)


def accelerate(kind, folder, workers, stop):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    log = Log(folder, stop)
    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, wrapped(kind, workers))
    saved, step = newest(folder, "state-*"), 0
    if saved is not None:
        accelerator.load_state(str(saved))
        step = int(saved.name.split("-")[1])
    steps = len(loader)
    for _ in range(step // steps, EPOCHS):
        for batch in loader:
            step += 1
            log.note(step, batch)
            accelerator.backward(model(**fields(batch))["loss"])
            optimizer.step()
            optimizer.zero_grad()
            save(accelerator, folder, step)
    log.end(accelerator.unwrap_model(model))
    accelerator.end_training()


def save(accelerator, folder, step):
    """So that a checkpoint is there, or not; ranks write into the same folder."""
    writing = Path(folder) / f"writing-{step}"
    accelerator.save_state(str(writing))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        writing.rename(writing.with_name(f"state-{step}"))
    accelerator.wait_for_everyone()


def fields(batch):
    return {name: batch[name] for name in ("image", "landmarks")}


def transformers(kind, folder, workers, stop):
    from transformers import Trainer, TrainingArguments, set_seed

    log = Log(folder, stop)

    class Noting(Trainer):
        def get_train_dataloader(self):
            return self.accelerator.prepare(wrapped(kind, workers))

        def training_step(self, model, inputs, items=None):
            log.note(self.state.global_step + 1, inputs)
            return super().training_step(model, fields(inputs), items)

    set_seed(1)
    arguments = TrainingArguments(
        str(folder), num_train_epochs=EPOCHS, save_steps=1, report_to=[], use_cpu=True,
        disable_tqdm=True, learning_rate=0.1, logging_steps=1000,
        ddp_backend="gloo" if "WORLD_SIZE" in os.environ else None,
    )  # fmt: skip
    model = Net()
    saved = [
        path for path in Path(folder).glob("checkpoint-*") if (path / "trainer_state.json").exists()
    ]
    whole = max(saved, key=lambda path: int(path.name.split("-")[1]), default=None)
    trainer = Noting(model, arguments)
    trainer.train(resume_from_checkpoint=whole and str(whole))
    log.end(model)


def lightning(kind, folder, workers, stop):
    import pytorch_lightning as pl
    from pytorch_lightning.callbacks import ModelCheckpoint

    from penstock import DataModule

    log = Log(folder, stop)

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net(dropout=0)  # Lightning keeps no generators

        def training_step(self, batch, index):
            log.note(self.trainer.global_step + 1, batch)
            return self.net(**fields(batch))["loss"]

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 0.1)

    pl.seed_everything(1, verbose=False)
    module, ranks = Module(), int(os.environ.get("WORLD_SIZE", "1"))
    every = ModelCheckpoint(
        folder,
        save_top_k=-1,
        every_n_train_steps=1,
        filename="state-{step}",
        auto_insert_metric_name=False,
    )
    trainer = pl.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_progress_bar=False,
        callbacks=[every], enable_model_summary=False, devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
    )  # fmt: skip
    data = {"train_dataloaders": made(kind, workers)} if kind == "dropin" else {
        "datamodule": DataModule(made(kind, workers, config=True))
    }  # fmt: skip
    # Lightning, which resumes behind an epoch's end, begins that epoch again when it resumes again.
    steps = STEPS // ranks if kind == "dropin" else STEPS
    saved = newest(folder, "state-*.ckpt", but_each=steps)
    trainer.fit(module, ckpt_path=saved and str(saved), **data)
    log.end(module.net)


def fabric(kind, folder, workers, stop):
    from lightning_fabric import Fabric

    log, ranks = Log(folder, stop), int(os.environ.get("WORLD_SIZE", "1"))
    runner = Fabric(accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto")
    runner.launch()
    torch.manual_seed(1)
    model = Net()
    model, optimizer = runner.setup(model, torch.optim.Adam(model.parameters(), 0.1))
    loader = runner.setup_dataloaders(made(kind, workers))
    saved, step = newest(folder, "state-*"), 0
    state = {
        "model": model,
        "optimizer": optimizer,
        "loader": loader,
        "drawn": torch.get_rng_state(),
    }
    if saved is not None:
        state["drawn"] = runner.load(saved, state).get("drawn", state["drawn"])
        torch.set_rng_state(state["drawn"])
        step = int(saved.name.split("-")[1])
    for _ in range(step // len(loader), EPOCHS):
        for batch in loader:
            step += 1
            log.note(step, batch)
            runner.backward(model(**fields(batch))["loss"])
            optimizer.step()
            optimizer.zero_grad()
            state["drawn"] = torch.get_rng_state()
            runner.save(Path(folder) / f"writing-{step}", state)
            if log.rank == 0:
                (Path(folder) / f"writing-{step}").rename(Path(folder) / f"state-{step}")
    log.end(model.module)


LOOPS = {
    "accelerate": accelerate,
    "transformers": transformers,
    "lightning": lightning,
    "fabric": fabric,
}


def in_processes(name, kind, folder, workers=0, stop=None, ranks=1, port=0):
    """Exit codes of the ranks: of processes that are forked, so that imports cost nothing."""
    children = []
    for rank in range(ranks):
        child = os.fork()
        if not child:
            code = 70
            try:
                if ranks > 1:
                    os.environ |= {
                        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks),
                        "NODE_RANK": "0", "LOCAL_WORLD_SIZE": str(ranks),
                        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                    }  # fmt: skip
                output = os.open(f"{folder}/output.{rank}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
                os.dup2(output, 1)
                os.dup2(output, 2)
                signal.alarm(120)  # rather than wait for ever for another rank
                os.environ["OMP_NUM_THREADS"] = "1"
                torch.set_num_threads(1)
                warnings.simplefilter("ignore")
                LOOPS[name](kind, folder, workers, stop)
                code = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    codes = dict.fromkeys(children)
    for _ in children:
        ended, status = os.waitpid(-1, 0)
        codes[ended] = os.waitstatus_to_exitcode(status)
        for child in children:  # as launchers do
            if codes[ended] and codes[child] is None:
                os.kill(child, signal.SIGKILL)
    return list(codes.values())


def noted(folder, rank=0):
    """Digests by step; a step that was made twice had the same batch both times."""
    batches = {}
    for line in (Path(folder) / f"batches.{rank}").read_text().splitlines():
        step, seen = line.split()
        assert batches.setdefault(int(step), seen) == seen, f"step {step}"
    return [batches[step] for step in sorted(batches)]
