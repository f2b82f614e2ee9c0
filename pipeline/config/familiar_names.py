"""Names that people bring along from torch, Lightning and Hugging Face, and what means them here.

    key     a key (`batch_size`, `loader.shuffle`)             -> what to write (`batch.size=32`)
    choice  the option of a group (`model=resnet18`)           -> what to write
    value   of a key with few values (`trainer.precision=16`)  -> the value

They are said in error messages, beside the nearest names that exist. They are no aliases: a
configuration has one way to say a thing.
"""

from __future__ import annotations

from collections.abc import Mapping

VALUE = "{value}"  # in the place of what was given

_TRUE, _FALSE = "true", "false"
_EPOCHS = "trainer.max_epochs={value}"
_SIZE = "batch.size={value}"
_VAL_SIZE = "batch.val_size={value}"
_RANKS = "distributed=ddp distributed.nproc={value}"
_WORKERS = "loader.num_workers={value}"
_RUN = "run_dir={value}"
_ROOT = "dataset.root={value}"
_SHUFFLE = {_TRUE: "sampler=random", _FALSE: "sampler=sequential"}
_DROP = {_TRUE: "batch.tail=drop", _FALSE: "batch.tail=keep"}
_OWN_MACHINES = "torchrun or srun, which start the processes of several machines"
_EMA = "trainer.ema=0.999, the share that the average keeps at each step"
_QUIET = {_TRUE: "trainer.progress=none", _FALSE: "trainer.progress=auto"}

