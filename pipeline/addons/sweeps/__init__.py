"""Many runs of one command: grids, stored sweeps, Optuna."""

from penstock.protocols import AddOn

ADDON = AddOn()
