"""A model learns from batches.

`runner` has the epochs, `train_step` one batch and one optimizer step, `validation` a whole split.
`models`, `objective`, `metrics` and `schedules` hold the parts that a configuration names.
"""