# What to write; or that by the value that was given (in lower case), else all of the ways.
KEYS: dict[str, str | dict[str, str]] = {
    # torch.utils.data.DataLoader
    "batch_size": _SIZE, "bs": _SIZE, "shuffle": _SHUFFLE, "drop_last": _DROP,
    "dataset": "dataset={value}", "sampler": "sampler={value}",
    "batch_sampler": "sampler=bucket or sampler._target_={value}, where samplers stand, too",
    "collate_fn": "collate=stack (or pad, list) or collate._target_={value}",
    "workers": _WORKERS, "n_workers": _WORKERS,
    "num_proc": _WORKERS, "max_tokens": "sampler=bucket sampler.tokens={value}",
    # Lightning
    "seed_everything": "seed={value}", "random_seed": "seed={value}", "manual_seed": "seed={value}",
    "random_state": "seed={value}", "data_seed": "seed={value}",
    "gpus": _RANKS, "devices": _RANKS, "num_gpus": _RANKS, "num_devices": _RANKS,
    "num_processes": _RANKS, "nproc_per_node": _RANKS, "world_size": _RANKS, "nproc": _RANKS,
    "num_nodes": _OWN_MACHINES, "nnodes": _OWN_MACHINES,
    "strategy": {"ddp": "distributed=ddp", "fsdp": "distributed=fsdp"},
    "accelerator": {"gpu": "trainer.device=cuda", "cpu": "trainer.device=cpu",
                    "auto": "trainer.device=auto"},
    "gpu": "trainer.device=cuda", "cuda": "trainer.device=cuda", "use_cuda": "trainer.device=cuda",
    "no_cuda": "trainer.device=cpu", "use_cpu": "trainer.device=cpu",
    "accumulate_grad_batches": "trainer.accumulate={value}",
    "gradient_clip_val": "trainer.clip_norm={value}", "grad_clip": "trainer.clip_norm={value}",
    "clip_grad": "trainer.clip_norm={value}", "clip_grad_norm": "trainer.clip_norm={value}",
    "limit_train_batches": "trainer.limit_batches.train={value}",
    "limit_val_batches": "trainer.limit_batches.val={value}",
    "overfit_batches": "trainer.overfit_batches={value}",
    "fast_dev_run": "trainer.fast_dev_run={value}",
    "auto_lr_find": "task=lr_find", "lr_find": "task=lr_find", "find_lr": "task=lr_find",
    "check_val_every_n_epoch": "trainer.val_every={value}",
    "log_every_n_steps": "trainer.log_every={value}",
    "enable_progress_bar": {_TRUE: _QUIET[_FALSE], _FALSE: _QUIET[_TRUE]},
    "enable_checkpointing": {_TRUE: "trainer.checkpoint.every_epochs=1",
                             _FALSE: "trainer.checkpoint=null"},
    "save_top_k": "trainer.checkpoint.keep_last={value} (the best one stays as well)",
    "ckpt_path": "resume={value}, or checkpoint={value} with task=validate",
    "default_root_dir": _RUN, "logger": "tracker={value}",
    "sync_bn": "distributed.sync_batchnorm={value}",
    # Hugging Face
    "per_device_train_batch_size": f"{_SIZE}, over all devices",
    "per_device_eval_batch_size": f"{_VAL_SIZE}, over all devices",
    "train_batch_size": _SIZE, "eval_batch_size": _VAL_SIZE, "val_batch_size": _VAL_SIZE,
    "num_train_epochs": _EPOCHS, "gradient_accumulation_steps": "trainer.accumulate={value}",
    "grad_accum": "trainer.accumulate={value}", "max_grad_norm": "trainer.clip_norm={value}",
    "warmup_steps": "scheduler.warmup={value}", "warmup_ratio": "scheduler.warmup={value}",
    "warmup_epochs": "scheduler.warmup=0.1, a share of all steps or a number of steps",
    "num_warmup_steps": "scheduler.warmup={value}", "lr_scheduler_type": "scheduler={value}",
    "lr_scheduler": "scheduler={value}", "optim": "optimizer={value}",
    "adam_epsilon": "+optimizer.eps={value}",
    "fp16": "trainer.precision=fp16", "bf16": "trainer.precision=bf16",
    "amp": "trainer.precision=bf16", "use_amp": "trainer.precision=bf16",
    "torch_compile": "trainer.compile={value}",
    "dataloader_num_workers": _WORKERS, "dataloader_drop_last": _DROP,
    "dataloader_pin_memory": "loader.pin_memory={value}",
    "dataloader_persistent_workers": "loader.persistent_workers={value}",
    "dataloader_prefetch_factor": "loader.prefetch_factor={value}",
    "group_by_length": "sampler=bucket", "output_dir": _RUN, "logging_dir": _RUN,
    "logging_steps": "trainer.log_every={value}", "report_to": "tracker={value}",
    "eval_steps": "trainer.val_every={value}, in epochs", "disable_tqdm": _QUIET,
    "save_steps": "trainer.checkpoint.every_steps={value}",
    "save_total_limit": "trainer.checkpoint.keep_last={value}",
    "resume_from_checkpoint": "resume={value}", "resume_from": "resume={value}",
    "early_stopping_patience": "trainer.patience={value}",
    "early_stopping": "trainer.patience={value}",
    "metric_for_best_model": "trainer.monitor={value}",
    "greater_is_better": {_TRUE: "trainer.mode=max", _FALSE: "trainer.mode=min"},
    # scripts in general
    "ema": _EMA, "ema_decay": _EMA, "model_ema": _EMA, "model_ema_decay": _EMA,
    "epochs": _EPOCHS, "num_epochs": _EPOCHS, "n_epochs": _EPOCHS, "max_epoch": _EPOCHS,
    "train_steps": "trainer.max_steps={value}", "num_training_steps": "trainer.max_steps={value}",
    "total_steps": "trainer.max_steps={value}", "iterations": "trainer.max_steps={value}",
    "learning_rate": "optimizer.lr={value}", "base_lr": "optimizer.lr={value}",
    "lr": "optimizer.lr={value}", "wd": "optimizer.weight_decay={value}",
    "momentum": "optimizer=sgd optimizer.momentum={value}",
    "save_dir": _RUN, "log_dir": _RUN, "out_dir": _RUN, "outdir": _RUN, "work_dir": _RUN,
    "data_dir": _ROOT, "data_path": _ROOT, "data_root": _ROOT, "dataset_path": _ROOT,
    "dataset_dir": _ROOT, "train_dir": _ROOT, "root": _ROOT,
    "arch": "model={value}", "backbone": "model={value}", "net": "model={value}",
    "network": "model={value}", "criterion": "objective.loss._target_={value}",
    "loss_fn": "objective.loss._target_={value}", "loss": "objective.loss._target_={value}",
    "metrics": "objective.metrics={value}", "transforms": "transform={value}",
    "augmentation": "transform={value}", "evaluate": "task=validate checkpoint=...",
}  # fmt: skip

