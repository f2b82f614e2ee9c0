"""Names that version 0.1 no longer has, and what to use instead.

One table for keys, options, tasks and flags. The command line answers a name in it with its row,
and a test greps README, docs and YAML for each of them. The table goes with the next version.
"""

from __future__ import annotations

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
    "sweep.folds": "sweep over them: +dataset.folds=5 +dataset.fold=range(5)",
    "sweep.jobs": "hydra/launcher=joblib hydra.launcher.n_jobs=4",
    "sweep.retries": "the same command tries failed jobs again",
    "--help keys": "see docs/keys.md; --cfg job prints every key with its value",
    "task=show": "open the run's report.html, or list runs with task=runs",
    "task=without": "find the addresses with task=where, and resume with bad_samples.quarantine",
    "task=tune": "try the loader that task=profile prints",
    "profile.nodes": "set trainer.checkpoint.every_minutes",
    "profile.node_hours_between_failures": "set trainer.checkpoint.every_minutes",
    "trainer.checkpoint.memory_every_steps": "set trainer.checkpoint.every_minutes",
    "transform=images_nvjpeg": "transform=images_fast decodes on the CPU, the crop alone",
}


def instead(key: str, value: object = "") -> str | None:
    """The sentence for a key, its value, or a flag that is gone; None for any other name."""
    for name, sentence in GONE.items():
        for word in (key, f"{key}={value}"):
            inside = value == "" and name.startswith(f"{key}.")  # of a section that is gone
            if inside or word == name or (name.endswith("*") and word.startswith(name[:-1])):
                return f"is no longer there: {sentence}"
    return None
