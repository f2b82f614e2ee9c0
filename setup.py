"""The one part of the build that pyproject.toml cannot say: C that may be left out.

Without libjpeg-turbo's headers, or without a compiler, the package is built without
`pipeline.native.jpeg`, and says so in a line. PENSTOCK_NATIVE=0 leaves it out on purpose.
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
    """Builds what can be built."""

    def run(self):
        if os.environ.get("PENSTOCK_NATIVE") == "0":
            self.leave_out("pipeline.native", "PENSTOCK_NATIVE=0")
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
setup(
    cmdclass={"build_ext": OptionalBuild},
    ext_modules=[
        Extension(
            "pipeline.native.jpeg",
            [NATIVE + name for name in ("jpeg.c", "region.c", "resample.c")],
            depends=[NATIVE + name for name in ("region.h", "resample.h")],
            libraries=["jpeg"] + (["m"] if os.name == "posix" else []),
            optional=True,
        ),
        Extension(
            "pipeline.native.pixels",
            [NATIVE + name for name in ("pixels.c", "resample.c")],
            depends=[NATIVE + "resample.h"],
            libraries=["m"] if os.name == "posix" else [],
            optional=True,
        ),
    ],
)