# The option of a group: names in lower case, without - and _.
CHOICES: dict[str, dict[str, str]] = {
    "collate": {"default": "collate=stack", "defaultcollate": "collate=stack",
                "padsequence": "collate=pad", "none": "collate=list"},
    "dataset": {"csv": "dataset=delimited_text", "tsv": "dataset=delimited_text",
                "text": "dataset=delimited_text", "npy": "dataset=arrays",
                "numpy": "dataset=arrays", "webdataset": "dataset=tar_shards",
                "wds": "dataset=tar_shards", "tar": "dataset=tar_shards",
                "streaming": "dataset=mds", "mosaic": "dataset=mds",
                "imagenet": "dataset=image_folder", "images": "dataset=image_folder"},
    "distributed": {"fsdp2": "distributed=fsdp", "dp": "distributed=ddp",
                    "true": "distributed=ddp", "false": "distributed=none",
                    "dataparallel": "distributed=ddp", "torchrun": "distributed=ddp"},
    "loader": {"auto": "loader=fast", "process": "loader.backend=process",
               "thread": "loader=threads", "main": "loader=debug"},
    "objective": {"crossentropy": "objective=classification", "mse": "objective=regression",
                  "classifier": "objective=classification"},
    "optimizer": {"momentum": "optimizer=sgd"},
    "sampler": {"shuffle": "sampler=random", "randomsampler": "sampler=random",
                "sequentialsampler": "sampler=sequential", "none": "sampler=sequential",
                "weightedrandomsampler": "sampler=weighted", "balanced": "sampler=weighted",
                "subsetrandomsampler": "sampler=subset", "pk": "sampler=identity",
                "distributedsampler": "distributed=ddp, which shares out any sampler"},
    "scheduler": {"cosineannealinglr": "scheduler=cosine", "cosineannealing": "scheduler=cosine",
                  "onecyclelr": "scheduler=onecycle", "constantwithwarmup": "scheduler=constant"},
    "task": {"train": "task=fit", "training": "task=fit", "eval": "task=validate",
             "evaluate": "task=validate", "test": "task=validate", "val": "task=validate",
             "benchmark": "task=profile", "lint": "task=check"},
    "tracker": {"tb": "tracker=tensorboard"},
}  # fmt: skip

_TORCHVISION = (
    "alexnet", "convnext", "densenet", "efficientnet", "googlenet", "inception", "maxvit",
    "mnasnet", "mobilenet", "regnet", "resnet", "resnext", "shufflenet", "squeezenet", "swin",
    "vgg", "vit", "wideresnet",
)  # fmt: skip

VALUES: dict[str, dict[str, str]] = {
    "batch.tail": {"true": "drop", "false": "keep", "drop_last": "drop", "null": "keep"},
    "trainer.device": {"gpu": "cuda", "cuda:0": "cuda", "0": "cuda", "null": "auto"},
    "trainer.mode": {"lower": "min", "higher": "max"},
    "trainer.precision": {
        "16": "fp16", "16-mixed": "fp16", "16-true": "fp16", "float16": "fp16", "half": "fp16",
        "32": "fp32", "32-true": "fp32", "float32": "fp32", "bf16-mixed": "bf16",
        "bf16-true": "bf16", "bfloat16": "bf16", "null": "fp32",
    },
    "trainer.progress": {"true": "auto", "false": "none", "tqdm": "plain", "null": "none"},
    "bad_samples.on_error": {"ignore": "skip", "warn": "skip", "null": "skip",
                             "replace": "substitute"},
}  # fmt: skip


def key(given: str, value: str = "...") -> str | None:
    """What to write in the place of a key that does not exist; None if its name says nothing.

    Args:
        given: the whole key, e.g. "loader.batch_size".
        value: as it was written.
    """
    name = given.rpartition(".")[2].lower().replace("-", "_")
    known = KEYS.get(name)
    if known is None:
        return None
    if isinstance(known, Mapping):
        ways = known.get(value.lower().strip("'\""))
        return ways or " or ".join(known.values())
    written = known.replace(VALUE, value if len(value) <= 40 else "...")
    return None if written.partition("=")[0].lstrip("+") == given else written


def choice(group: str, given: str) -> str | None:
    """What to write in the place of an option that a group doesn't have, if its name says that."""
    name = given.lower().replace("-", "").replace("_", "")
    if group == "model" and name.startswith(_TORCHVISION):
        return f"model=torchvision model.name={given}"
    return CHOICES.get(group, {}).get(name)


def value(key: str, given: str) -> str | None:
    """The value that a key has here for one that it doesn't."""
    return VALUES.get(key, {}).get(given.lower())


def hint(way: str | None) -> str:
    """The words for a message; nothing without a way."""
    return f"; here that is {way}" if way else ""
