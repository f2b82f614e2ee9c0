"""The resampler in C: the same bits by whatever instructions, and where its pictures lie."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.support.program import ROOT

NATIVE = ROOT / "pipeline" / "native"

WAYS = {"plain C": ["-DPENSTOCK_PLAIN"], "SSE2": ["-DPENSTOCK_NO_AVX2"], "AVX2": []}
AS_IT_IS = ((1.0, 1.0, 1.0), (0.0, 0.0, 0.0))

PROGRAM = """
#include <stdlib.h>
#include <string.h>
#include "resample.h"
/* Two filters and every function on a picture of height x width: bytes, floats and narrow rows. */
int all(const uint8_t *from, int height, int width, const double *region, int rows, int columns,
        int mirrored, const float *scale, const float *bias, uint8_t *bytes, float *floats,
        uint8_t *narrowed)
{
    Filter across = {0}, down = {0};
    size_t pitch = (size_t)width * LANES + PADDING;
    uint8_t *wide = calloc((size_t)height, pitch), *pixels = calloc((size_t)columns, LANES);
    uint16_t *sums = calloc(pitch, 2);
    const uint8_t **lines = calloc((size_t)height, sizeof *lines);
    make_filter(&across, region[0], region[2], 0, width, columns, mirrored ? MIRRORED : ACROSS);
    make_filter(&down, region[1], region[3], 0, height, rows, DOWN);
    for (int y = 0; y < height; y++)
        widen(from + (size_t)y * (size_t)width * CHANNELS, width, wide + pitch * (size_t)y);
    for (int y = 0; y < rows; y++) {
        for (int tap = 0; tap < down.used[y]; tap++)
            lines[tap] = wide + pitch * (size_t)(down.first[y] + tap);
        add_rows(lines, down.weights + (size_t)y * (size_t)down.taps, down.used[y], width * LANES,
                 sums);
        resample_row(sums, 0, &across, columns, pixels);
        write_bytes(pixels, columns, bytes + y * columns, (ptrdiff_t)rows * columns);
        write_floats(pixels, columns, scale, bias, floats + y * columns, (ptrdiff_t)rows * columns,
                     y % 2);
        narrow(pixels, columns, narrowed + (size_t)y * (size_t)columns * CHANNELS);
    }
    have_written();
    free_filter(&across); free_filter(&down); free(wide); free(pixels); free(sums); free(lines);
    return 0;
}
"""


@pytest.fixture(scope="module")
def ways(tmp_path_factory):
    """The same program built for each kind of instructions."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no C compiler")
    folder, found = tmp_path_factory.mktemp("ways"), {}
    (folder / "all.c").write_text(PROGRAM)
    sources = [str(NATIVE / name) for name in ("resample.c", "resample_avx2.c")]
    for number, (name, flags) in enumerate(WAYS.items()):
        path = folder / f"way{number}.so"
        words = ["gcc", "-O2", "-std=c11", "-ffp-contract=off", "-shared", "-fPIC"]
        words += ["-Wall", "-Wextra", "-Werror", *flags]
        files = [f"-I{NATIVE}", str(folder / "all.c"), *sources, "-o", str(path), "-lm"]
        subprocess.run([*words, *files], check=True)
        found[name] = ctypes.CDLL(str(path)).all
    return found


def resampled(function, picture, region, rows, columns, mirrored):
    height, width = picture.shape[:2]
    region = np.array(region, np.float64)
    scale, bias = np.array([[0.017, 0.02, 0.03], [-2, 0, 1]], np.float32)
    shapes = ((3, rows, columns), np.uint8), ((3, rows, columns), np.float32)
    found = [np.zeros(*one) for one in (*shapes, ((rows, columns, 3), np.uint8))]
    at = [one.ctypes.data_as(ctypes.c_void_p) for one in (picture, region, scale, bias, *found)]
    function(at[0], height, width, at[1], rows, columns, mirrored, *at[2:])
    return found


