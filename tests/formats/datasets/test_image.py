"""Reading one image file: what every reader gives, and what none of them accepts."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from penstock.datasets.reading.image import check_reader, decode_image, encoded_image, read_image
from penstock.errors import DataError
from penstock.files.limits import Limits
from penstock.loading.encoded import notices
from penstock.transforms.image_decoding import DecodeResize

READERS = ["torchvision", "pillow", "skimage"]
SIDE, OTHER = 24, 16
pytestmark = pytest.mark.parametrize("reader", READERS)


def blocks():
    """Four even quarters, so that lossy formats keep the middle of each: uint8 [24, 16, 3]."""
    pixels = np.zeros((SIDE, OTHER, 3), np.uint8)
    pixels[:12, :8], pixels[:12, 8:], pixels[12:, :8] = (220, 30, 30), (30, 200, 30), (30, 30, 210)
    return pixels


def saved(path, mode="RGB", **options):
    image = Image.fromarray(blocks())
    (image if mode == "RGB" else image.convert(mode)).save(path, **options)
    return str(path)


def middles(image):
    """The colours of the four quarters."""
    height, width = image.shape[-2:]
    ys, xs = (height // 4, 3 * height // 4), (width // 4, 3 * width // 4)
    return torch.stack([image[:, y, x] for y in ys for x in xs]).int()


@pytest.mark.parametrize("ending", ["jpg", "png", "webp"])
def test_colours_and_shape(tmp_path, reader, ending):
    image = read_image(saved(tmp_path / f"a.{ending}"), reader)
    assert image.shape == (3, SIDE, OTHER)
    assert image.dtype == torch.uint8
    expected = middles(torch.from_numpy(blocks()).permute(2, 0, 1))
    assert (middles(image) - expected).abs().max() < 40  # chroma is stored at half the size


@pytest.mark.parametrize(
    ("mode", "ending"),
    [
        ("L", "jpg"),
        ("L", "png"),
        ("CMYK", "jpg"),
        ("RGBA", "png"),
        ("LA", "png"),
        ("P", "png"),
        ("1", "png"),
        ("RGBA", "webp"),
    ],
)
def test_other_modes_become_rgb(tmp_path, reader, mode, ending):
    image = read_image(saved(tmp_path / f"a.{ending}", mode), reader)
    assert image.shape == (3, SIDE, OTHER)
    expected = np.asarray(Image.fromarray(blocks()).convert(mode).convert("RGB"))
    difference = middles(image) - middles(torch.from_numpy(expected.copy()).permute(2, 0, 1))
    assert difference.abs().max() < 40


def test_sixteen_bits_become_eight(tmp_path, reader):
    grey = np.arange(SIDE * OTHER, dtype=np.uint16).reshape(SIDE, OTHER) * 170
    Image.fromarray(grey).save(tmp_path / "a.png")
    image = read_image(str(tmp_path / "a.png"), reader)
    assert image.dtype == torch.uint8
    assert torch.equal(image, torch.from_numpy((grey >> 8).astype(np.uint8)).expand(3, -1, -1))


def png_of_16_bits(pixels):
    """[H, W, 1 to 4] as PNG, which Pillow can't write."""

    def chunk(kind, content):
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    height, width, channels = pixels.shape
    lines = b"".join(b"\0" + line.tobytes() for line in pixels.astype(">u2"))
    header = struct.pack(">IIBBBBB", width, height, 16, (0, 4, 2, 6)[channels - 1], 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def tiff(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "TIFF")
    return file.getvalue()


def test_twelve_bits_in_files_of_sixteen_keep_their_range_by_a_key(reader):
    grey = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    content = png_of_16_bits(grey[..., None])
    notices.clear()
    assert len(decode_image(content, "a", reader)[0].unique()) == 16
    assert "brightest pixel is 4095, so 16 of 256 grey levels are left" in notices["levels"]
    assert notices.pop("levels").endswith("set limits.levels=4096")
    image = decode_image(content, "a", reader, Limits(levels=4096))
    assert torch.equal(image, torch.from_numpy((grey >> 4).astype(np.uint8)).expand(3, -1, -1))
    assert not notices
    with pytest.raises(DataError, match=r"0 to 4095, and limits\.levels=1024"):
        decode_image(content, "a", reader, Limits(levels=1024))


@pytest.mark.parametrize("channels", [3, 4])
def test_colours_of_sixteen_bits_keep_the_upper_eight(reader, channels):
    values = np.random.default_rng(0).integers(0, 65536, (8, 8, channels), dtype=np.uint16)
    image = decode_image(png_of_16_bits(values), "a", reader)
    assert np.array_equal(image.permute(1, 2, 0), values[..., :3] >> 8)
    notices.clear()
    decode_image(png_of_16_bits(values // 16), "a", reader)
    assert notices.pop("levels").startswith("image 'a' has 16 bits a colour")
    with pytest.raises(DataError, match=r"'a': .* limits\.levels=4096 comes too late"):
        decode_image(png_of_16_bits(values), "a", reader, Limits(levels=4096))


@pytest.mark.parametrize(
    ("pixels", "said"),
    [
        (np.full((4, 4), -5, np.int32), "int32 from -5 to -5"),
        (np.full((4, 4), 70_000, np.int32), "from 70000 to 70000, and limits.levels=65536"),
        (np.full((4, 4), 0.5, np.float32), "float32 from 0.5 to 0.5"),
    ],
)
def test_numbers_without_a_known_range_are_refused(reader, pixels, said):
    with pytest.raises(DataError, match=said):
        decode_image(tiff(pixels), "a", reader)


@pytest.mark.parametrize("ending", ["jpg", "png", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path, reader, ending, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = read_image(saved(tmp_path / f"a.{ending}", exif=exif), reader)
    turns = [
        None,
        Image.Transpose.FLIP_LEFT_RIGHT,
        Image.Transpose.ROTATE_180,
        Image.Transpose.FLIP_TOP_BOTTOM,
        Image.Transpose.TRANSPOSE,
        Image.Transpose.ROTATE_270,
        Image.Transpose.TRANSVERSE,
        Image.Transpose.ROTATE_90,
    ]
    turn = turns[orientation - 1]
    upright = Image.fromarray(blocks())
    upright = upright if turn is None else upright.transpose(turn)
    expected = torch.from_numpy(np.array(upright)).permute(2, 0, 1)
    assert image.shape == expected.shape
    assert (middles(image) - middles(expected)).abs().max() < 40


def test_an_animation_gives_its_first_frame(tmp_path, reader):
    frames = [Image.new("RGB", (8, 6), colour) for colour in ("white", "black")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    image = read_image(str(tmp_path / "a.gif"), reader)
    assert image.shape == (3, 6, 8)
    assert (image == 255).all()


def test_hidden_colours_of_transparent_pixels_are_told(tmp_path, reader):
    image = Image.new("RGBA", (8, 6), (200, 100, 50, 255))
    image.save(tmp_path / "opaque.png")
    image.putpixel((0, 0), (1, 2, 3, 0))
    image.save(tmp_path / "a.png")
    notices.clear()
    read_image(str(tmp_path / "opaque.png"), reader)
    assert not notices
    assert read_image(str(tmp_path / "a.png"), reader)[:, 0, 0].tolist() == [1, 2, 3]
    assert "has transparent pixels" in notices.pop("alpha")


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "progressive.jpg"])
@pytest.mark.parametrize("left", [1, 0.98, 0.6])
def test_a_file_cut_short_is_refused(tmp_path, reader, ending, left):
    random = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    whole = io.BytesIO()
    kind = {"jpg": "jpeg"}.get(ending.split(".")[-1], ending)
    Image.fromarray(random).save(whole, kind, progressive="." in ending)
    path = tmp_path / f"a.{ending}"
    path.write_bytes(
        whole.getvalue()[: int(len(whole.getvalue()) * left) - (2 if "jpg" in ending else 30)]
    )
    # Without the path of torch's own code.
    with pytest.raises(DataError, match=rf"a\.{ending}' is truncated or damaged [^/]*Replace it"):
        read_image(str(path), reader)


def test_a_damaged_png_is_refused(tmp_path, reader):
    random = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    path = tmp_path / "a.png"
    Image.fromarray(random).save(path)
    content = bytearray(path.read_bytes())
    content[3000:5000] = bytes(2000)  # torchvision's decoder alone crashes the process on this
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.png' is truncated or damaged"):
        read_image(str(path), reader)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"<!DOCTYPE html><html></html>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "Git LFS pointer"),
        (b"hello, I am no image", "text that starts with 'hello"),
    ],
)
def test_what_is_no_image_is_named(tmp_path, reader, content, said):
    path = tmp_path / "a.jpg"
    path.write_bytes(content)
    with pytest.raises(
        DataError, match=rf"a\.jpg' is not an image: it is .*{said.split('it is ')[-1]}"
    ):
        read_image(str(path), reader)


def test_a_missing_file_and_a_folder(tmp_path, reader):
    with pytest.raises(DataError, match=r"none\.jpg' cannot be read: No such file"):
        read_image(str(tmp_path / "none.jpg"), reader)
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read_image(str(tmp_path), reader)


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tif"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 7, 8])
def test_pixels_as_they_are_stored(tmp_path, reader, ending, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path / f"a.{ending}", exif=exif)
    stored = check_reader(reader, "ignore")
    plain = read_image(saved(tmp_path / f"plain.{ending}"), reader)
    assert torch.equal(read_image(path, stored), plain)
    assert torch.equal(encoded_image(path, stored).decode(), plain)
    if ending == "jpg":
        for decoder in ("auto", "pure"):
            step = DecodeResize([SIDE, OTHER], decoder=decoder)
            assert torch.equal(step({"image": encoded_image(path, stored)})["image"], plain)
    if ending == "tif":  # Pillow turns these by itself
        upright = (OTHER, SIDE) if orientation > 4 else (SIDE, OTHER)
        assert read_image(path, reader).shape[1:] == upright


def test_the_limit_of_pixels_is_inclusive_and_can_be_raised(tmp_path, reader):
    for ending in ("jpg", "png"):
        path = saved(tmp_path / f"a.{ending}")
        pixels = read_image(path, reader)[0].numel()
        assert read_image(path, reader, limits=Limits(pixels=pixels))[0].numel() == pixels
        with pytest.raises(DataError, match=rf"claims .* pixels.*limits\.pixels={pixels - 1}"):
            read_image(path, reader, limits=Limits(pixels=pixels - 1))
