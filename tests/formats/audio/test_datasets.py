"""Audio files, spoken digits, and the collate function for them."""

import shutil
import sys
from collections import Counter

import numpy as np
import pytest
import soundfile
import torch

import penstock
from penstock.addons.audio.reading import read_audio, read_header
from penstock.addons.audio.recordings import SpokenDigits
from penstock.build.training import TrainingParts
from penstock.errors import ConfigError, DataError
from penstock.loading.collate import Mismatch, PadTime
from tests.support.store_server import bucket

KINDS = [("WAV", "PCM_16"), ("WAV", "IMA_ADPCM"), ("RF64", "PCM_16"), ("FLAC", "PCM_24")]
SMALL = [("WAV", "GSM610"), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III")]
SMALL += [("W64", "PCM_16"), ("AIFF", "PCM_16"), ("AU", "ULAW"), ("CAF", "ALAC_16")]
EVERY = {"opus": "OGG"}


def wave(frames=400, channels=1, seed=0):
    """float64 [T, C], as soundfile takes it."""
    return np.random.default_rng(seed).uniform(-0.5, 0.5, (frames, channels))


def write(path, values=None, rate=8000, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, wave() if values is None else values, rate, **options)
    return path


# One file


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({"subtype": "PCM_16"}, 2**-15),
        ({"subtype": "PCM_24"}, 2**-23),
        ({"subtype": "FLOAT"}, 1e-7),
        ({"format": "FLAC", "subtype": "PCM_16"}, 2**-15),
    ],
)
def test_what_is_read_is_what_was_written(tmp_path, options, tolerance):
    path = write(tmp_path / "a.wav", wave(300, 2), rate=11025, **options)
    audio, rate = read_audio(str(path))
    assert (audio.shape, audio.dtype, rate) == ((2, 300), torch.float32, 11025)
    assert audio.is_contiguous()
    np.testing.assert_allclose(audio.numpy().T, wave(300, 2), atol=tolerance)


@pytest.mark.parametrize(("format", "subtype"), KINDS)
def test_a_file_cut_anywhere_is_refused(tmp_path, format, subtype):
    content = write(tmp_path / "a.wav", format=format, subtype=subtype).read_bytes()
    cut = tmp_path / "cut.wav"
    for size in {*range(0, len(content), 61), *range(len(content) - 3, len(content))}:
        cut.write_bytes(content[:size])
        with pytest.raises(DataError, match=r"cut\.wav"):
            read_audio(str(cut))


