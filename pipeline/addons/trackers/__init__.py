"""Metrics and results sent elsewhere, to several places at once.

`tracker` has the protocol, the facts of a run that a tracker gets, and the threads that call them,
so that none of them can stop a run. Trackers: `tensorboard`, `mlflow`, `wandb`.
"""

import os

# They read these when they are imported. Both report their use to their makers, and MLflow would
# retry for minutes.
os.environ |= {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "WANDB_ERROR_REPORTING": "false",
} | os.environ
