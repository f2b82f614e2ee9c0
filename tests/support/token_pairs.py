"""Pairs of token files, written byte by byte."""

import struct

CODES = {"u1": 1, "i1": 2, "i2": 3, "i4": 4, "i8": 5, "u2": 8}


DOCUMENTS = [[5, 1, 2], [3], [9, 9, 9, 9], [], [7, 8], [1]]  # sequences


STARTS = [0, 2, 2, 5, 6]  # sequences at which documents begin


def write_pair(folder, name="web", sequences=DOCUMENTS, documents=STARTS, kind="u2", modes=False):
    """A `.bin/.idx` pair from the documented layout, number by number."""
    content, index, at = b"", b"MMIDIDX\0\0" + struct.pack("<QB", 1, CODES[kind]), 0
    index += struct.pack("<Q", len(sequences)) + struct.pack("<Q", len(documents))
    pointers = b""
    for one in sequences:
        index += struct.pack("<i", len(one))
        pointers += struct.pack("<q", at)
        for token in one:
            content += int(token).to_bytes(int(kind[1]), "little", signed=kind[0] == "i")
        at = len(content)
    index += pointers + b"".join(struct.pack("<q", one) for one in documents)
    if modes:
        index += bytes(len(sequences))
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.bin").write_bytes(content)
    (folder / f"{name}.idx").write_bytes(index)
    return folder
