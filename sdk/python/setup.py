"""What pyproject.toml cannot say: the C parts, where they came along.

A source distribution (scripts/python-wheel --sdist) has the C sources in native/. They are built here,
by the same scripts as in a checkout, and put into the package as a wheel has them. In a checkout where
`make build` was run, what that made is put in. Everywhere else the package is Python alone, and mode
"local" looks for an installed libpaddock.
"""

import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
NATIVE = HERE / "native"
INSIDE = HERE / "src" / "paddock" / "_lib"
CHECKOUT = HERE.parents[1]


def is_built_checkout():
    """Is this sdk/python of a checkout with its programs built?"""
    return (HERE == CHECKOUT / "sdk" / "python" and (CHECKOUT / "scripts" / "python-wheel").exists()
            and (CHECKOUT / "build" / "paddock").exists()
            and (CHECKOUT / "build-server" / "src" / "lib" / "libpaddock.so.1").exists())


def build_native():
    for kind, folder, target in (("release", "build", "paddock"),
                                 ("server", "build-server", "src/lib/libpaddock.so.1.0.0")):
        subprocess.run([str(NATIVE / "scripts" / "configure"), kind], cwd=NATIVE, check=True)
        subprocess.run(["ninja", "-C", folder, target], cwd=NATIVE, check=True)
    subprocess.run([str(NATIVE / "scripts" / "python-wheel"), "--parts", str(INSIDE)], cwd=NATIVE,
                   check=True)


class BuildWithLibrary(build_py):
    def run(self):
        if NATIVE.is_dir():
            shutil.rmtree(INSIDE, ignore_errors=True)
            build_native()
        super().run()
        if is_built_checkout():
            # Beside the sources they would be older than the next build, and unnoticed.
            parts = Path(self.build_lib).resolve() / "paddock" / "_lib"
            shutil.rmtree(parts, ignore_errors=True)
            subprocess.run([str(CHECKOUT / "scripts" / "python-wheel"), "--parts", str(parts)],
                           cwd=CHECKOUT, check=True)


class MaybeNative(Distribution):
    def has_ext_modules(self):
        return NATIVE.is_dir() or is_built_checkout()


setup(cmdclass={"build_py": BuildWithLibrary}, distclass=MaybeNative)
