import hashlib
import math

import numpy as np
import pytest
import torch

from penstock.distributed.group import Group
from penstock.loading.batch import Batch
from penstock.order.keys import hash64, hash64_array
from penstock.order.plan import Request
from penstock.training.meter import Meter, Step, order_hash
from penstock.training.metrics import BitsPerByte, NormalizedMeanError


def faces(count=3, landmarks=68):
    torch.manual_seed(0)
    target = torch.rand(count, landmarks, 2) * 50
    if landmarks == 68:
        target[:, 36] = torch.tensor([10.0, 20.0])
        target[:, 45] = torch.tensor([40.0, 60.0])  # 50 pixels from each other
    return target


def result(predicted, target):
    metric = NormalizedMeanError()
    metric.update(predicted, target)
    return metric.compute().item()


def test_by_the_distance_of_the_eye_corners():
    target = faces()
    assert result(target + torch.tensor([3.0, 4.0]), target) == pytest.approx(5 / 50)
    assert result(target, target) == 0


def test_other_numbers_of_landmarks_go_by_the_box():
    target = torch.tensor([[[0.0, 0.0], [30.0, 0.0], [30.0, 40.0]]])
    assert result(target + torch.tensor([0.0, 5.0]), target) == pytest.approx(5 / 50)


def test_without_a_face_there_is_no_error():
    target = faces(1)
    target[0, 36] = target[0, 45]
    assert math.isnan(result(target, target))


def test_sums_are_float64_and_stay_so():
    metric = NormalizedMeanError().to("cpu").half()
    metric.update(faces(), faces())
    assert metric.total.dtype == torch.float64
    assert metric.compute().dtype == torch.float64


def test_missing_landmarks_are_left_out():
    target = faces()
    predicted = target + torch.tensor([3.0, 4.0])
    target[0, :30] = torch.nan
    target[1, 50, 1] = torch.nan
    assert result(predicted, target) == pytest.approx(5 / 50)
    box = torch.tensor([[[0.0, 0.0], [30.0, 40.0], [torch.nan, 0.0]]])
    assert result(torch.tensor([[[5.0, 0.0], [30.0, 45.0], [9.0, 9.0]]]), box) == pytest.approx(0.1)


def test_faces_without_a_size_are_skipped_and_counted():
    target = faces(3)
    target[0, 36] = target[0, 45]
    target[1, 36] = torch.nan
    metric = NormalizedMeanError()
    metric.update(target + torch.tensor([3.0, 4.0]), target)
    assert metric.compute().item() == pytest.approx(5 / 50)
    assert metric.skipped == 2


def test_a_prediction_of_nan_is_an_error():
    target = faces()
    predicted = target.clone()
    predicted[0, 0, 0] = torch.nan
    assert math.isnan(result(predicted, target))


def test_ranks_are_summed():
    target, parts = faces(4), [NormalizedMeanError(), NormalizedMeanError()]
    predicted = target + torch.randn_like(target)
    parts[0].update(predicted[:1], target[:1])
    parts[1].update(predicted[1:], target[1:])
    parts[0].merge_state(parts[1])
    assert parts[0].compute().item() == pytest.approx(result(predicted, target))


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match=r"two tensors \[B, L, 2\], got \[3, 68, 2\] and \[3, 136"):
        NormalizedMeanError().update(faces(), faces().flatten(1))


def test_bits_of_a_byte_are_those_of_all_tokens():
    metric = BitsPerByte()
    metric.update(torch.zeros(0), torch.zeros(0, dtype=torch.int64))
    assert math.isnan(metric.compute())
    metric.update(torch.tensor([3.0, 5.0]) * math.log(2), torch.tensor([1, 2]))
    metric.update(torch.tensor([4.0]) * math.log(2), torch.tensor([1]))
    assert metric.compute().item() == pytest.approx(3.0)
    assert metric.compute().dtype == torch.float64


def test_the_order_of_a_step_is_the_hash_that_ledgers_of_other_versions_hold():
    requests = [
        Request(3, step, np.arange(4) + 4 * step, np.array([5, 0, 2, 9]) + step, 4)
        for step in (0, 7)
    ]
    batches = [Batch({"x": torch.zeros(4)}, request) for request in requests]
    expected = []
    for request in requests:
        key, total = hash64("order", 3, request.step), 0
        for position, index in zip(request.positions, request.indices, strict=True):
            inner = int(hash64_array(key + 1, [index])[0])
            total += int(hash64_array(key, np.array([position], np.uint64) + np.uint64(inner))[0])
        expected.append(total % 2**64)
    meter = Meter(Group())
    for one in batches:
        meter.add(one, torch.zeros(4))
    assert [step.order for step in meter.read()] == expected


def test_the_order_of_a_run_is_the_hash_of_its_steps():
    steps = [Step(0, 7, 1.0, 4, 0xAB), Step(1, 0, 1.0, 4, 2**64 - 1)]
    first = hashlib.blake2b(b"before 0 7 00000000000000ab", digest_size=16).hexdigest()
    second = hashlib.blake2b(f"{first} 1 0 ffffffffffffffff".encode(), digest_size=16).hexdigest()
    assert order_hash("before", steps) == second
    assert order_hash("before", []) == "before"
