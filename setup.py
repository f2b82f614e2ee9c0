"""The part of the build that pyproject.toml cannot express: optional C extensions.

Without libjpeg-turbo's headers, or without a compiler, the package is built without
`penstock.native.jpeg`, and a line says so. PENSTOCK_NATIVE=0 leaves out all of `penstock.native`.
"""

import os
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

WITHOUT = (
    "penstock: built without {} ({}); JPEG files will be decoded in Python. "
    "For the faster way install libjpeg-turbo's headers (libjpeg-dev, libjpeg-turbo-devel, "
    "jpeg-turbo) and a C compiler, and build again"
)
FLAGS = ["-O3", "-std=c11", "-ffp-contract=off", "-fvisibility=hidden"]


class OptionalBuild(build_ext):
    """Builds the extensions that can be built."""

    def run(self):
        if os.environ.get("PENSTOCK_NATIVE") == "0":
            self.leave_out("penstock.native", "PENSTOCK_NATIVE=0")
            self.extensions = []
        super().run()

    def build_extension(self, ext):
        if self.compiler.compiler_type == "unix":
            ext.extra_compile_args = FLAGS + os.environ.get("PENSTOCK_CFLAGS", "").split()
        try:
            super().build_extension(ext)
        except Exception:  # whatever kind the compiler of this platform has
            self.leave_out(ext.name, "compiling it failed")

    def leave_out(self, what, why):
        print(WITHOUT.format(what, why), file=sys.stderr)


NATIVE = "pipeline/native/"
COMMON = ("rows.c", "resample.c", "resample_avx2.c")
HEADERS = ("rows.h", "region.h", "resample.h", "resample_avx2.h")
MATHS = ["m"] if os.name == "posix" else []


def extension(name, *sources, libraries=(), common=COMMON):
    return Extension(
        f"penstock.native.{name}",
        [NATIVE + source for source in (*sources, *common)],
        depends=[NATIVE + header for header in HEADERS],
        libraries=[*libraries, *MATHS],
        optional=True,
    )


setup(
    cmdclass={"build_ext": OptionalBuild},
    ext_modules=[
        extension("jpeg", "jpeg.c", "region.c", libraries=["jpeg"]),
        extension("pixels", "pixels.c"),
        extension("tokens", "tokens.c", common=()),
    ],
)
