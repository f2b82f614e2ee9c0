"""Names that people know from torch, Lightning and Hugging Face, and what means the same here.

Error messages give them beside the nearest names that exist. They are not aliases: a configuration
has one way to say a thing. GONE has what version 0.1 no longer has; a test greps README, docs and
YAML for each of its names.
"""

# What a person typed, in lower case, with _ for - (`name`, `name=value`, `section.key=value`
# or `group=option`) -> what to write; {value} stands for what was given.
WAYS: dict[str, str] = {
    # data and loader
    "batch_size bs train_batch_size": "batch.size={value}",
    "eval_batch_size val_batch_size": "batch.val_size={value}",
    "per_device_train_batch_size": "batch.size={value}, over all devices",
    "per_device_eval_batch_size": "batch.val_size={value}, over all devices",
    "dataset": "dataset={value}",
    "data_dir data_path data_root dataset_path dataset_dir train_dir root": "dataset.root={value}",
    "fields": "data.fields={value}",
    "val_split validation_split val_size val_ratio": "data.split.val={value}",
    "test_split test_size test_ratio": "data.split.test={value}",
    "transforms augmentation": "transform={value}",
    "sampler": "sampler={value}",
    "group_by_length": "sampler=bucket",
    "max_tokens": "sampler=bucket sampler.tokens={value}",
    "batch_sampler": "sampler=bucket or sampler._target_={value}, where samplers stand, too",
    "collate_fn": "collate=stack (or pad, list) or collate._target_={value}",
    "workers n_workers num_proc dataloader_num_workers": "loader.num_workers={value}",
    "dataloader_pin_memory": "loader.pin_memory={value}",
    "dataloader_persistent_workers": "loader.persistent_workers={value}",
    "dataloader_prefetch_factor": "loader.prefetch_factor={value}",
    # model and optimizer
    "arch backbone net network": "model={value}",
    "criterion loss_fn loss": "objective.loss._target_={value}",
    "metrics": "objective.metrics={value}",
    "optim": "optimizer={value}",
    "learning_rate base_lr lr": "optimizer.lr={value}",
    "wd": "optimizer.weight_decay={value}",
    "adam_epsilon": "+optimizer.eps={value}",
    "momentum": "optimizer=sgd optimizer.momentum={value}",
    "lr_scheduler_type lr_scheduler": "scheduler={value}",
    "warmup_steps warmup_ratio num_warmup_steps": "schedule.warmup={value}",
    "warmup_epochs": "schedule.warmup=0.1, a share of all steps or a number of steps",
    "_convert_ _recursive_": "nothing: parts get plain values, built inside out",
    # training
    "seed_everything random_seed manual_seed random_state data_seed": "seed={value}",
    "num_train_epochs epochs num_epochs n_epochs max_epoch": "trainer.max_epochs={value}",
    "train_steps num_training_steps total_steps iterations": "trainer.max_steps={value}",
    "accumulate_grad_batches gradient_accumulation_steps grad_accum": "trainer.accumulate={value}",
    "gradient_clip_val grad_clip clip_grad clip_grad_norm max_grad_norm": (
        "trainer.clip_norm={value}"
    ),
    "ema ema_decay model_ema model_ema_decay": (
        "trainer.ema=0.999, the share that the average keeps at each step"
    ),
    "fp16": "trainer.precision=fp16",
    "bf16 amp use_amp": "trainer.precision=bf16",
    "torch_compile": "trainer.compile={value}",
    "gradient_checkpointing gradient_checkpointing_enable activation_checkpointing": (
        "the model does that, by torch.utils.checkpoint in its forward pass"
    ),
    "freeze frozen freeze_layers": "trainer.freeze.names=[NAMES], patterns of weights",
    "pretrained load_from init_from finetune_from pretrained_weights": (
        "trainer.warm_start.path={value}"
    ),
    "param_groups param_group paramwise_cfg": "+trainer.groups.NAME={names: ..., lr: ...}",
    "gpu cuda use_cuda accelerator=gpu": "trainer.device=cuda",
    "no_cuda use_cpu accelerator=cpu": "trainer.device=cpu",
    "limit_train_batches": "trainer.limit_batches.train={value}",
    "limit_val_batches": "trainer.limit_batches.val={value}",
    "overfit_batches": "trainer.overfit_batches={value}",
    "fast_dev_run": "trainer.fast_dev_run={value}",
    "check_val_every_n_epoch": "trainer.val_every={value}",
    "eval_steps": "trainer.val_every={value}, in epochs",
    "log_every_n_steps logging_steps": "trainer.log_every={value}",
    "metric_for_best_model": "trainer.monitor={value}",
    "early_stopping_patience early_stopping": "trainer.patience={value}",
    "save_steps": "trainer.checkpoint.every_steps={value}",
    "save_total_limit": "trainer.checkpoint.keep_last={value}",
    "save_top_k": "trainer.checkpoint.keep_last={value} (the best one stays as well)",
    # runs and ranks
    "default_root_dir output_dir logging_dir save_dir log_dir out_dir outdir work_dir": (
        "run_dir={value}"
    ),
    "resume_from_checkpoint resume_from": "resume={value}",
    "ckpt_path": "resume={value}, or checkpoint={value} with task=validate",
    "logger report_to": "tracker={value}",
    "auto_lr_find lr_find find_lr": "task=lr_find",
    "evaluate": "task=validate checkpoint=...",
    "gpus devices num_gpus num_devices num_processes nproc_per_node world_size nproc": (
        "distributed=ddp distributed.nproc={value}"
    ),
    "sync_bn": "distributed.sync_batchnorm={value}",
    "num_nodes nnodes": "torchrun or srun, which start the processes of several machines",
    # by their value
    "shuffle=true sampler=shuffle sampler=randomsampler": "sampler=random",
    "shuffle=false sampler=sequentialsampler sampler=none": "sampler=sequential",
    "shuffle": "sampler=random or sampler=sequential",
    "drop_last=true dataloader_drop_last=true": "batch.tail=drop",
    "drop_last=false dataloader_drop_last=false": "batch.tail=keep",
    "drop_last dataloader_drop_last": "batch.tail=drop or batch.tail=keep",
    (
        "strategy=ddp distributed=dp distributed=true distributed=data_parallel "
        "distributed=torchrun"
    ): "distributed=ddp",
    "strategy=fsdp distributed=fsdp2": "distributed=fsdp",
    "strategy": "distributed=ddp or distributed=fsdp",
    "accelerator=auto": "trainer.device=auto",
    "accelerator": "trainer.device=cuda or trainer.device=cpu or trainer.device=auto",
    "enable_progress_bar=true disable_tqdm=false": "trainer.progress=auto",
    "enable_progress_bar=false disable_tqdm=true": "trainer.progress=none",
    "enable_progress_bar": "trainer.progress=auto or trainer.progress=none",
    "disable_tqdm": "trainer.progress=none or trainer.progress=auto",
    "enable_checkpointing=true": "trainer.checkpoint.every_epochs=1",
    "enable_checkpointing=false": "trainer.checkpoint=null",
    "enable_checkpointing": "trainer.checkpoint.every_epochs=1 or trainer.checkpoint=null",
    "greater_is_better=true": "trainer.mode=max",
    "greater_is_better=false": "trainer.mode=min",
    "greater_is_better": "trainer.mode=max or trainer.mode=min",
    # options of groups
    "collate=default collate=default_collate": "collate=stack",
    "collate=pad_sequence": "collate=pad",
    "collate=none": "collate=list",
    "dataset=csv dataset=tsv dataset=text": "dataset=delimited_text",
    "dataset=npy dataset=numpy": "dataset=arrays",
    "dataset=webdataset dataset=wds dataset=tar": "dataset=tar_shards",
    "dataset=imagenet dataset=images": "dataset=image_folder",
    "distributed=false": "distributed=none",
    "loader=auto": "loader=fast",
    "loader=process": "loader.backend=process",
    "loader=thread": "loader=threads",
    "loader=main": "loader=debug",
    "objective=crossentropy objective=cross_entropy objective=classifier": (
        "objective=classification"
    ),
    "objective=mse": "objective=regression",
    "optimizer=momentum": "optimizer=sgd",
    "sampler=weightedrandomsampler sampler=balanced": "sampler=weighted",
    "sampler=subsetrandomsampler": "sampler=subset",
    "sampler=pk": "sampler=identity",
    "sampler=distributedsampler": "distributed=ddp, which shares out any sampler",
    "scheduler=cosineannealinglr scheduler=cosine_annealing": "scheduler=cosine",
    "scheduler=onecyclelr": "scheduler=onecycle",
    "scheduler=constant_with_warmup": "scheduler=constant",
    "task=train task=training": "task=fit",
    "task=eval task=evaluate task=val": "task=validate",
    "task=benchmark": "task=profile",
    "task=lint": "task=check",
    "tracker=tb tracker=tensorboardlogger": "tracker=tensorboard",
    "tracker=weights_and_biases tracker=wandblogger": "tracker=wandb",
    "tracker=csvlogger": "metrics.jsonl",
    "tracker=mlflowlogger": "tracker=mlflow",
    # values of keys
    "batch.tail=true batch.tail=drop_last": "drop",
    "batch.tail=false batch.tail=null": "keep",
    "trainer.device=gpu trainer.device=cuda:0 trainer.device=0": "cuda",
    "trainer.device=null trainer.progress=true": "auto",
    "trainer.mode=lower": "min",
    "trainer.mode=higher": "max",
    (
        "trainer.precision=16 trainer.precision=16_mixed trainer.precision=16_true "
        "trainer.precision=float16 trainer.precision=half"
    ): "fp16",
    (
        "trainer.precision=32 trainer.precision=32_true trainer.precision=float32 "
        "trainer.precision=null"
    ): "fp32",
    "trainer.precision=bf16_mixed trainer.precision=bf16_true trainer.precision=bfloat16": "bf16",
    "trainer.progress=false trainer.progress=null": "none",
    "trainer.progress=tqdm": "plain",
    "bad_samples.on_error=ignore bad_samples.on_error=warn bad_samples.on_error=null": "skip",
    "bad_samples.on_error=replace": "substitute",
    (
        "model=alexnet model=convnext model=densenet model=efficientnet model=googlenet "
        "model=inception model=maxvit model=mnasnet model=mobilenet model=regnet model=resnet "
        "model=resnext model=shufflenet model=squeezenet model=swin model=vgg model=vit "
        "model=wide"
    ): "model=torchvision model.name={value}",
}

