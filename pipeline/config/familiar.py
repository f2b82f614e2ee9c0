"""Names that people know from torch, Lightning and Hugging Face, and what means the same here.

    KEYS     a key (`batch_size`, `loader.shuffle`)             -> what to write (`batch.size=32`)
    CHOICES  the option of a group (`model=resnet18`)           -> what to write
    VALUES   of a key with few values (`trainer.precision=16`)  -> the value

Error messages give them beside the nearest names that exist. They are not aliases: a configuration
has one way to say a thing. GONE has what version 0.1 no longer has; a test greps README, docs and
YAML for each of its names.
"""

from __future__ import annotations

import re

VALUE = "{value}"  # stands for what was given

# What to write, and the names for it; "batch.size" alone is short for "batch.size={value}".
_WAYS = {
    # data and loader
    "batch.size": "batch_size bs train_batch_size",
    "batch.val_size": "eval_batch_size val_batch_size",
    "batch.size={value}, over all devices": "per_device_train_batch_size",
    "batch.val_size={value}, over all devices": "per_device_eval_batch_size",
    "dataset": "dataset",
    "dataset.root": "data_dir data_path data_root dataset_path dataset_dir train_dir root",
    "data.fields": "fields",
    "transform": "transforms augmentation",
    "sampler": "sampler",
    "sampler=bucket": "group_by_length",
    "sampler=bucket sampler.tokens={value}": "max_tokens",
    "sampler=bucket or sampler._target_={value}, where samplers stand, too": "batch_sampler",
    "collate=stack (or pad, list) or collate._target_={value}": "collate_fn",
    "loader.num_workers": "workers n_workers num_proc dataloader_num_workers",
    "loader.pin_memory": "dataloader_pin_memory",
    "loader.persistent_workers": "dataloader_persistent_workers",
    "loader.prefetch_factor": "dataloader_prefetch_factor",
    # model and optimizer
    "model": "arch backbone net network",
    "objective.loss._target_": "criterion loss_fn loss",
    "objective.metrics": "metrics",
    "optimizer": "optim",
    "optimizer.lr": "learning_rate base_lr lr",
    "optimizer.weight_decay": "wd",
    "+optimizer.eps": "adam_epsilon",
    "optimizer=sgd optimizer.momentum={value}": "momentum",
    "scheduler": "lr_scheduler_type lr_scheduler",
    "schedule.warmup": "warmup_steps warmup_ratio num_warmup_steps",
    "schedule.warmup=0.1, a share of all steps or a number of steps": "warmup_epochs",
    # training
    "seed": "seed_everything random_seed manual_seed random_state data_seed",
    "trainer.max_epochs": "num_train_epochs epochs num_epochs n_epochs max_epoch",
    "trainer.max_steps": "train_steps num_training_steps total_steps iterations",
    "trainer.accumulate": "accumulate_grad_batches gradient_accumulation_steps grad_accum",
    "trainer.clip_norm": "gradient_clip_val grad_clip clip_grad clip_grad_norm max_grad_norm",
    "trainer.ema=0.999, the share that the average keeps at each step": (
        "ema ema_decay model_ema model_ema_decay"
    ),
    "trainer.precision=fp16": "fp16",
    "trainer.precision=bf16": "bf16 amp use_amp",
    "trainer.compile": "torch_compile",
    "trainer.recompute=[NAMES], patterns of modules": (
        "gradient_checkpointing gradient_checkpointing_enable activation_checkpointing"
    ),
    "trainer.freeze.names=[NAMES], patterns of weights": "freeze frozen freeze_layers",
    "trainer.warm_start.path": "pretrained load_from init_from finetune_from pretrained_weights",
    "+trainer.groups.NAME={names: ..., lr: ...}": "param_groups param_group paramwise_cfg",
    "trainer.device=cuda": "gpu cuda use_cuda",
    "trainer.device=cpu": "no_cuda use_cpu",
    "trainer.limit_batches.train": "limit_train_batches",
    "trainer.limit_batches.val": "limit_val_batches",
    "trainer.overfit_batches": "overfit_batches",
    "trainer.fast_dev_run": "fast_dev_run",
    "trainer.val_every": "check_val_every_n_epoch",
    "trainer.val_every={value}, in epochs": "eval_steps",
    "trainer.log_every": "log_every_n_steps logging_steps",
    "trainer.monitor": "metric_for_best_model",
    "trainer.patience": "early_stopping_patience early_stopping",
    "trainer.checkpoint.every_steps": "save_steps",
    "trainer.checkpoint.keep_last": "save_total_limit",
    "trainer.checkpoint.keep_last={value} (the best one stays as well)": "save_top_k",
    # runs and ranks
    "run_dir": "default_root_dir output_dir logging_dir save_dir log_dir out_dir outdir work_dir",
    "resume": "resume_from_checkpoint resume_from",
    "resume={value}, or checkpoint={value} with task=validate": "ckpt_path",
    "tracker": "logger report_to",
    "task=lr_find": "auto_lr_find lr_find find_lr",
    "task=validate checkpoint=...": "evaluate",
    "distributed=ddp distributed.nproc={value}": (
        "gpus devices num_gpus num_devices num_processes nproc_per_node world_size nproc"
    ),
    "distributed.sync_batchnorm": "sync_bn",
    "torchrun or srun, which start the processes of several machines": "num_nodes nnodes",
}

