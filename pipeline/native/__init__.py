"""Code in C, for speed; never required.

`jpeg` (needs libjpeg-turbo's headers) and `pixels` are built with the package where there is a
compiler, for `transforms/native_images.py`. Where one was not built, importing it raises
ImportError, and its caller does the same work by Pillow or NumPy.
"""
