"""What bounds a run, and which loader would be faster.

`verdict` judges measurements, `search` finds the fastest loader within a budget, `timeline` draws
when the training loop and its workers did what.
"""
