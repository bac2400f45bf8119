"""A 64-bit ARM Debian with Python 3.11 and this machine's versions of the packages, for QEMU.

python -m tests.kernels.arm_machine FOLDER: download both, on Debian 12 as root; then set BERTCORE_ARM=FOLDER.
"""

import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

DEBIAN = (
    "python3.11-minimal python3.11 libpython3.11-minimal libpython3.11-stdlib libc6 libgcc-s1 libstdc++6 zlib1g "
    "libexpat1 libffi8 libssl3 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 libreadline8 libtinfo6 libncursesw6 libcrypt1 "
    "libnsl2 libtirpc3 libgomp1"
)
PYTHON = ("numpy", "numba", "llvmlite", "ml_dtypes", "safetensors", "tokenizers")
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")


def main(folder: Path) -> None:
    packages, wheels = folder / "packages", folder / "wheels"
    for each in (packages, wheels, folder / "root"):
        each.mkdir(parents=True, exist_ok=True)
    subprocess.run(["dpkg", "--add-architecture", "arm64"], check=True)
    try:
        subprocess.run(["apt-get", "update"], check=True)
        subprocess.run(["apt-get", "download", *(f"{name}:arm64" for name in DEBIAN.split())], cwd=packages, check=True)
    finally:
        subprocess.run(["dpkg", "--remove-architecture", "arm64"], check=True)
    for package in packages.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, folder / "root"], check=True)
    options = ["--only-binary=:all:", "--no-deps", "--python-version=3.11", "--implementation=cp", f"--dest={wheels}"]
    options += [f"--platform={platform}_aarch64" for platform in PLATFORMS]
    wanted = [f"{name}=={version(name)}" for name in PYTHON]
    subprocess.run([sys.executable, "-m", "pip", "download", *options, *wanted], check=True)
    for wheel in wheels.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(folder / "site")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