_TRUE, _FALSE = "true", "false"
_DROP = {_TRUE: "batch.tail=drop", _FALSE: "batch.tail=keep"}

# What to write by name; or by name and value (in lower case), else all of the ways.
KEYS: dict[str, str | dict[str, str]] = {
    **{
        name: way if "=" in way or " " in way else f"{way}={VALUE}"
        for way, names in _WAYS.items()
        for name in names.split()
    },
    "shuffle": {_TRUE: "sampler=random", _FALSE: "sampler=sequential"},
    "drop_last": _DROP,
    "dataloader_drop_last": _DROP,
    "strategy": {"ddp": "distributed=ddp", "fsdp": "distributed=fsdp"},
    "accelerator": {
        "gpu": "trainer.device=cuda",
        "cpu": "trainer.device=cpu",
        "auto": "trainer.device=auto",
    },
    "enable_progress_bar": {_TRUE: "trainer.progress=auto", _FALSE: "trainer.progress=none"},
    "disable_tqdm": {_TRUE: "trainer.progress=none", _FALSE: "trainer.progress=auto"},
    "enable_checkpointing": {
        _TRUE: "trainer.checkpoint.every_epochs=1",
        _FALSE: "trainer.checkpoint=null",
    },
    "greater_is_better": {_TRUE: "trainer.mode=max", _FALSE: "trainer.mode=min"},
}

# The option of a group: names in lower case, without - and _.
CHOICES: dict[str, dict[str, str]] = {
    "collate": {
        "default": "collate=stack",
        "defaultcollate": "collate=stack",
        "padsequence": "collate=pad",
        "none": "collate=list",
    },
    "dataset": {
        "csv": "dataset=delimited_text",
        "tsv": "dataset=delimited_text",
        "text": "dataset=delimited_text",
        "npy": "dataset=arrays",
        "numpy": "dataset=arrays",
        "webdataset": "dataset=tar_shards",
        "wds": "dataset=tar_shards",
        "tar": "dataset=tar_shards",
        "imagenet": "dataset=image_folder",
        "images": "dataset=image_folder",
    },
    "distributed": {
        "fsdp2": "distributed=fsdp",
        "dp": "distributed=ddp",
        "true": "distributed=ddp",
        "false": "distributed=none",
        "dataparallel": "distributed=ddp",
        "torchrun": "distributed=ddp",
    },
    "loader": {
        "auto": "loader=fast",
        "process": "loader.backend=process",
        "thread": "loader=threads",
        "main": "loader=debug",
    },
    "objective": {
        "crossentropy": "objective=classification",
        "mse": "objective=regression",
        "classifier": "objective=classification",
    },
    "optimizer": {"momentum": "optimizer=sgd"},
    "sampler": {
        "shuffle": "sampler=random",
        "randomsampler": "sampler=random",
        "sequentialsampler": "sampler=sequential",
        "none": "sampler=sequential",
        "weightedrandomsampler": "sampler=weighted",
        "balanced": "sampler=weighted",
        "subsetrandomsampler": "sampler=subset",
        "pk": "sampler=identity",
        "distributedsampler": "distributed=ddp, which shares out any sampler",
    },
    "scheduler": {
        "cosineannealinglr": "scheduler=cosine",
        "cosineannealing": "scheduler=cosine",
        "onecyclelr": "scheduler=onecycle",
        "constantwithwarmup": "scheduler=constant",
    },
    "task": {
        "train": "task=fit",
        "training": "task=fit",
        "eval": "task=validate",
        "evaluate": "task=validate",
        "test": "task=validate",
        "val": "task=validate",
        "benchmark": "task=profile",
        "lint": "task=check",
    },
    "tracker": {
        "tb": "tracker=tensorboard",
        "weightsandbiases": "tracker=wandb",
        "csvlogger": "metrics.jsonl",
        "wandblogger": "tracker=wandb",
        "tensorboardlogger": "tracker=tensorboard",
        "mlflowlogger": "tracker=mlflow",
    },
}

