"""Pillow starts Ghostscript for a picture in PostScript, which is a program; here it does not.

Datasets of torchvision open whatever Pillow opens, and a file called `.jpg` may hold PostScript.
"""


def refuse() -> None:
    """Let Pillow start no program in this process, from now on; 5 ms the first time."""
    from PIL import EpsImagePlugin

    EpsImagePlugin.gs_binary = False
