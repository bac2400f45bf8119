"""Wheels and installations run without the repository; type checkers follow them."""

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import bertcore
from bertcore.kernels._numba import LEVEL
from tests.refusals import refuses

REPOSITORY = Path(__file__).parent.parent
BUILT_OF = (
    "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE", "src", "bertcore",
    "kernels",
)  # fmt: skip
SITE_PACKAGES = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]

USE = """
import sys
from pathlib import Path

import numpy as np

import bertcore
from bertcore import AutoModel, kernels, use_backend

assert Path(bertcore.__file__).is_relative_to(sys.prefix) and Path(kernels.__file__).is_relative_to(sys.prefix)
x = np.linspace(-3, 3, 39, dtype="float32").reshape(3, 13)
for operation in (kernels.gelu, kernels.softmax):
    assert np.allclose(operation(x, backend="numba"), operation(x, backend="numpy"), atol=1e-6)
config = {"model_type": "bert", "vocab_size": 61, "hidden_size": 39, "num_hidden_layers": 2, "num_attention_heads": 3,
          "intermediate_size": 53, "max_position_embeddings": 24}
with use_backend("numpy"):
    model = AutoModel.from_config(config)
    before = model([[5, 7, 11]]).last_hidden_state
    model.save_pretrained("saved")
    assert np.array_equal(before, AutoModel.from_pretrained("saved")([[5, 7, 11]]).last_hidden_state)
print(before.shape)
"""