# What a person typed (`key`, `key=value`, `--flag`; "*" ends a prefix) -> what to do instead.
GONE: dict[str, str] = {
    "limits.batch_bytes": "lower batch.size; limits.pixels and limits.record_bytes bound a sample",
    "--allow-endpoint": "leave it out; a configuration may name the servers of its data",
    "--allow-env": "leave it out; variables are read, but for those that are secrets by their name",
    "--allow-write": "leave it out; a configuration may name any folder",
    "loader.ray.runtime_env": "install your packages on the nodes, or start Ray with PYTHONPATH",
    "diff.page": "task=diff prints the same; redirect it into a file",
    "--kind": "penstock init FOLDER writes one kind of project",
    "tracker=csv": "read metrics.jsonl, by pandas.read_json(..., lines=True)",
    "experiment=gan": "see docs/examples/gan",
    "loader.cost": "the window of batches grows by itself behind a slow one (loader.slow_memory)",
    "loader.max_memory": "set loader.num_workers and loader.prefetch_factor",
    "loader.num_workers=tuned": "loader.num_workers=auto, or the line that task=profile prints",
    "loader.pin_memory_device": "leave it out; the current accelerator is used",
    "loader.share": "pack the data once with task=pack",
    "loader.share_size": "pack the data once with task=pack",
    "loader=tuned": "loader.num_workers=auto, or the line that task=profile prints",
    "objective=lightning": "Lightning's own Trainer with penstock.DataModule (docs/frameworks.md)",
    "optimizer=lightning": "Lightning's own Trainer with penstock.DataModule (docs/frameworks.md)",
    "scheduler=lightning": "Lightning's own Trainer with penstock.DataModule (docs/frameworks.md)",
    "dataset=mds": "streaming.LocalDataset as a dataset of your own, or task=pack from it",
    "objective.text": "leave it out; the run compares with token frequencies",
    "sweep.out_of_fold": "run task=predict on each job's folder, and join the tables",
    "sweep.seeds": "sweep over them: seed=range(5)",
    "sweep.folds": "sweep over them: data.folds=5 data.fold=range(5)",
    "sweep.jobs": "hydra/launcher=joblib hydra.launcher.n_jobs=4",
    "sweep.optuna.sampler=grid": "leave out sweep=optuna: -m tries all combinations",
    "sweep.retries": "the same command tries failed jobs again",
    "--help keys": "see docs/keys.md; --cfg job prints every key with its value",
    "task=show": "open the run's report.html, or list runs with task=runs",
    "task=without": "find the addresses with task=where, and resume with bad_samples.quarantine",
    "task=verify": "task=diff, which ends with code 1 if two runs differ",
    "task=tune": "try the loader that task=profile prints",
    "profile.nodes": "set trainer.checkpoint.every_minutes",
    "profile.node_hours_between_failures": "set trainer.checkpoint.every_minutes",
    "trainer.checkpoint.memory_every_steps": "set trainer.checkpoint.every_minutes",
    "dataset.fingerprint": "set data.fingerprint",
    "dataset.packed": "set data.packed",
    "dataset.facts": "set data.facts",
    "dataset.filter": "set data.filter",
    "dataset.unique": "set data.unique",
    "dataset.without": "set data.without",
    "dataset.split.*": "set data.split",
    "dataset.folds": "set data.folds",
    "dataset.fold": "set data.fold",
    "dataset.files.*": "set files.cache_dir, files.options ..., which all datasets share",
    "dataset.train": "dataset is the node of all splits, data.filter chooses its rows",
    "dataset.val": "set data.validate=false, data.val_filter or data.val_dataset",
    "dataset.test": "set data.test_dataset",
    "scheduler.warmup": "set schedule.warmup",
    "scheduler.interval": "set schedule.interval",
    "optimizer.groups": "set trainer.groups",
    "transform=pixels": "copy docs/examples/gan/conf/transform/pixels.yaml",
    "transform=images_nvjpeg": "transform=images_fast decodes on the CPU, the crop alone",
}

