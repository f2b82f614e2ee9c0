"""Many runs of one command: grids, stored sweeps, Optuna."""
