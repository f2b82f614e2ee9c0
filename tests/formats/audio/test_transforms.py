"""Resampling, mel filters and the transforms of audio, against formulas."""

import math

import numpy as np
import pytest
import torch

import penstock
from penstock.addons.audio.transforms import (
    Gain,
    LogMel,
    MaskFeatures,
    Noise,
    RandomCrop,
    Resample,
    Standardize,
    mel_filters,
    resample,
)
from penstock.errors import ConfigError, DataError
from penstock.training.models import AudioNet

RATES = [(48000, 8000), (44100, 16000), (8000, 16000), (44100, 48000), (11025, 8000)]


def sine(hertz, rate, frames):
    """float64[frames] of amplitude 1."""
    return torch.sin(2 * math.pi * hertz * torch.arange(frames, dtype=torch.float64) / rate)


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def sample(frames=800, rate=8000, channels=1, **more):
    return {"audio": 0.1 * noise(channels, frames), "rate": rate, "label": 3, **more}


GRID = torch.arange(6.0).reshape(3, 2) ** 2  # no number is their mean


def inner(values):
    """Without the ends, where the filter reaches into the silence around."""
    edge = len(values) // 5
    return values[edge:-edge]


# Resampling


@pytest.mark.parametrize(("rate", "new_rate"), RATES)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.82])
def test_a_sine_stays_that_sine(rate, new_rate, share):
    hertz = share * min(rate, new_rate) / 2
    made = resample(sine(hertz, rate, rate // 4)[None].float(), rate, new_rate)[0]
    expected = sine(hertz, new_rate, len(made))
    assert (inner(made.double() - expected)).abs().max() < 1e-4


@pytest.mark.parametrize(("rate", "new_rate"), [pair for pair in RATES if pair[0] > pair[1]])
def test_what_the_new_rate_cannot_hold_is_taken_out(rate, new_rate):
    """Above half of the new rate all is 80 dB down; else it would fold back as another tone."""
    for share in (0.0, 0.3, 0.9):
        hertz = new_rate / 2 * 1.01 * (1 - share) + rate / 2 * share
        if hertz < rate / 2:
            made = resample(sine(hertz, rate, rate // 4)[None].float(), rate, new_rate)[0]
            assert inner(made).abs().max() < 1e-4


@pytest.mark.parametrize(("rate", "new_rate"), RATES)
def test_lengths_and_constants(rate, new_rate):
    for frames in (1, 2, 5, 479, 480, 481):
        made = resample(torch.ones(2, frames), rate, new_rate)
        assert made.shape == (2, math.ceil(frames * new_rate / rate))
    assert inner(resample(torch.ones(1, 6000), rate, new_rate)[0] - 1).abs().max() < 1e-5


def test_the_transform_resamples_what_it_is_given():
    made = Resample(4000, fields=["audio", "target"])(sample(target=noise(2, 800)))
    assert (made["rate"], made["label"]) == (4000, 3)
    assert (made["audio"].shape, made["target"].shape) == ((1, 400), (2, 400))
    same = sample()
    assert Resample(8000)(same)["audio"] is same["audio"]


def test_rates_without_a_small_ratio_are_refused():
    with pytest.raises(DataError, match="audio cannot be resampled by 8000 / 44101, the ratio"):
        resample(noise(1, 100), 44101, 8000)


@pytest.mark.parametrize("peak", [1e-3, 0.3, 40.0])
def test_any_order_of_sums_gives_the_same_bits(peak):
    audio = peak * noise(1, 4000)
    together = resample(audio, 48000, 8000)
    alone = resample(torch.cat([torch.zeros(1, 48), audio], 1), 48000, 8000)[:, 8:]
    assert torch.equal(together, alone)


# Mel filters


def naive(rate, n_fft, edges):
    """Triangles of height 1 over the bins, one number at a time."""
    filters = np.zeros((len(edges) - 2, n_fft // 2 + 1))
    for band, (low, centre, high) in enumerate(zip(edges, edges[1:], edges[2:], strict=False)):
        for number in range(n_fft // 2 + 1):
            hertz = number * rate / n_fft
            if low < hertz <= centre:
                filters[band, number] = (hertz - low) / (centre - low)
            elif centre < hertz < high:
                filters[band, number] = (high - hertz) / (high - centre)
    return filters


def test_htk_filters():
    ends = [2595 * math.log10(1 + hertz / 700) for hertz in (20, 4000)]
    edges = [700 * (10 ** (mel / 2595) - 1) for mel in np.linspace(*ends, 42)]
    found = mel_filters(8000, 512, 40, 20, 4000, "htk")
    np.testing.assert_allclose(found, naive(8000, 512, edges), atol=1e-6)


def test_slaney_filters():
    """Slaney's own 40: 13 linear edges 66.67 Hz apart, then 27 by a factor of 6.4^(1/27)."""
    edges = [133.3333 + 66.66667 * number for number in range(14)]
    edges += [1000 * 6.4 ** (number / 27) for number in range(1, 29)]
    found = mel_filters(16000, 1024, 40, edges[0], edges[-1], "slaney")
    widths = np.array(edges[2:]) - np.array(edges[:-2])
    heights = 2 / widths[:, None]
    np.testing.assert_allclose(found, naive(16000, 1024, edges) * heights, atol=1e-6)


def test_published_weights_of_librosa():
    """The first two bands of librosa.filters.mel(sr=22050, n_fft=2048)."""
    found = mel_filters(22050, 2048, 128, 0, 11025, "slaney")
    first = [0, 0.01618285, 0.03236571, 0.02899009, 0.01280723, 0]
    second = [0, 0, 0, 0.00977924, 0.02596209, 0.03539371, 0.01921085, 0.00302800, 0]
    np.testing.assert_allclose(found[0, :6], first, atol=1e-7)
    np.testing.assert_allclose(found[1, :9], second, atol=1e-7)


# Features


@pytest.mark.parametrize("n_fft", [256, 255])
@pytest.mark.parametrize("frames", [1, 79, 80, 81, 1234, 400_000])  # the last in pieces
def test_features_are_those_of_torch_stft(n_fft, frames):
    audio = noise(1, frames)
    made = LogMel(8000, n_fft=n_fft, hop=80, window=200, n_mels=20, f_min=0)(
        {"audio": audio, "rate": 8000}
    )["features"]
    window = torch.zeros(n_fft)
    window[(n_fft - 200) // 2 :][:200] = torch.hann_window(200)
    spectrum = torch.stft(
        audio, n_fft, 80, window=window, center=True, pad_mode="constant", return_complex=True
    )
    filters = torch.from_numpy(mel_filters(8000, n_fft, 20, 0, 4000, "slaney")).float()
    bands = filters @ spectrum[0].abs().square()
    expected = bands.clamp_min(1e-6).log()
    assert made.shape == (20, frames // 80 + 1)
    assert made.dtype == torch.float32
    shared = expected.shape[1]  # torch drops a frame at the end for odd n_fft
    torch.testing.assert_close(made[:, :shared], expected, atol=1e-4, rtol=0)


def test_silence_stays_finite_and_channels_are_mixed():
    transform = LogMel(8000, floor=1e-4)
    silent = transform.features(torch.zeros(1, 400))
    assert silent.unique().tolist() == pytest.approx([math.log(1e-4)])
    mono = 0.1 * noise(1, 800)
    both = torch.cat([2 * mono, torch.zeros(1, 800)])
    torch.testing.assert_close(transform.features(both), transform.features(mono))


def test_the_features_take_the_place_of_the_audio():
    assert set(LogMel(8000)(sample())) == {"features", "rate", "label"}
    made = LogMel(8000, keep=True, output="mel")(sample())
    assert set(made) == {"audio", "mel", "rate", "label"}


def test_another_rate_is_refused():
    with pytest.raises(DataError, match=r"set to 8000 Hz, but the audio is at 16000 Hz.*Resample"):
        LogMel(8000)(sample(rate=16000))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"window": 300}, r"window: window is 300 of at most n_fft=256"),
        ({"f_max": 5000}, r"f_max=5000 have to rise, up to half the rate, 4000"),
        ({"f_min": 4000}, r"f_max: .* f_min=4000 to f_max=4000 have to rise"),
    ],
)
def test_settings_of_features_that_do_not_go_together(arguments, match):
    with pytest.raises(ConfigError, match=match):
        LogMel(**{"rate": 8000, **arguments})


def test_standardize():
    features = 5 + 3 * noise(4, 500) + 10 * torch.arange(4)[:, None]
    made = Standardize()({"features": features})["features"]
    assert made.mean().abs() < 1e-5
    assert abs(made.std(correction=0) - 1) < 1e-5
    by_band = Standardize(by_band=True)({"features": features})["features"]
    assert by_band.mean(1).abs().max() < 1e-5
    torch.testing.assert_close(by_band.std(1, correction=0), torch.ones(4))
    assert Standardize()({"features": torch.full((4, 3), -7.0)})["features"].abs().max() == 0


def test_masks_are_bands_and_times():
    features = 1 + noise(20, 50).abs()
    torch.manual_seed(0)
    seen = set()
    for _ in range(200):
        made = MaskFeatures(bands=4, share=0.1)({"features": features})["features"]
        changed = made != features
        bands, times = changed.all(1).sum().item(), changed.all(0).sum().item()
        seen.add((bands, times))
        assert changed.sum() == 50 * bands + 20 * times - bands * times
        if changed.any():
            assert made[changed].unique().tolist() == pytest.approx([features.mean().item()])
    assert {bands for bands, _ in seen} == {0, 1, 2, 3, 4}
    assert {times for _, times in seen} == {0, 1, 2, 3, 4, 5}


def test_every_stretch_is_drawn_as_often_as_another():
    torch.manual_seed(0)
    draws = [MaskFeatures(bands=2, share=0.0)({"features": GRID})["features"] for _ in range(300)]
    changed = [tuple(((made != GRID).any(1)).nonzero()[:, 0].tolist()) for made in draws]
    assert set(changed) == {(), (0,), (1,), (2,), (0, 1), (1, 2)}
    assert 75 < changed.count(()) < 125, "no band as often as one or two"
    assert 35 < changed.count((0, 1)) < 65


# Waveforms


def test_a_random_crop_keeps_fields_in_step():
    torch.manual_seed(0)
    given = sample(800, target=torch.arange(800.0).expand(2, -1))
    given["audio"] = torch.arange(800.0)[None]
    crop = RandomCrop(0.05, fields=["audio", "target"])
    starts = set()
    for _ in range(300):
        made = crop(given)
        assert made["audio"].shape == (1, 400)
        assert torch.equal(made["audio"].expand(2, -1), made["target"])
        starts.add(int(made["audio"][0, 0]))
    assert min(starts) < 10
    assert 390 < max(starts) <= 400
    assert len(starts) > 150


def test_a_crop_leaves_what_is_shorter():
    given = sample(800)
    assert RandomCrop(0.1)(given) is given
    assert RandomCrop(1.0)(given) is given


def test_gain():
    torch.manual_seed(0)
    given = sample(target=noise(2, 800))
    decibels = []
    for _ in range(200):
        made = Gain([-6, 3], fields=["audio", "target"])(given)
        factor = (made["audio"][0, 0] / given["audio"][0, 0]).item()
        torch.testing.assert_close(made["audio"], given["audio"] * factor)
        torch.testing.assert_close(made["target"], given["target"] * factor)
        decibels.append(20 * math.log10(factor))
    louder = Gain([6, 6])({"audio": torch.ones(1, 1)})["audio"].item()
    assert louder == pytest.approx(10 ** (6 / 20))
    assert -6.001 < min(decibels) < -5.5
    assert 2.5 < max(decibels) < 3.001


def test_noise_has_the_ratio_that_was_asked_for():
    torch.manual_seed(0)
    given = sample(40000)
    for ratio in (0, 20):
        added = Noise([ratio, ratio])(given)["audio"] - given["audio"]
        measured = 10 * math.log10(given["audio"].square().mean() / added.square().mean())
        assert measured == pytest.approx(ratio, abs=0.2)
    assert Noise(p=0.0)(given) is given
    assert Noise(p=1.0)(given) is not given
    torch.manual_seed(3)
    made = Noise([10, 30])(given)["audio"]
    torch.manual_seed(3)
    ratio = 10 + 20 * torch.rand(2)[1].item()  # the first number decides whether
    deviation = math.sqrt(given["audio"].double().square().mean() / 10 ** (ratio / 10))
    assert float((made - given["audio"]).std()) == pytest.approx(deviation, rel=0.02)
    torch.manual_seed(3)
    assert torch.equal(Noise([10, 30])(given)["audio"], made)
    silent = {"audio": torch.zeros(1, 100), "rate": 8000}
    assert not Noise()(silent)["audio"].any()


CHAIN = [
    Resample(16000),
    RandomCrop(5.0),
    Gain(),
    Noise(),
    LogMel(16000),
    Standardize(),
    MaskFeatures(),
]


def chained(given, seed):
    torch.manual_seed(seed)
    for transform in CHAIN:
        given = transform(given)
    return given["features"]


def test_draws_follow_from_the_generator_and_inputs_stay_as_they_are():
    given = sample(44100 * 8, rate=44100)
    before = given["audio"].clone()
    first, again, other = (chained(given, seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(given["audio"], before)


def test_the_number_of_threads_changes_no_bit():
    """Else a batch would depend on whether a worker (one thread) or the main process made it."""
    given, threads = sample(44100 * 8, rate=44100, channels=2), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = chained(given, 0)
        torch.set_num_threads(4)
        together = chained(given, 0)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(alone, together)


# The network that takes the features


def test_audio_net_ignores_padding():
    """Each alone gives what it gives in a batch, so what it learns from is the same too."""
    torch.manual_seed(0)
    net = AudioNet(5, 3, width=8, dropout=0.0).train()
    features, lengths = noise(4, 5, 21), torch.tensor([21, 1, 8, 13])
    expected = torch.cat(
        [
            net(features[i : i + 1, :, :n], lengths[i : i + 1])
            for i, n in enumerate(lengths.tolist())
        ]
    )
    for row, length in enumerate(lengths.tolist()):
        features[row, :, length:] = torch.nan
    made = net(features, lengths)
    torch.testing.assert_close(made, expected)
    made.sum().backward()
    assert all(weight.grad.isfinite().all() for weight in net.parameters())


# What is wrong


@pytest.mark.parametrize("transform", CHAIN[:5], ids=lambda t: type(t).__name__)
def test_a_missing_field(transform):
    with pytest.raises(
        DataError,
        match=rf"{type(transform).__name__} needs the field 'audio'; the sample has image, rate",
    ):
        transform({"image": torch.ones(3, 2, 2), "rate": 8000})


def test_fields_out_of_step():
    crop = RandomCrop(0.01, fields=["audio", "target"])
    with pytest.raises(DataError, match="lengths differ: audio 800, target 700"):
        crop(sample(target=torch.ones(1, 700)))


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("gain.db=[3,-3]", "Value error, expected \\[least, largest\\], got"),
        ("noise.snr_db=[10]", "Value should have at least 2 items"),
        ("features.n_fft=1", "Input should be greater than or equal to 2, got 1"),
        ("features.hop=0", "Input should be greater than or equal to 1, got 0"),
        ("features.scale=bark", "Input should be 'htk' or 'slaney', got 'bark'"),
        ("crop.seconds=0", "Input should be greater than 0, got 0"),
        ("noise.p=2", "Input should be less than or equal to 1, got 2"),
        ("mask.bands=-1", "Input should be greater than or equal to 0, got -1"),
    ],
)
def test_settings_out_of_range_are_refused_with_their_key(setting, expected):
    words = ["dataset=spoken_digits", "dataset.root=no", f"transform.train.{setting}"]
    key = setting.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"transform\.train\.{key}: {expected}"):
        penstock.build_train_loader(penstock.compose(*words))


def test_bands_without_a_bin_are_refused():
    with pytest.raises(
        ConfigError,
        match=r"n_mels: 3 bands are too many for n_fft=2: its bins are 500 Hz apart, and none "
        r"lies in band 0 at 125 Hz\. Lower n_mels",
    ):
        LogMel(1000, n_fft=2, n_mels=3, f_min=0)
