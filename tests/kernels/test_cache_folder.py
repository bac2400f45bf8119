import os
import tempfile
from pathlib import Path

import pytest

from bertcore.kernels import cache_folder
from bertcore.kernels.cache_folder import cache_candidates, usable_cache_folder, writable_cache_folder


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    monkeypatch.delenv("BERTCORE_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_order(monkeypatch, tmp_path):
    user = [tmp_path / "home" / ".cache" / "bertcore"]
    assert cache_candidates()[:-1] == user
    assert cache_candidates()[-1].parent == tmp_path / "temporary"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_candidates()[0] == tmp_path / "xdg" / "bertcore"


def test_explicit_folder_is_created(monkeypatch, tmp_path):
    monkeypatch.setenv("BERTCORE_CACHE_DIR", str(tmp_path / "a" / "b"))
    assert writable_cache_folder() == tmp_path / "a" / "b"
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_explicit_folder_never_falls_back(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BERTCORE_CACHE_DIR", str(tmp_path / "file" / "sub"))
    with pytest.raises(OSError, match=r"set BERTCORE_CACHE_DIR to one\. Tried: .*/file/sub \(Not a directory\)"):
        writable_cache_folder()


def test_unwritable_home(monkeypatch, tmp_path):
    (tmp_path / "home").write_text("not a folder")
    assert writable_cache_folder() == cache_candidates()[-1]


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="needs POSIX users")
@pytest.mark.parametrize("explicit", [False, True])
def test_folder_of_another_user_is_rejected(monkeypatch, tmp_path, explicit):
    (tmp_path / "home").write_text("not a folder")
    monkeypatch.setattr(os, "getuid", lambda: 77)
    folder = Path(cache_candidates()[-1])
    if explicit:
        folder = tmp_path / "mine"
        monkeypatch.setenv("BERTCORE_CACHE_DIR", str(folder))
    (folder / "kernels").mkdir(parents=True)
    owners = {folder: 4242, folder / "kernels": 4242}
    monkeypatch.setattr(cache_folder, "_owner", owners.get)
    with pytest.raises(OSError, match="belongs to another user"):
        writable_cache_folder()
    for owner in (4242, 0):
        owners[folder] = owner
        if explicit:
            with pytest.raises(OSError, match="belongs to another user"):
                usable_cache_folder("kernels")
        else:  # the home's, where nothing can be kept
            assert usable_cache_folder("kernels") == cache_candidates()[0]
    owners[folder / "kernels"] = 77
    assert usable_cache_folder("kernels") == folder
