"""What trackers kept, read back by their own readers: lists of (name, step, value)."""

import json
import math
import struct

import numpy as np

from penstock.addons.trackers.tracker import points

TIMED = ("ms/", "seconds", "samples_per_second", "wait_share")


def expected(run):
    """Value by name and step, of metrics.jsonl."""
    found = {}
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        for name, value in points(line["event"], line).items():
            assert (name, line["step"]) not in found
            found[name, line["step"]] = math.nan if value is None else value
    assert found
    return found


def tensorboard(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tracker" / "tensorboard"))
    events.Reload()
    return [
        (name, one.step, one.value)
        for name in events.Tags()["scalars"]
        for one in events.Scalars(name)
    ]


def mlflow_id(run, uri):
    from mlflow.tracking import MlflowClient

    client, own = MlflowClient(uri), json.loads((run / "manifest.json").read_text())["sessions"][0]
    experiment = client.get_experiment_by_name("penstock").experiment_id
    (found,) = client.search_runs([experiment], f"tags.`penstock.run` = '{own['id']}'")
    return found.info.run_id


def mlflow(run, uri):
    from mlflow.tracking import MlflowClient

    client, id = MlflowClient(uri), mlflow_id(run, uri)
    names = client.get_run(id).data.metrics
    return [
        (name, one.step, one.value) for name in names for one in client.get_metric_history(id, name)
    ]


def wandb_records(run):
    """Records of all offline sessions, in their order."""
    from wandb.proto.wandb_internal_pb2 import Record

    for path in sorted((run / "tracker" / "wandb" / "wandb").glob("offline-run-*/*.wandb")):
        content, at, data = path.read_bytes(), 7, b""
        while len(content) - at > 7:  # a log as LevelDB writes it, in blocks of 32 KiB
            left = (1 << 15) - at % (1 << 15)
            if left < 7:
                at += left
                continue
            _, length, kind = struct.unpack("<IHB", content[at : at + 7])
            data += content[at + 7 : at + 7 + length]
            at += 7 + length
            if kind in (1, 4) and at <= len(content):  # whole, or its last part
                record = Record()
                record.ParseFromString(data)
                data = b""
                yield record


def wandb(run):
    found = []
    for record in wandb_records(run):
        if record.WhichOneof("record_type") != "history":
            continue
        row = {
            one.key or "/".join(one.nested_key): json.loads(one.value_json)
            for one in record.history.item
        }
        step = row.pop("_step")
        found += [
            (name, step, value)
            for name, value in row.items()
            if not name.startswith(("_", "curves/", "predictions/"))
        ]
    return found


def check(found, wanted, single=False, again=range(0)):
    """Each point once, with the value of metrics.jsonl.

    Args:
        single: whether values were kept as float32.
        again: steps that were taken twice, of which both may have been kept, with other times.
    """
    kept = {(name, int(step)): value for name, step, value in found}
    once = [(name, step) for name, step, _ in found if step not in again]
    assert len(once) == len(set(once)), "a point was kept twice"
    assert kept.keys() == wanted.keys()
    for (name, step), value in wanted.items():
        if step in again and name.removeprefix("epoch/").startswith(TIMED):
            continue
        value = float(np.float32(value)) if single else value
        assert kept[name, step] == value or math.isnan(value), (name, step)
