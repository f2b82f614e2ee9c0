"""Metrics and results sent elsewhere, to several places at once.

`tracker` is the protocol of a tracker, with the facts of a run that it gets; `observing` calls
trackers in threads of their own, so that none of them can stop a run. Trackers:
`tensorboard`, `mlflow`, `wandb`.
"""
