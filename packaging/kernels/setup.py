"""Packaging of bertcore-kernels: compiled kernels for one Python, one Numba and one architecture, all of its levels.

`python -m build`, then `PIP_FIND_LINKS=dist python -m build --wheel --outdir dist packaging/kernels`: the kernels are
those of the bertcore that is installed while building. BERTCORE_KERNEL_LEVELS names fewer levels, with commas.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import llvmlite
import numba
from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

import bertcore
from bertcore.kernels._numba.compile import isa, shipped

ABOUT = "Compiled kernels of bertcore, which it finds by itself: the first answer takes a second instead of 20."
ALL_LEVELS = [level.name for level in isa.LEVELS if level.requires and level.tiles != isa.EMULATED]
LEVELS = os.environ.get("BERTCORE_KERNEL_LEVELS", ",".join(ALL_LEVELS)).split(",")


def compile_level(level: str, target: Path) -> None:
    """Compile the kernels of a level in a process of its own, and move what the cache then holds to `target`."""
    script = Path(__file__).with_name("compile_kernels.py")
    with tempfile.TemporaryDirectory() as cache:
        subprocess.run([sys.executable, script, level, cache], check=True)
        (compiled,) = Path(cache).iterdir()
        shutil.copytree(compiled, target)


class CompiledKernels(build_py):
    """Make the package by compiling."""

    def run(self):
        folder = Path(self.build_lib) / "bertcore_kernels"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(f'"""{ABOUT}"""\n')
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda level: compile_level(level, folder / level), LEVELS))
        shipped.write_list(folder)


class Wheel(bdist_wheel):
    """A wheel for the platforms that the installed Numba is for, which is all that the kernels link to."""

    def get_tag(self):
        described = importlib.metadata.distribution("numba").read_text("WHEEL") or ""
        tags = [line.removeprefix("Tag: ").split("-") for line in described.splitlines() if line.startswith("Tag: ")]
        if not tags:
            return super().get_tag()  # a Numba that no wheel brought
        return *tags[0][:2], ".".join(platform for _, _, platform in tags)


class PlatformDistribution(Distribution):
    """A distribution that is not pure Python."""

    def has_ext_modules(self):
        return True


setup(
    name="bertcore-kernels",
    version=bertcore.__version__,
    description=ABOUT,
    long_description=f"{ABOUT} Levels: {', '.join(LEVELS)}. Install it by `pip install bertcore[kernels]`.",
    long_description_content_type="text/markdown",
    license_expression="Apache-2.0",
    author="The bertcore maintainers",
    python_requires=f"=={sys.version_info.major}.{sys.version_info.minor}.*",
    packages=["bertcore_kernels"],
    package_dir={"bertcore_kernels": "."},  # which the compilation fills
    install_requires=[
        f"bertcore=={bertcore.__version__}",
        f"numba=={numba.__version__}",
        f"llvmlite=={llvmlite.__version__}",
    ],
    cmdclass={"build_py": CompiledKernels, "bdist_wheel": Wheel},
    distclass=PlatformDistribution,
)
