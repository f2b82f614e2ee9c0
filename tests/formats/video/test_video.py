"""Clips of videos: which frames they have, what is refused, and transforms of all frames alike."""

import csv
import io
import subprocess
import sys

import numpy as np
import pytest
import torch
from torchvision import tv_tensors

import penstock
from penstock import build_train_loader, command
from penstock.addons.video.clips import DecodeClip
from penstock.addons.video.drawn_motions import DrawnMotions, write_video
from penstock.addons.video.models import SmallVideoNet, TorchvisionVideo
from penstock.build.training import TrainingParts
from penstock.datasets.image_folder import ImageFolder
from penstock.errors import ConfigError, DataError
from penstock.order.keys import begin_sample

av = pytest.importorskip("av")
KINDS = (
    ("a.mp4", "mpeg4"),
    ("b.mp4", "libx264"),  # frames are stored in another order than they are shown in
    ("c.webm", "libvpx-vp9"),
    ("d.avi", "libx264"),  # the same in a container that has no times
    ("f.ts", "libx264"),
    ("g.mpg", "mpeg2video"),
    ("h.webm", "libvpx"),  # has packets that are not shown
)


def numbered(path, codec="mpeg4", frames=48, size=(64, 48), key_frames=12):
    """A video whose frame `n` has six bars, black or white as the bits of `n`."""
    bars = np.minimum(np.arange(size[0]) * 6 // size[0], 5)
    bits = (np.arange(frames)[:, None] >> bars) % 2 * 255
    shape = (frames, size[1], size[0], 3)
    pixels = np.broadcast_to(bits[:, None, :, None], shape).astype(np.uint8)
    write_video(path, pixels, key_frames, codec)
    return path


def numbers(clip):
    """The numbers of the frames of a clip, uint8 [T, H, W, 3] or [T, 3, H, W]."""
    frames = np.asarray(clip)
    rows = (frames[..., 0] if frames.shape[-1] == 3 else frames[:, 0])[:, 8]
    middles = (np.arange(6) * 2 + 1) * rows.shape[1] // 12
    return ((rows[:, middles] > 127) @ (1 << np.arange(6))).tolist()


def clip(path, frames=4, stride=5, share=None, size=None):
    return DecodeClip(frames, stride, size).read(path.read_bytes(), str(path), share)


@pytest.mark.parametrize(("name", "codec"), KINDS)
def test_frames_of_a_clip_are_those_that_are_asked_for(tmp_path, name, codec):
    path = numbered(tmp_path / name, codec)
    for first in (0, 13, 24, 32):  # of 33 frames that can begin a clip
        made = numbers(clip(path, share=(first + 0.5) / 33))
        assert made == [first + 5 * place for place in range(4)]
    assert numbers(clip(path)) == [16, 21, 26, 31]  # the middle
    assert numbers(clip(path, frames=3, stride=40)) == [0, 40, 47]  # shorter: the last again
    assert clip(path).shape == (4, 48, 64, 3)


OPEN = {"x264-params": "open-gop=1:bframes=5:b-pyramid=normal:b-adapt=0:scenecut=0"}
SHOWN = {
    "mpeg4.avi": ("mpeg4", {}, "whole"),
    "mpeg2.avi": ("mpeg2video", {}, "whole"),
    "h264.avi": ("libx264", OPEN, "whole"),
    "no_index.avi": ("mpeg4", {}, "no index"),
    "joined.mpg": ("mpeg2video", {}, "twice"),
    "open.mkv": ("libx264", OPEN, "from a key frame"),
    "refresh.mp4": ("libx264", {"x264-params": "intra-refresh=1:keyint=12"}, "whole"),
    "trimmed.mp4": ("libx264", {}, "edit list"),
    "trimmed.mov": ("libx264", OPEN, "edit list"),
    "late.mp4": ("libx264", {}, "late edit list"),
    "middle.mkv": ("libx264", OPEN, "from the middle"),
    "middle.ts": ("libx264", {}, "from the middle"),
}


def shown_kind(path, codec, options, kind):
    """A video of frames with B-frames, numbered as those of `numbered`, and cut as `kind` says."""
    whole = path if kind in ("whole", "no index", "twice") else path.with_suffix(".whole.mp4")
    with av.open(str(whole), "w") as container:
        stream = container.add_stream(codec, rate=10, options=options)
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = 96, 64, "yuv420p", 12
        stream.codec_context.max_b_frames, stream.bit_rate = 2, 2_000_000
        for number in range(60):
            row = np.repeat((number >> np.arange(6)) % 2 * 255, 16).astype(np.uint8)
            pixels = np.broadcast_to(row[None, :, None], (64, 96, 3))
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels))
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    content = bytearray(whole.read_bytes())
    if kind == "no index":
        content = content[: content.rindex(b"idx1")]
    if kind == "late edit list":  # which leaves out packets, too
        at = content.index(b"elst") + 12
        content[at : at + 8] = (1000).to_bytes(4, "big") + (48 * 1024).to_bytes(4, "big")
    if kind in ("no index", "twice", "late edit list"):
        path.write_bytes(content * 2 if kind == "twice" else content)
    if whole == path or path.exists():
        return
    edits = {"use_editlist": "1", "avoid_negative_ts": "disabled"} if kind == "edit list" else {}
    with av.open(str(whole)) as source, av.open(str(path), "w", options=edits) as target:
        stream, begin = target.add_stream_from_template(source.streams.video[0]), None
        for number, packet in enumerate(source.demux(video=0)):
            start = number > (27 if kind == "from the middle" else 12)
            if packet.size and (begin or (start and (packet.is_keyframe or "mid" in kind))):
                begin = begin or packet.pts + (5 * 1024 if edits else 0)
                packet.pts, packet.dts = packet.pts - begin, packet.dts - begin
                packet.stream = stream
                target.mux(packet)


