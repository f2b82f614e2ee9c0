"""Batches are the same bytes whatever instructions torch and NumPy may use."""

from pathlib import Path

import pytest

from tests.program import SHARED
from tests.promises import golden

# The oldest instructions of both, and the newest of this processor.
PROCESSORS = (
    {"ATEN_CPU_CAPABILITY": "default", "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL"},
    {"ATEN_CPU_CAPABILITY": "avx2", "NPY_DISABLE_CPU_FEATURES": ""},
)
RECIPES = (
    "experiment=two_views dataset.count=120",
    "experiment=image_text dataset.count=120",
    "experiment=multi_label dataset.count=120",
    "experiment=video dataset.count=120",
    "dataset=image_folder dataset.root=photos transform=images",
    "dataset=image_folder dataset.root=photos transform=images_batch",
    "experiment=face_landmarks dataset.root=faces transform=face_crops",
    f"experiment=spoken_digits dataset.root={SHARED / 'fsdd'}",
)


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        made = []
        for number, features in enumerate(PROCESSORS):
            patch.setattr(golden, "PINNED", {**features, "OMP_NUM_THREADS": "1"})
            made.append(golden.Program(tmp_path_factory.mktemp(f"processor{number}")))
    yield made
    for program in made:
        program.close()


@pytest.mark.parametrize("words", RECIPES)
def test_a_recipe_has_the_same_batches_on_every_processor(words, programs):
    if "fsdd" in words and not Path(SHARED / "fsdd").exists():
        pytest.skip("the shared data is not here")
    oldest, newest = (program.digest(words) for program in programs)
    assert oldest == newest