@pytest.mark.stress
@settings(max_examples=150, deadline=None)
@given(
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    out=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    edges=st.tuples(*[st.floats(0, 1)] * 4),
    mirrored=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_kind_of_instruction_gives_the_same_bits(ways, size, out, edges, mirrored, seed):
    height, width = size
    picture = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    left, right = sorted((edges[0] * width, edges[1] * width))
    top, bottom = sorted((edges[2] * height, edges[3] * height))
    region = (left, top, min(max(right, left + 0.5), width), min(max(bottom, top + 0.5), height))
    if region[2] - left < 0.5 or region[3] - top < 0.5:
        region = (0, 0, width, height)
    found = [resampled(function, picture, region, *out, mirrored) for function in ways.values()]
    expected, _, narrowed = found[0]
    assert np.array_equal(narrowed, expected.transpose(1, 2, 0))
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert one.tobytes() == other.tobytes()
    straight, _, _ = resampled(ways["AVX2"], picture, region, *out, not mirrored)
    assert np.array_equal(straight, expected[:, :, ::-1])


def cut(pictures, facts, regions, shape, **change):
    pixels = pytest.importorskip("penstock.native.pixels", reason="it was not built")
    target, place = np.zeros(shape, np.uint8), np.zeros(1, np.int64)
    arguments = {
        "pixels": pictures,
        "target": target,
        "facts": np.array(facts, np.int64),
        "regions": np.array(regions, np.float64),
        "inside": True,
        "channels_last": False,
        "normal": AS_IT_IS,
        "place": place,
    }
    pixels.crop_resize(*(arguments | change).values())
    return target


def test_pictures_of_many_sizes_are_cut_out_of_one_piece_of_memory():
    random = np.random.default_rng(0)
    sizes = [(40, 60), (7, 5), (1, 1), (90, 30)]
    pictures = [random.integers(0, 256, (*size, 3), np.uint8) for size in sizes]
    starts = np.cumsum([0, *[one.size for one in pictures]])[:-1]
    facts = [
        [start, *size, number % 2]
        for number, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]
    regions = [(5, 3, 55, 39), (0, 0, 5, 7), (0, 0, 1, 1), (2, 10, 29, 80)]
    found = cut(np.concatenate([one.ravel() for one in pictures]), facts, regions, (4, 3, 20, 24))
    for row, (picture, region) in enumerate(zip(pictures, regions, strict=True)):
        image = Image.fromarray(picture).crop(region).resize((24, 20), Image.Resampling.BILINEAR)
        expected = np.asarray(image).astype(int)[:, ::-1] if row % 2 else np.asarray(image)
        assert np.abs(found[row].transpose(1, 2, 0).astype(int) - expected).max() <= 1
    last = np.zeros((4, 20, 24, 3), np.uint8)
    cut(
        np.concatenate([one.ravel() for one in pictures]),
        facts,
        regions,
        (4, 3, 20, 24),
        target=last,
        channels_last=True,
    )
    assert np.array_equal(last.transpose(0, 3, 1, 2), found)


@pytest.mark.parametrize(
    ("facts", "region"),
    [
        ((0, 11, 10, 0), (0, 0, 10, 10)),
        ((1, 10, 10, 0), (0, 0, 10, 10)),
        ((-1, 10, 10, 0), (0, 0, 10, 10)),
        ((2**62, 10, 10, 0), (0, 0, 10, 10)),
        ((0, 0, 10, 0), (0, 0, 10, 10)),
        ((0, 2**40, 10, 0), (0, 0, 10, 10)),
        ((0, 10, 10, 0), (0, 0, 11, 10)),
        ((0, 10, 10, 0), (5, 5, 5, 9)),
        ((0, 10, 10, 0), (-1, 0, 5, 5)),
        ((0, 10, 10, 0), (0, float("nan"), 5, 5)),
    ],
)
def test_pictures_and_regions_that_are_not_there(facts, region):
    with pytest.raises(ValueError, match="out of bounds"):
        cut(np.zeros(300, np.uint8), [facts], [region], (1, 3, 4, 4))
