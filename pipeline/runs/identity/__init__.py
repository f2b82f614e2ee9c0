"""What tells the data and the code of a run from those of another."""
