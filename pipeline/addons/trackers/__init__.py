"""Metrics and results sent elsewhere, to several places at once.

`tracker` has the protocol, the facts of a run that a tracker gets, and the threads that call them,
so that none of them can stop a run. Trackers: `tensorboard`, `mlflow`, `wandb`.
"""
