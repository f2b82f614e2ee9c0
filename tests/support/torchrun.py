"""Ranks as torchrun starts them."""

import os
import subprocess
import sys

from tests.support import warm
from tests.support.ports import free_port
from tests.support.program import ROOT


def start(size, *words):
    """Run ranks with the environment that torchrun gives them, without waiting for its imports."""
    port = str(free_port())
    ranks = [
        warm.start(
            [sys.executable, *words],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ
            | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            },
        )
        for rank in range(size)
    ]
    try:
        for rank in ranks:
            _, err = rank.communicate(timeout=240)
            assert rank.returncode == 0, err[-6000:]
    finally:
        for rank in ranks:
            rank.kill()
