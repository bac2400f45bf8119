"""All at once, with few files: clients that never read, half heads, nested and giant bodies, long requests."""

import pytest

from bench.serving import mixed

pytestmark = pytest.mark.slow
LIMITS = ("--max-response-bytes", str(4 << 20), "--times", "1000")  # how long it takes depends on others


@pytest.mark.parametrize("files", [64, None])
def test_a_server_keeps_its_promises_under_everything_at_once(folders, capsys, files):
    options = ["--seconds", "15", "--model", str(folders["encoder"]), *LIMITS]
    assert mixed.main([*options, *(["--files", str(files)] if files else [])]) == 0
    seen = capsys.readouterr().out
    assert "BROKEN" not in seen and all(f"'{status}': " in seen for status in (200, 400, 413, 422))


def test_broken_promises_are_named(folders, capsys):
    options = ["--seconds", "2", "--model", str(folders["encoder"]), *LIMITS[:2], "--times", "0.001"]
    assert mixed.main(options) == 1
    assert "BROKEN: small requests take" in capsys.readouterr().out