@pytest.mark.parametrize(("format", "subtype"), SMALL)
def test_kinds_that_libsndfile_cannot_seek_or_cuts_without_a_word(tmp_path, format, subtype):
    tone = 0.3 * np.sin(np.arange(16000) / 5)
    content = write(tmp_path / "a.wav", tone, 16000, format=format, subtype=subtype).read_bytes()
    audio, rate = read_audio(str(tmp_path / "a.wav"))
    assert 16000 <= audio.shape[1] < 16400
    assert read_header(str(tmp_path / "a.wav")) == (audio.shape[1], rate, 1)
    assert 0.15 < float(audio.square().mean().sqrt()) < 0.25
    cut = tmp_path / "cut.wav"
    for size in (len(content) // 3, len(content) // 2, len(content) - 50, len(content) - 8):
        cut.write_bytes(content[:size])
        with pytest.raises(DataError, match=r"cut\.wav"):
            read_audio(str(cut))


@pytest.mark.parametrize("length", [0xFFFFFFFF, 0x7FFFF000])
def test_a_file_written_into_a_pipe(tmp_path, length):
    content = write(tmp_path / "a.wav").read_bytes()
    (tmp_path / "b.wav").write_bytes(content[:40] + length.to_bytes(4, "little") + content[44:])
    assert read_header(str(tmp_path / "b.wav")).frames == 400
    assert read_audio(str(tmp_path / "b.wav"))[0].shape == (1, 400)


BAD = {
    "missing": (lambda path: None, "cannot be read: No such file"),
    "a folder": (lambda path: path.mkdir(), "cannot be read: Is a directory"),
    "empty": (lambda path: path.touch(), "is not audio: it is empty"),
    "text": (lambda path: path.write_text("hello, world\n"), "it is text that starts with 'hello"),
    "a page": (lambda path: path.write_text(" <!DOCTYPE html>"), "is not audio: it is a web page"),
    "a pointer": (
        lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"),
        "it is a Git LFS pointer",
    ),
    "noise": (lambda path: path.write_bytes(bytes(range(256))), "is damaged or of an unknown form"),
    "no samples": (lambda path: write(path, wave(0)), "claims 0 frames, and 0 can be read"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_wrong_with_a_file(tmp_path, kind):
    make, match = BAD[kind]
    make(tmp_path / "bad.wav")
    with pytest.raises(DataError, match=match) as caught:
        read_audio(str(tmp_path / "bad.wav"))
    assert str(tmp_path / "bad.wav") in str(caught.value)


def test_without_soundfile(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(ConfigError, match=r"pip install soundfile"):
        SpokenDigits(str(tmp_path))


# Spoken digits


SPEAKERS = ("ann", "ben", "cleo")


def recordings(root, takes=7, digits=3):
    """root/recordings with `digits` x 3 speakers x `takes`, of different lengths."""
    for digit in range(digits):
        for number, speaker in enumerate(SPEAKERS):
            for take in range(takes):
                values = 0.1 * wave(400 + 10 * take, seed=digit) + 0.1 * np.sin(
                    np.arange(400 + 10 * take)[:, None] * (digit + 1) / 5 + number
                )
                write(root / "recordings" / f"{digit}_{speaker}_{take}.wav", values)
    return root


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    return recordings(tmp_path_factory.mktemp("spoken"))


@pytest.fixture
def own_spoken(spoken, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(spoken, tmp_path / "spoken")


def test_the_split_by_takes(spoken):
    train, val = SpokenDigits(str(spoken)), SpokenDigits(str(spoken), "val")
    assert (len(train), len(val)) == (3 * 3 * 2, 3 * 3 * 5)
    assert set(train.takes) == {5, 6}
    assert set(val.takes) == {0, 1, 2, 3, 4}
    assert len(SpokenDigits(str(spoken), val_takes=1)) == 3 * 3 * 6


def test_the_split_by_speakers(spoken):
    train = SpokenDigits(str(spoken), val_speakers=["cleo"])
    val = SpokenDigits(str(spoken), "val", val_speakers=["cleo"])
    assert (set(train.speaker_codes), set(val.speaker_codes)) == ({0, 1}, {2})
    assert train.speakers == val.speakers == list(SPEAKERS)


def test_a_sample(spoken):
    data = SpokenDigits(str(spoken), val_takes=0)
    row = [data.path(i) for i in range(len(data))].index(str(spoken / "recordings/2_ben_6.wav"))
    sample = data[row]
    assert (sample["label"], sample["speaker"], sample["rate"]) == (2, 1, 8000)
    assert sample["audio"].shape == (1, 460)
    assert data.facts == {"num_classes": 10, "num_outputs": 10}
    assert data.classes == list("0123456789")


def test_the_fingerprint_goes_by_content_not_by_place(spoken, own_spoken):
    before = SpokenDigits(str(spoken)).fingerprint
    assert SpokenDigits(str(own_spoken)).fingerprint == before
    assert SpokenDigits(str(spoken), "val").fingerprint != before
    write(own_spoken / "recordings" / "0_ann_6.wav", wave(999))
    assert SpokenDigits(str(own_spoken)).fingerprint != before


def test_recordings_of_any_ending_are_read_and_the_rest_is_counted(own_spoken, caplog):
    folder, endings = own_spoken / "recordings", ("ogg", "MP3", "aiff", "opus", "au", "w64", "caf")
    for take, ending in enumerate(endings, 10):
        values = wave(8000)[:, 0] / 9
        write(folder / f"0_ann_{take}.{ending}", values, format=EVERY.get(ending, ending.upper()))
    for name in ("0_ann_30.m4a", "0_ann_31.M4A", "0_ann_32", "notes.txt", "._0_ann_0.wav"):
        (folder / name).write_bytes(b"x")
    data = SpokenDigits(str(own_spoken))
    assert len(data) == 18 + len(endings)
    assert {data[row]["audio"].shape[1] for row in range(len(data)) if data.takes[row] > 9} == {
        8000
    }
    assert len(SpokenDigits(str(own_spoken), "val")) == 45
    (said,) = caplog.messages
    assert "left out 4 file(s): 2 .m4a" in said
    assert "1 without an ending" in said


@pytest.mark.parametrize("name", ["seven_ann_1.wav", "7_ann.wav", "12_ann_1.wav", "7_ann_x.flac"])
def test_names_that_say_nothing(own_spoken, name):
    (own_spoken / "recordings" / name).touch()
    with pytest.raises(DataError, match=rf"{name}'.*named <digit>_<speaker>_<take>"):
        SpokenDigits(str(own_spoken))


def test_folders_without_recordings(tmp_path):
    with pytest.raises(DataError, match="is missing"):
        SpokenDigits(str(tmp_path / "no"))
    with pytest.raises(DataError, match=r"recordings' is missing.*dataset\.recordings"):
        SpokenDigits(str(tmp_path))
    (tmp_path / "recordings").mkdir()
    with pytest.raises(DataError, match="has no recordings"):
        SpokenDigits(str(tmp_path))


def test_empty_splits_and_wrong_speakers(spoken):
    with pytest.raises(DataError, match=r"val_takes=0 leaves the split 'val' .* empty"):
        SpokenDigits(str(spoken), "val", val_takes=0)
    with pytest.raises(DataError, match=r"val_speakers=\['ann', 'ben', 'cleo'\] leaves .*'train'"):
        SpokenDigits(str(spoken), val_speakers=SPEAKERS)
    with pytest.raises(ConfigError, match=r"no speaker 'chleo' among"):
        SpokenDigits(str(spoken), val_speakers=["chleo"])
    with pytest.raises(ConfigError, match=r"has no split .test. of its own"):
        SpokenDigits(str(spoken), "test")


# Spoken digits in the pipeline


def overrides(root, *more):
    return ["dataset=spoken_digits", f"dataset.root={root}", "batch.size=6", *more]


def test_batches_of_speakers_times_recordings(spoken):
    words = ["sampler=identity", "sampler.column=speaker", "sampler.identities=2"]
    words += ["sampler.samples=3", "loader=debug"]
    config = penstock.compose(*overrides(spoken, *words))
    with TrainingParts(config).data.train.loader() as loader:
        batches = list(loader)
    assert len(batches) == 3
    for batch in batches:
        assert sorted(Counter(batch["speaker"].tolist()).values()) == [3, 3]
        assert batch["features"].shape == (6, 40, int(batch["features_lengths"].max()))


# Collating


def test_time_is_padded_and_lengths_are_given():
    samples = [
        {"audio": torch.ones(2, 3), "label": 1, "curve": np.ones(2)},
        {"audio": torch.ones(2, 5), "label": 2, "curve": np.zeros(2)},
    ]
    batch = PadTime(value=-1.0)(samples)
    assert batch["audio"].shape == (2, 2, 5)
    assert batch["audio"][0].tolist() == [[1, 1, 1, -1, -1]] * 2
    assert batch["audio_lengths"].tolist() == [3, 5]
    assert batch["label"].tolist() == [1, 2]
    assert batch["curve"].shape == (2, 2)  # one dimension: a vector, not audio
    assert set(batch) == {"audio", "audio_lengths", "label", "curve"}


def test_what_cannot_be_padded():
    with pytest.raises(
        Mismatch, match=r"shapes \[1, 3\] and \[2, 3\] differ in more than their length"
    ):
        PadTime()([{"audio": torch.ones(1, 3)}, {"audio": torch.ones(2, 3)}])
    with pytest.raises(Mismatch, match="to be padded, but the samples have only audio"):
        PadTime(["target"])([{"audio": torch.ones(1, 3)}])


def test_recordings_at_an_address(tmp_path):
    """The same samples and tables, and messages that name the address."""
    root = tmp_path / "digits"
    for take in range(4):
        write(root / "recordings" / f"{take}_ada_{take}.wav", wave()[: 100 + take])
    here = SpokenDigits(str(root), val_takes=1)
    samples = [here[index]["audio"] for index in range(len(here))]
    (root / "recordings/9_ada_9.wav").write_bytes(b"this is text")
    with bucket(root, tmp_path / "cache") as (_, files):
        there = SpokenDigits("s3://data", val_takes=1, files=files)
        assert len(there) == len(samples) + 1
        for index, audio in enumerate(samples):
            assert torch.equal(audio, there[index]["audio"])
        assert there.metadata["length"].tolist() == [101, 102, 103, 0]
        with pytest.raises(DataError, match=r"s3://data/recordings/9_ada_9\.wav"):
            there[3]
