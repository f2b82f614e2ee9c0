"""Headers of JPEG files, made marker by marker; `None` leaves a file to the dataset's reader."""

import pytest

from penstock.transforms.jpeg_header import jpeg_header, without_exif


def segment(marker, body=b""):
    return bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2, "big") + body


def frame(width=0x0123, height=0x0456, colours=3, bits=8, marker=0xC0):
    sides = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return segment(marker, bytes([bits]) + sides + bytes([colours]) + bytes(3 * colours))


def entry(order, tag, value, kind=3):
    parts = ((tag, 2), (kind, 2), (1, 4), (value, 2), (0, 2))
    return b"".join(number.to_bytes(width, order) for number, width in parts)


def exif(value, order="big", kind=3, others=0, start=8, count=None):
    """An APP1 segment with `others` entries ahead of the orientation, from byte `start` on."""
    mark = {"big": b"MM\0*", "little": b"II*\0"}[order]
    entries = [entry(order, 0x0100 + number, 2) for number in range(others)]
    entries.append(entry(order, 0x0112, value, kind))
    number = len(entries) if count is None else count
    head = mark + start.to_bytes(4, order) + bytes(start - 8) + number.to_bytes(2, order)
    return segment(0xE1, b"Exif\0\0" + head + b"".join(entries))


SCAN = segment(0xDA, bytes(6))
BARE = b"\xff\x01\xff\xd0\xff\xd7"
PLAIN, TURNED = (0x0123, 0x0456, 1), (0x0456, 0x0123, 6)


def file(*segments, start=b"\xff\xd8", end=b"\xff\xd9"):
    return b"".join([start, *segments, end])


@pytest.mark.parametrize(
    ("content", "header"),
    [
        (file(frame(), SCAN), PLAIN),
        (file(frame(marker=0xC1), SCAN), PLAIN),
        (file(frame(marker=0xC2), SCAN), PLAIN),
        (file(frame(colours=1), SCAN), PLAIN),
        (file(segment(0xC4, b"x"), segment(0xE0, bytes(300)), segment(0xFE), frame(), SCAN), PLAIN),
        (file(BARE, frame(), BARE, SCAN), PLAIN),
        (file(b"\xff\xff", frame(), b"\xff", SCAN), PLAIN),
        (file(b"\xff\x01" * 9999, frame(), SCAN), PLAIN),
        (file(segment(0xC0, b"\x08\x04\x56\x01\x23\x03"), SCAN), PLAIN),
        (file(segment(0xC0, b"\x08\x04\x56\x01\x23"), SCAN), None),
        (file(frame(), SCAN, start=b"\xff\xd9"), None),
        (file(frame(), SCAN, end=b"\xff\xd8"), None),
        (file(frame(), b"\0", SCAN), None),
        (file(frame(), b"\xff\xe0\0\x01", SCAN), None),
        (file(frame(), frame(), SCAN), None),
        (file(SCAN, frame(), SCAN), None),
        (file(frame()), None),
        (file(frame(width=0), SCAN), None),
        (file(frame(height=0), SCAN), None),
        (file(frame(bits=12), SCAN), None),
        (file(frame(colours=2), SCAN), None),
        (file(frame(colours=4), SCAN), None),
        *((file(segment(kind, b"x"), frame(), SCAN), None) for kind in (0xC3, 0xC5, 0xCF)),
        *((file(segment(kind), frame(), SCAN), None) for kind in (0xD8, 0xD9)),
        (b"", None),
    ],
)
def test_sizes_and_files_that_are_left_to_the_reader(content, header):
    assert jpeg_header(content) == header


@pytest.mark.parametrize(
    ("segments", "header"),
    [
        *(([exif(value)], (*PLAIN[:2], value)) for value in (1, 2, 3, 4)),
        *(([exif(value, "little")], (*TURNED[:2], value)) for value in (5, 6, 7, 8)),
        *(([exif(value)], PLAIN) for value in (0, 9)),
        ([exif(6, kind=4)], PLAIN),
        ([exif(6, others=3, start=30)], TURNED),
        ([exif(6, others=1, count=1)], PLAIN),
        ([exif(6, others=1, count=3)], TURNED),
        ([segment(0xE1, b"http: Exif\0\0"), exif(6)], TURNED),
        ([exif(6), exif(3)], TURNED),
        ([exif(3, others=1, count=9), exif(6)], (*PLAIN[:2], 3)),
        ([segment(0xE1, b"Exif\0\0MM\0*\0\0\0\x08\0\x01" + entry("big", 0x0112, 6)[:-1])], PLAIN),
        ([segment(0xE1, b"Exif\0\0MM*\0" + exif(6)[14:])], PLAIN),
    ],
)
def test_orientations(segments, header):
    assert jpeg_header(file(*segments, frame(), SCAN)) == header


@pytest.mark.parametrize("segments", [[exif(6)], [exif(6), exif(3, "little")]])
def test_exif_is_hidden(segments):
    other = segment(0xE1, b"http: Exif\0\0")
    content = without_exif(file(other, *segments, frame(), SCAN))
    assert jpeg_header(content) == PLAIN
    assert content.count(b"Exif") == 1
    assert without_exif(b"\x89PNG" + segments[0]) == b"\x89PNG" + segments[0]
