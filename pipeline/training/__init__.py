"""Training: the epochs (`loop`), one batch and one optimizer step (`step`), losses and order of an
epoch (`meter`), how objectives are called (`adapter`), and parts that a configuration names:
`models`, `objective`, `metrics` and `finetuning`.
"""
