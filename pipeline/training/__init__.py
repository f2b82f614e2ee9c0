"""The epochs: models, objectives, metrics, schedules, and the loop that runs them."""
