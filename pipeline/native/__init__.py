"""Code in C, for speed; never required.

`jpeg` is built with the package where a compiler and libjpeg-turbo's headers are there. Where it
is not, importing `native/jpeg.py` raises ImportError, and `transforms/image_decoding.py` does the
same in Python.
"""
