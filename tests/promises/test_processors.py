"""Batches are the same bytes whatever instructions torch and NumPy may use.

By default those of three recipes; of all in CI and with `-m ""`.
"""

import os
import random
import wave

import numpy as np
import pytest

from tests.promises import golden

# The oldest instructions of both, and the newest of this processor.
PROCESSORS = (
    {"ATEN_CPU_CAPABILITY": "default", "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL"},
    {"ATEN_CPU_CAPABILITY": "avx2", "NPY_DISABLE_CPU_FEATURES": ""},
)
RECIPES = (
    *(f"experiment={name} dataset.count=120" for name in golden.DRAWN),
    "dataset.count=120",  # the default run, which is not in the golden record with so few
    "experiment=tiny_lm",
    "experiment=ants_bees dataset.root=photos",
    "experiment=face_landmarks dataset.root=faces",
    "experiment=sms_spam dataset.root=messages",
    "experiment=spoken_digits dataset.root=spoken",
    "dataset=image_folder dataset.root=photos transform=images_batch",
    "dataset=image_folder dataset.root=photos transform=images_fast",
    "dataset=image_folder dataset.root=photos transform=images_fast "
    "transform.train.decode.decoder=pure",
)


def record(folder):
    """Spoken digits, made of integers; half have to be resampled."""
    (folder / "spoken/recordings").mkdir(parents=True)
    for number in range(40):
        draw = random.Random(number)
        steps = [draw.randrange(-900, 900) for _ in range(3000 + 400 * (number % 7))]
        samples = np.cumsum(steps) % 30000 - 15000
        name = f"spoken/recordings/{number % 10}_{'ab'[number % 2]}_{number // 4}.wav"
        with wave.open(str(folder / name), "wb") as file:
            file.setparams((1, 2, (8000, 11025)[number % 4 // 2], 0, "NONE", ""))
            file.writeframes(samples.astype("<i2").tobytes())


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """A function that gives the program with the instructions of that number, started once."""
    started = {}

    def of(number):
        if number not in started:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(golden, "PINNED", {**PROCESSORS[number], "OMP_NUM_THREADS": "1"})
                started[number] = golden.Program(tmp_path_factory.mktemp(f"processor{number}"))
                record(started[number].folder)
        return started[number]

    yield of
    for program in started.values():
        program.close()


def test_every_shipped_experiment_is_a_recipe_here():
    named = {words.split()[0].removeprefix("experiment=") for words in RECIPES}
    assert {path.stem for path in (golden.ROOT / "conf/experiment").glob("*.yaml")} <= named


@pytest.mark.one_in(1 if os.environ.get("CI") else 7)
@pytest.mark.parametrize("words", RECIPES)
def test_a_recipe_has_the_same_batches_on_every_processor(words, programs):
    """The golden record is of AVX2; what is not in it is made by the newest instructions here."""
    recorded = golden.recorded().get(words) or programs(1).digest(words)
    assert programs(0).digest(words) == recorded