# What a person typed (`key`, `key=value`, `--flag`; "*" ends a prefix) -> what to do instead.
GONE: dict[str, str] = {
    "find.since": "the newest runs come first: find.limit=20",
    "find.command": "pipe the list through grep",
    "distributed.lanes": "leave it out; other ranks round weights differently (docs/resuming.md)",
    "collate.sort": "leave it out; pack_padded_sequence sorts by itself with enforce_sorted=False",
    "limits.files": "nothing bounds the files of a listing",
    "limits.batch_bytes": "lower batch.size; limits.pixels and limits.record_bytes bound a sample",
    "--allow-endpoint": "leave it out; a configuration may name the servers of its data",
    "--allow-env": "leave it out; variables are read, but for those that are secrets by their name",
    "--allow-write": "leave it out; a configuration may name any folder",
    "loader.ray.num_actors": "loader.num_workers says it for all workers",
    "loader.ray.window": "loader.prefetch_factor says how many batches are ahead",
    "loader.ray.resources": "Ray places actors by their CPUs (loader.ray.cpus_per_actor)",
    "loader.ray.runtime_env": "install your packages on the nodes, or start Ray with PYTHONPATH",
    "dataset=audio_pairs": "a dataset of your own, with its transforms: docs/audio_and_video.md",
    "dataset=mixture_stream": "dataset=mixture, of datasets with rows",
    "dataset.linear": "write the stairs: dataset.weights.NAME=[[0, 0.9], [1000, 0.7], ...]",
    "dataset.stop": "leave it out; the others have the share of a source that has given its passes",
    "sampler.sources": "leave it out; each source is in random order. Weigh rows as more sources",
    "diff.page": "task=diff prints the same; redirect it into a file",
    "--kind": "penstock init FOLDER writes one kind of project",
    "tracker=csv": "read metrics.jsonl, by pandas.read_json(..., lines=True)",
    "experiment=gan": "see docs/examples/gan",
    "loader.cost": "the window of batches grows by itself behind a slow one (loader.slow_memory)",
    "loader.max_memory": "set loader.num_workers and loader.prefetch_factor",
    "loader.num_workers=tuned": "loader.num_workers=auto, or the line that task=profile prints",
    "loader.pin_memory_device": "leave it out; the current accelerator is used",
    "pack.square": "leave it out; pack.size gives squares, and pack.size=null every shape",
    "pack.decoder": "leave it out; squares of image files are made as transform=images_fast does",
    "loader.share": "pack the data once with task=pack",
    "loader.share_size": "pack the data once with task=pack",
    "loader=tuned": "loader.num_workers=auto, or the line that task=profile prints",
    "objective=lightning": "Lightning's own Trainer with penstock.DataModule (docs/dataloader.md)",
    "optimizer=lightning": "Lightning's own Trainer with penstock.DataModule (docs/dataloader.md)",
    "scheduler=lightning": "Lightning's own Trainer with penstock.DataModule (docs/dataloader.md)",
    "dataset=huggingface": "dataset=parquet reads folders of save_to_disk; their names divide them",
    "dataset=huggingface_stream": "dataset=parquet_stream reads folders of save_to_disk",
    "dataset.splits": "save_to_disk with splits that are called train, validation and test",
    "dataset.metadata_columns": "leave it out; metadata has every column that a filter can use",
    "dataset.cache_mb": "leave it out; tables are converted once, into dataset.cache_dir",
    "dataset.nulls": "fill nulls in before you save the dataset (datasets.map)",
    "dataset.external": "save_to_disk puts the content of files into the folder",
    "dataset=mds": "streaming.LocalDataset as a dataset of your own, or task=pack from it",
    "objective.text": "leave it out; the run compares with token frequencies",
    "sweep.out_of_fold": "run task=predict on each job's folder, and join the tables",
    "sweep.seeds": "sweep over them: seed=range(5)",
    "sweep.folds": "sweep over them: data.folds=5 data.fold=range(5)",
    "sweep.jobs": "hydra/launcher=joblib hydra.launcher.n_jobs=4",
    "sweep.optuna.sampler=grid": "leave out sweep=optuna: -m tries all combinations",
    "trainer.progress=rich": "leave it out: a terminal shows progress by itself",
    "sweep.retries": "the same command tries failed jobs again",
    "--config-path": "it would hide our groups; --config-dir FOLDER --config-name NAME adds yours",
    "task=show": "open the run's report.html, or list runs with task=runs",
    "task=without": "find the addresses with task=where, and resume with bad_samples.quarantine",
    "task=verify": "task=diff, which ends with code 1 if two runs differ",
    "task=tune": "try the loader that task=profile prints",
    "profile.nodes": "set trainer.checkpoint.every_minutes",
    "profile.node_hours_between_failures": "set trainer.checkpoint.every_minutes",
    "trainer.checkpoint.memory_every_steps": "set trainer.checkpoint.every_minutes",
    "trainer.checkpoint.background": "leave it out; a checkpoint is always written in a thread",
    "dataset.fingerprint": "set data.fingerprint",
    "dataset.packed": "set data.packed",
    "dataset.facts": "set data.facts",
    "dataset.filter": "set data.filter",
    "dataset.unique": "set data.unique",
    "dataset.without": "set data.without",
    "dataset.split.*": "set data.split",
    "dataset.val_fraction": "set data.split.val",
    "dataset.test_fraction": "set data.split.test",
    "dataset.split_seed": "set data.split.seed",
    "dataset.folds": "set data.folds",
    "data.split.by": "set data.split.group to the column that names a row",
    "data.split.column": "dataset.split_column of image_table, files named train and val, "
    "or data.val_dataset",
    "data.split.files": "a dataset for each split: data.val_dataset, data.test_dataset",
    "dataset.fold": "set data.fold",
    "dataset.group": "set data.split.group",
    "dataset.files.*": "set files.cache_dir, files.options ..., which all datasets share",
    "dataset.append_eod": "end documents when they are written (Megatron's --append-eod)",
    "dataset.eod": "write NAME.offsets.npy beside each file of tokens (docs/text.md)",
    "dataset.rows": "leave it out; a row of token files is a sequence of the .idx",
    "dataset.train": "dataset is the node of all splits, data.filter chooses its rows",
    "dataset.val": "set data.validate=false, data.val_filter or data.val_dataset",
    "dataset.test": "set data.test_dataset",
    "scheduler.warmup": "set schedule.warmup",
    "scheduler.interval": "set schedule.interval",
    "optimizer.groups": "set trainer.groups",
    "trainer.recompute": "call torch.utils.checkpoint in the forward pass of the model",
    "transform=pixels": "copy docs/examples/gan/conf/transform/pixels.yaml",
    "transform=faces_skimage": "resize by scikit-image in a dataset of your own; transform=faces",
    "transform.train_batch.erase": "torchvision.transforms.v2.RandomErasing in transform.train",
    "transform.train_batch.mosaic": "v2.RandomZoomOut in transform.train makes boxes small",
    "model=timm": "--trust timm 'model={_target_: timm.create_model, ...}' (docs/training.md)",
    "dataset.frames": "set transform.train.clip.frames",
    "dataset.videos": "set dataset.images",
    "dataset.most_decoded": "leave it out; more key frames, as by ffmpeg -g 30, decode less",
    "transform=images_nvjpeg": "transform=images_fast decodes on the CPU, the crop alone",
}