@pytest.mark.parametrize("name", SHOWN)
def test_frame_n_is_the_nth_that_a_player_shows(tmp_path, name):
    shown_kind(tmp_path / name, *SHOWN[name])
    with av.open(str(tmp_path / name)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    shown = numbers(np.stack(frames))
    assert len(shown) > 5
    begins = len(shown) - 3
    for first in range(begins):
        made = clip(tmp_path / name, 4, 1, (first + 0.5) / begins)
        assert numbers(made) == shown[first : first + 4]


def test_frames_are_reduced_and_upright(tmp_path):
    path = numbered(tmp_path / "a.mp4", size=(64, 48))
    assert clip(path, size=24).shape == (4, 24, 32, 3)
    assert clip(path, size=100).shape == (4, 48, 64, 3)
    top = np.zeros((48, 64, 3), np.uint8)
    top[:8, 20:] = 255
    container = av.open(str(tmp_path / "turned.mp4"), "w")
    stream = container.add_stream("mpeg4", rate=24)
    stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
    stream.set_display_rotation(90)  # counterclockwise, so that the top is left
    container.mux(stream.encode(av.VideoFrame.from_ndarray(top)))
    container.mux(stream.encode())
    container.close()
    turned = clip(tmp_path / "turned.mp4", frames=1)[0]
    assert turned.shape == (64, 48, 3)
    assert turned[:40, :6].mean() > 230
    assert turned[:, 20:].mean() < 25


def hostile(folder):
    """Files, and what is said of them."""
    whole = numbered(folder / "whole.mp4").read_bytes()
    wav = io.BytesIO()
    with av.open(wav, "w", format="avi") as container:
        stream = container.add_stream("pcm_s16le", rate=8000, layout="mono")
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), "s16", "mono")
        sound.sample_rate = 8000
        container.mux(stream.encode(sound))
        container.mux(stream.encode())
    first = numbered(folder / "1.ts", "libx264").read_bytes()
    second = numbered(folder / "2.ts", "libx264", size=(128, 96)).read_bytes()
    front = folder / "whole_front.mp4"  # with its index in front
    with (
        av.open(io.BytesIO(whole)) as source,
        av.open(str(front), "w", options={"movflags": "faststart"}) as target,
    ):
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                target.mux(packet)
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile:{folder}/1.ts\n#EXT-X-ENDLIST\n"
    yield "empty.mp4", b"", "truncated, damaged"
    yield "text.mp4", b"hello " * 100, "is truncated, damaged or of a kind that is not read"
    yield "playlist.mp4", playlist.encode(), "of a kind that is not read"
    yield "concat.mp4", f"ffconcat version 1.0\nfile {folder}/1.ts\n".encode(), "not read"
    yield "cut.mp4", whole[: len(whole) // 2], "truncated|no stream of pictures"
    yield (
        "front.mp4",
        front.read_bytes()[:-3000],
        r"its header lists 48 frames, and \d+ are",
    )
    yield "sound.avi", wav.getvalue(), "no stream of pictures that is read"
    inside = bytearray(whole)
    at = inside.index(b"mdat") + 200
    inside[at : at + 2500] = np.random.default_rng(0).bytes(2500)
    yield "inside.mp4", bytes(inside), "truncated, damaged"
    yield "sizes.ts", first + second, "same shape"


def test_what_cannot_be_read_is_named(tmp_path):
    for name, content, said in hostile(tmp_path):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=f"video '.*{name}'.*({said})"):
            clip(tmp_path / name, frames=16, stride=5)


def folder_of(root, classes=("left", "right"), count=5, frames=20):
    for name in classes:
        (root / name).mkdir(parents=True)
        for number in range(count):
            numbered(root / name / f"{number}.mp4", frames=frames, size=(32, 32))
    return root