_TORCHVISION = (
    "alexnet",
    "convnext",
    "densenet",
    "efficientnet",
    "googlenet",
    "inception",
    "maxvit",
    "mnasnet",
    "mobilenet",
    "regnet",
    "resnet",
    "resnext",
    "shufflenet",
    "squeezenet",
    "swin",
    "vgg",
    "vit",
    "wideresnet",
)

VALUES: dict[str, dict[str, str]] = {
    "batch.tail": {"true": "drop", "false": "keep", "drop_last": "drop", "null": "keep"},
    "trainer.device": {"gpu": "cuda", "cuda:0": "cuda", "0": "cuda", "null": "auto"},
    "trainer.mode": {"lower": "min", "higher": "max"},
    "trainer.precision": {
        "16": "fp16",
        "16-mixed": "fp16",
        "16-true": "fp16",
        "float16": "fp16",
        "half": "fp16",
        "32": "fp32",
        "32-true": "fp32",
        "float32": "fp32",
        "bf16-mixed": "bf16",
        "bf16-true": "bf16",
        "bfloat16": "bf16",
        "null": "fp32",
    },
    "trainer.progress": {"true": "auto", "false": "none", "tqdm": "plain", "null": "none"},
    "bad_samples.on_error": {
        "ignore": "skip",
        "warn": "skip",
        "null": "skip",
        "replace": "substitute",
    },
}


def advice(key: str, value: str = "...") -> str:
    """What to write for a key, an option or a value that is not there, to end a message with.

    Args:
        key: the whole key, a group or a flag, e.g. "loader.batch_size".
        value: as it was written.

    Returns:
        "; here that is batch.size=8", or nothing for a name that nobody knows.
    """
    for name, sentence in GONE.items():
        # A section that is gone, or a key below one, or one that begins so.
        inside = value[:1] in ("", "{") and name.startswith(f"{key}.")
        begins = key.startswith((f"{name}.", name.removesuffix("*") if name[-1] == "*" else "\0"))
        if inside or begins or name in (key, f"{key}={value}"):
            return f"; it is no longer there: {sentence}"
    option, plain = re.sub("[-_]", "", value.lower()), value.lower().strip("'\"")
    way = VALUES.get(key, {}).get(plain) or CHOICES.get(key, {}).get(option)
    if key == "model" and option.startswith(_TORCHVISION):
        way = f"model=torchvision model.name={value}"
    if way is None:
        known = KEYS.get(key.rpartition(".")[2].lower().replace("-", "_"), "")
        by_value = known if isinstance(known, dict) else {plain: known}
        way = by_value.get(plain) or " or ".join(by_value.values())
        way = "" if re.match(rf"\+?{re.escape(key)}=", way) else way
    return f"; here that is {way.replace(VALUE, value[:40])}" if way else ""