def advice(key: str, value: str = "...") -> str:
    """What to write for a key, an option or a value that is not there, to end a message with.

    Args:
        key: the whole key, a group or a flag, e.g. "loader.batch_size".
        value: as it was written.

    Returns:
        "; here that is batch.size=8", or "" for an unknown name.
    """
    name, plain = (one.lower().replace("-", "_") for one in (key.rpartition(".")[2], value))
    for gone, sentence in GONE.items():
        if (
            gone in (key, f"{key}={value}")
            or key.startswith(f"{gone.removesuffix('.*')}.")
            or (
                gone.startswith(f"{key}.")  # a section that holds it, as it was written
                and (
                    gone.endswith(".*")
                    or not value
                    or f"{gone.rpartition('.')[2]}:" in value.replace("'", "")
                )
                and value[:1] in ("", "{")
            )
        ):
            return f"; it is no longer there: {sentence}"
    for typed in (
        f"{key}={plain}",
        f"{name}={plain}",
        f"{key}={plain.partition('_')[0].rstrip('0123456789')}",  # vit_b_16, resnet18
        name,
    ):
        for names, way in WAYS.items():
            # "lr" leads to optimizer.lr, but for optimizer.lr itself.
            if typed in names.split() and f"{key}={{value}}" not in (way, way[1:]):
                return f"; here that is {way.replace('{value}', value[:40])}"
    return ""
