"""Training: the epochs (`runner`), one batch and one optimizer step (`train_step`), `validation`,
and parts that a configuration names: `models`, `objective`, `metrics` and `schedules`.
"""
