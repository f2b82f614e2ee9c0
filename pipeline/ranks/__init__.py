"""The processes of a run: talking to each other, sharing a model, being started."""
