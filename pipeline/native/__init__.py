"""What is written in C, for speed; never required.

`jpeg` is built with the package where a compiler and libjpeg-turbo's headers are there. Where it
is not, importing `pipeline.native.jpeg` raises ImportError, and `pipeline.image_decoding` does the
same in Python.
"""
