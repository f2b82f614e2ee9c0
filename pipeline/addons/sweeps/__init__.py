"""Sweeps over a grid, and by Optuna: a job's folder is a function of its overrides."""