def run(*command, folder, **options):
    """Run a command that knows nothing of the repository; its output."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | options
    result = subprocess.run(list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def built(kind, source, folder):
    """Let setuptools build an "sdist" or a "wheel" of `source` in `folder`; return its path."""
    folder.mkdir()
    build = "import sys, setuptools.build_meta as b; print(getattr(b, f'build_{sys.argv[1]}')(sys.argv[2]))"
    name = run(sys.executable, "-c", build, kind, folder, folder=source).split()[-1]
    return folder / name


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the parts of the repository that an installation is built from."""
    source = tmp_path_factory.mktemp("installation") / "source"
    source.mkdir()
    for name in BUILT_OF:
        if (REPOSITORY / name).is_dir():
            shutil.copytree(
                REPOSITORY / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(REPOSITORY / name, source)
    (source / "tests").mkdir()
    (source / "tests" / "test_something.py").touch()  # which must not be taken along
    return source


@pytest.fixture(scope="module")
def wheel(source):
    """The wheel of the sdist of the repository."""
    folder = source.parent
    sdist = built("sdist", source, folder / "sdist")
    shutil.unpack_archive(sdist, folder / "unpacked", filter="data")
    assert not list((folder / "unpacked").glob("*/tests")) and list((folder / "unpacked").glob("*/CHANGELOG.md"))
    return built("wheel", folder / "unpacked" / sdist.name.removesuffix(".tar.gz"), folder / "wheel")


def environment(folder, *options):
    """Make a virtual environment with this one's packages and install by pip with `options`; return bin and site."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=folder).strip())
    (site / "packages_of_the_tests.pth").write_text("\n".join(SITE_PACKAGES))
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet")
    run(*pip, "--ignore-installed", *options, folder=folder)
    return folder / "bin", site


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """bin and site of a virtual environment with the wheel."""
    return environment(tmp_path_factory.mktemp("clean") / "venv", wheel)


FIRST_ANSWER = """
from bertcore import AutoModel
from bertcore.kernels._numba.compile.cache import compilations

with compilations() as compiled:
    for dtype in ("float32", "bfloat16", "int8"):
        AutoModel.from_config("mini-bert", dtype=dtype).encode_packed([[101, 2023, 102], [101]])
print(len(compiled))
"""


@pytest.mark.slow
def test_an_installation_with_kernels_compiles_nothing(source, wheel, tmp_path):
    shutil.copytree(REPOSITORY / "packaging" / "kernels", tmp_path / "source", ignore=shutil.ignore_patterns("build"))
    bin, site = environment(tmp_path / "venv", wheel)
    folder, cache = tmp_path / "wheel", tmp_path / "cache"
    folder.mkdir()
    build = f"import setuptools.build_meta as b; print(b.build_wheel({str(folder)!r}))"
    name = run(bin / "python", "-c", build, folder=tmp_path / "source", BERTCORE_KERNEL_LEVELS=LEVEL.name).split()[-1]
    assert name.startswith(f"bertcore_kernels-{bertcore.__version__}-cp3") and "-none-any" not in name
    pip = (sys.executable, "-m", "pip", "--python", bin / "python", "install", "--no-deps", "-q")
    run(*pip, folder / name, folder=site)
    assert run(bin / "python", "-c", FIRST_ANSWER, folder=tmp_path, BERTCORE_CACHE_DIR=str(cache)) == "0\n"
    assert not list(cache.rglob("*.nbc"))


def test_links_lead_out_of_the_page_on_pypi(source, tmp_path):
    """A workflow builds with the repository's address, to which the README's links are relative."""
    code = f"import setuptools.build_meta as b; b.prepare_metadata_for_build_wheel({str(tmp_path)!r})"
    known = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "owner/bertcore"}
    run(sys.executable, "-c", code, folder=source, **known)
    (file,) = tmp_path.glob("*/METADATA")
    text, files = file.read_text(encoding="utf-8"), f"https://github.com/owner/bertcore/blob/v{bertcore.__version__}"
    links = re.findall(r"\]\((.*?)\)", text)
    assert f"{files}/docs/training.md" in links and all(re.match("https?:|#", link) for link in links)
    assert f"Project-URL: Changelog, {files}/CHANGELOG.md" in text


def sources(root, package):
    """The names of what belongs into an installation, under the name of the package."""
    files = [file for pattern in ("*.py", "*.cu", "*.cuh", "py.typed", "static/*") for file in root.rglob(pattern)]
    return {(Path(package) / file.relative_to(root)).as_posix() for file in files}


@pytest.mark.slow
def test_a_wheel_holds_every_source_and_nothing_else(wheel):
    expected = sources(REPOSITORY / "bertcore", "bertcore") | sources(REPOSITORY / "kernels", "bertcore/kernels")
    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert found == expected
    assert "bertcore/py.typed" in found


@pytest.mark.slow
def test_an_installation_runs_without_the_repository(installed, tmp_path):
    bin, _ = installed
    assert run(bin / "python", "-c", USE, folder=tmp_path).split("\n")[-2] == "(1, 3, 39)"
    assert "2,957,568" in run(bin / "bertcore", "info", "mini-bert", folder=tmp_path)
    assert f"bertcore {bertcore.__version__}" in run(bin / "bertcore", "--version", folder=tmp_path)


@pytest.mark.slow
def test_pyright_finds_nothing_in_what_a_user_writes(installed, tmp_path):
    _, site = installed
    script = shutil.copy(Path(__file__).with_name("user_script.py"), tmp_path / "user_script.py")
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]
    for name in ("clusters.md", "formats.md", "plugins.md"):  # which are about libraries that may not be here
        pages.remove(REPOSITORY / "docs" / name)
    for page in pages:
        blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        (tmp_path / f"page_{page.stem.replace('-', '_')}.py").write_text("\n".join(blocks))
    paths = ", ".join(f'"{path}"' for path in (site, *SITE_PACKAGES))
    (tmp_path / "pyrightconfig.json").write_text(f'{{"typeCheckingMode": "basic", "extraPaths": [{paths}]}}')
    command = (sys.executable, "-m", "pyright", "--project", tmp_path)
    assert "0 errors, 0 warnings" in run(*command, folder=tmp_path)
    lines = script.read_text().splitlines()
    known = [line for line in lines if not re.search(r"kernels|attention|softmax|clip|optimizer\.step", line)]
    script.write_text("\n".join(["# pyright: strict", *known]))  # without CuPy's arrays, which may not be here
    assert "0 errors, 0 warnings" in run(*command, folder=tmp_path)
    script.write_text("\n".join([*lines, "SentenceEncoder(folder, no_such_argument=1)"]))
    refuses(AssertionError, '"no_such_argument"', run, *command, folder=tmp_path)


@pytest.mark.slow
def test_type_checkers_follow_an_editable_installation(source, tmp_path):
    folder, _ = environment(tmp_path / "venv", "--no-build-isolation", "--editable", source)
    script = tmp_path / "user_script.py"
    wrong = "SentenceEncoder(folder, no_such_argument=1)\nsoftmax(rows, axis=1)\nuse_backend('numpi')\n"
    text = Path(__file__).with_name("user_script.py").read_text(encoding="utf-8")
    for checker, path in (("mypy", "--python-executable"), ("pyright", "--pythonpath")):
        script.write_text(text)
        run(sys.executable, "-m", checker, path, folder / "python", script, folder=tmp_path)
        script.write_text(text + wrong)
        with pytest.raises(AssertionError) as error:
            run(sys.executable, "-m", checker, path, folder / "python", script, folder=tmp_path)
        assert all(word in str(error.value) for word in ("no_such_argument", "axis", "numpi")), checker


def test_type_checkers_read_the_names_that_are_loaded_at_first_use():
    tree = ast.parse(Path(bertcore.__file__).read_text(encoding="utf-8"))
    (checked,) = [node for node in tree.body if isinstance(node, ast.If)]
    found = {alias.asname: node.module for node in checked.body for alias in node.names}
    assert sorted(found) == bertcore.__all__
    for name, module in found.items():
        assert getattr(bertcore, name) is getattr(importlib.import_module(module), name), name
    assert all(alias.name == alias.asname for node in checked.body for alias in node.names)


def test_the_citation_names_this_version():
    assert f"\nversion: {bertcore.__version__}\n" in (REPOSITORY / "CITATION.cff").read_text(encoding="utf-8")


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="no repository of git")
def test_no_source_is_ignored():
    command = ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"]
    assert subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout == ""
