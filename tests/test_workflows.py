"""The workflows of continuous integration, and the copies of setup.py's facts in other files."""

import re
from pathlib import Path

import pytest
import yaml

import bertcore

REPOSITORY = Path(__file__).parent.parent
WORKFLOWS = {file.stem: file for file in (REPOSITORY / ".github" / "workflows").glob("*.yml")}
SETUP = (REPOSITORY / "setup.py").read_text(encoding="utf-8")
SYSTEMS = {"ubuntu-24.04", "ubuntu-24.04-arm", "macos-15", "windows-2025"}


def jobs(name):
    return yaml.safe_load(WORKFLOWS[name].read_text(encoding="utf-8"))["jobs"]


def classified_versions():
    """The versions of Python in setup.py's classifiers."""
    (line,) = [line for line in SETUP.splitlines() if "Programming Language :: Python :: {version}" in line]
    return re.findall(r'"(3\.\d+)"', line)


@pytest.mark.parametrize("workflow, job", [("tests", "pytest"), ("release", "kernels")])
def test_every_system_and_python_is_there(workflow, job):
    matrix = jobs(workflow)[job]["strategy"]["matrix"]
    assert matrix["python"] == classified_versions() and set(matrix["os"]) == SYSTEMS
    assert {case["python"] for case in matrix.get("include", [])} <= {f"{matrix['python'][-1]}t"}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_rights_are_least_and_actions_have_versions(name):
    content = yaml.safe_load(WORKFLOWS[name].read_text(encoding="utf-8"))
    assert content["permissions"] == {"contents": "read"}
    granted = {job for job, described in content["jobs"].items() if "permissions" in described}
    assert granted <= {"publish"}
    for job in content["jobs"].values():
        assert "uses" in job or job["timeout-minutes"]
        used = [step["uses"] for step in job.get("steps", []) if "uses" in step]
        assert all(re.search(r"@(v\d+|release/v1)$", action) for action in used), used
        texts = [step["run"] for step in job.get("steps", []) if "run" in step]
        assert not any("${{" in text for text in texts)  # text of others would be run: take it from `env`


def test_publishing_needs_tests_and_a_tag():
    publish = jobs("release")["publish"]
    assert {"tests", "pure", "kernels"} <= set(publish["needs"]) and "ref_type == 'tag'" in publish["if"]
    assert publish["permissions"] == {"id-token": "write"} and "PASSWORD" not in str(publish).upper()


def test_the_recipe_agrees_with_setup():
    text = (REPOSITORY / "packaging" / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    recipe = yaml.safe_load(text)
    assert recipe["context"]["version"] == bertcore.__version__
    assert f'python_requires=">={recipe["context"]["python_min"]}"' in SETUP
    required = SETUP.partition("install_requires=[")[2].partition("\n    ],")[0]
    expected = {
        re.sub(r"[<>].*", "", need): need for need in re.findall(r"""["']([\w.<>=,]+)(?:; .*)?["']""", required)
    }
    assert {need.replace(" ", "") for need in recipe["requirements"]["run"][1:]} == set(expected.values())
    build = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert all(f'"{need.replace(" ", "")}"' in build for need in recipe["requirements"]["host"] if "setuptools" in need)