def test_beginnings_are_drawn_by_the_key_in_training_and_the_middle_elsewhere(tmp_path):
    data = ImageFolder(str(folder_of(tmp_path / "data", frames=40)), extensions=[".mp4"], lazy=True)
    assert (len(data), data.classes) == (8, ["left", "right"])
    drawn = []
    for key in (1, 2, 3, 4, 1):
        begin_sample(key)
        drawn.append(numbers(DecodeClip(4)(data[0])["video"]))
    begin_sample(None)
    assert drawn[0] == drawn[4]
    assert len(set(map(tuple, drawn))) > 2
    middle = DecodeClip(4, random=False)(data[5])
    assert (numbers(middle["video"]), middle["label"]) == ([16, 18, 20, 22], 1)
    assert isinstance(middle["video"], tv_tensors.Video)


def test_a_table_names_videos_and_new_ones_have_a_row_each(tmp_path, capfd):
    folder_of(tmp_path / "videos")
    rows = [f"{name}/{n}.mp4,{name},{n / 2}" for name in ("left", "right") for n in range(5)]
    (tmp_path / "clips.csv").write_text("\n".join(["path,way,speed", *rows]) + "\n")
    words = [
        "dataset=clip_table", f"dataset.root={tmp_path}", "dataset.table=clips.csv",
        "dataset.images=videos", "dataset.label=way", "dataset.numbers=[speed]",
        "transform.train.clip.frames=4", "transform.train.crop.size=[32,32]", "batch.size=4",
        "loader=debug",
    ]  # fmt: skip
    with build_train_loader(penstock.compose(*words)) as loader:
        batch = next(iter(loader))
    assert set(batch) == {"video", "label", "numbers"}
    assert batch["video"].shape == (4, 4, 3, 32, 32)
    run = tmp_path / "run"
    small = [f"run_dir={run}", "trainer.max_steps=1", "trainer.report=false", "model.width=4"]
    assert command.main([*words, *small]) == 0
    out = tmp_path / "new.csv"
    asked = [f"run={run}", f"dataset.root={tmp_path / 'videos'}", f"out={out}", "loader=debug"]
    assert command.main(["task=predict", *asked]) == 0, capfd.readouterr().err
    with out.open() as file:
        read = [*csv.DictReader(file)]
    assert len(read) == 10
    assert {row["predicted"] for row in read} <= {"left", "right"}


def test_models_give_a_logit_a_class():
    clips = torch.rand(2, 8, 3, 32, 32)
    assert SmallVideoNet(5)(clips).shape == (2, 5)
    assert TorchvisionVideo(5)(clips).shape == (2, 5)
    for arguments, said in (
        ("model.name=r3d_19", "did you mean 'r3d_18'"),
        ("model.weights=NONE", "r3d_18 has no weights"),
    ):
        words = ["experiment=video", "dataset.count=6", "model=torchvision_video", arguments]
        with pytest.raises(ConfigError, match=said):
            TrainingParts(penstock.compose(*words)).model()


def test_drawn_motions_are_the_same_again(tmp_path):
    made = [DrawnMotions(str(tmp_path / name), count=6) for name in ("a", "b")]
    assert made[0].classes == ["circling", "growing", "shrinking", "still", "straight", "turning"]
    assert made[0].fingerprint == made[1].fingerprint


def test_one_clear_message_where_pyav_is_missing(tmp_path):
    program = "import sys; sys.modules['av'] = None; from penstock import command; "
    program += f"command.main(['dataset=video_clips', 'dataset.root={tmp_path}'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "clips.DecodeClip: import of av halted" in done.stderr
    assert "pip install av" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_typo_a_wrong_path_and_another_class_are_said(tmp_path, capsys):
    root = folder_of(tmp_path / "data", count=2, frames=8)
    common = ["task=digest", "dataset=video_clips", "loader.num_workers=0"]
    for words, said in (
        ([f"dataset.root={tmp_path}/no"], "is missing. Set dataset.root to the folder that holds"),
        ([f"dataset.root={root}", "dataset.frames=3"], "set transform.train.clip.frames"),
        ([f"dataset.root={root}", "transform.train.clip.frames=0"], "clip.frames"),
        ([f"dataset.root={root / 'left'}"], "ImageFolder needs one for each class"),
    ):
        assert command.main([*common, *words]) in (2, 3)
        assert said in " ".join(capsys.readouterr().err.split())
    (root / "left" / "1.mp4").write_bytes(b"")
    (root / "left" / "0.mp4").write_bytes(b"")
    assert command.main([*common, f"dataset.root={root}"]) != 0
    error = capsys.readouterr().err
    assert ".mp4' is truncated, damaged" in error
    assert "Traceback" not in error
