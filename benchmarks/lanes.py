"""What lanes cost: seconds of CPU and wall time a step, and bytes sent by a rank, with and without.

    PYTHONPATH=. python benchmarks/lanes.py --steps 20

A small network and one of 50 million parameters, on 1, 2 and 4 gloo ranks of one thread each.
"""

import argparse
import json
import os
import time

import numpy as np
import torch
import torch.multiprocessing as multiprocessing
from torch import nn

from penstock.addons.lanes.lanes import Lanes
from penstock.distributed.group import join
from penstock.distributed.parallel import Parallel
from penstock.distributed.world import World
from penstock.loading.batch import Batch
from penstock.order.plan import Plan
from penstock.order.samplers import Random
from penstock.training.objective import Regression
from penstock.training.own_steps import make_train_step
from penstock.training.train_step import TrainOptions

WIDTHS = {"small": 64, "50 million": 4096}
ROWS, COUNT = 64, 4


def network(width):
    torch.manual_seed(0)
    hidden = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(3)]
    return nn.Sequential(nn.Linear(16, width), *hidden, nn.Linear(width, 1))


def measured(group, width, lanes, steps):
    """Seconds of wall and CPU a step."""
    model = network(width)
    parallel = Parallel("none" if group.alone else "ddp")
    own = Lanes(COUNT, group.world) if lanes else None
    step = make_train_step(
        model,
        Regression(nn.MSELoss(), {}, ["x"], "y"),
        torch.optim.SGD(model.parameters(), 0.01),
        None,
        TrainOptions(),
        group,
        0,
        parallel,
        lanes=own,
    )
    plan, x = Plan(Random(ROWS, 0), ROWS), torch.randn(ROWS, 16)
    shares = own.shares if own else [(group.world.rank, group.world.size)]

    def one(share):
        request = plan.request(0, 0, *share)
        rows = torch.from_numpy(request.indices)
        return Batch({"x": x[rows], "y": x[rows, :1]}, request, np.arange(len(request)))

    batches = [one(share) for share in shares]
    batch = own.together(batches) if own else batches[0]
    for number in range(steps + 2):
        if number == 2:
            began, cpu = time.perf_counter(), time.process_time()
        step.learn(batch)
        step.update()
    return (time.perf_counter() - began) / steps, (time.process_time() - cpu) / steps


def rank(number, size, port, steps):
    os.environ |= {
        "RANK": str(number),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    torch.set_num_threads(1)
    with join(World(number, size), timeout=300, together=size > 1) as group:
        for name, width in WIDTHS.items():
            few = steps if width < 1000 else max(steps // 5, 2)
            for lanes in (False, True):
                sent = bytes_sent() if group.is_first else 0
                wall, cpu = measured(group, width, lanes, few)
                sent = (bytes_sent() - sent) / (few + 2)
                every = group.gather(cpu)
                if group.is_first:
                    line = {
                        "ranks": size,
                        "model": name,
                        "lanes": COUNT if lanes else None,
                        "ms": round(1000 * wall, 1),
                        "cpu ms, all ranks": round(1000 * sum(every), 1),
                        "MB over the loopback, all ranks": round(sent / 1e6, 2),
                    }
                    print(json.dumps(line), flush=True)
                group.meet()


def bytes_sent():
    """By all processes over the loopback interface; other programs' among them."""
    with open("/proc/net/dev") as file:
        line = next(line for line in file if line.strip().startswith("lo:"))
    return int(line.split()[9])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    steps = parser.parse_args().steps
    for size in (1, 2, 4):
        multiprocessing.spawn(rank, (size, 29551 + size, steps), nprocs=size)
