"""`bertcore serve`: where it listens."""

import socket
from types import SimpleNamespace

import pytest

from bertcore.cli import main
from bertcore.cli.options import CommandError
from bertcore.cli.serve import listening_socket
from tests.refusals import refuses


def test_address_in_use():
    with listening_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CommandError, match=f"cannot listen at 127.0.0.1:{port}: Address already in use$"):
            listening_socket("127.0.0.1", port)
        with socket.create_connection(("127.0.0.1", port)):  # it listens already
            pass


def test_invalid_host_name():
    refuses(CommandError, r"cannot listen at a\.\.b:0: 'a\.\.b' is not the name of a host", listening_socket, "a..b", 0)


def test_idle_connections_outlive_those_of_load_balancers(monkeypatch, capsys):
    """Load balancers use a connection again for 60 s; if the server closes it meanwhile, a request is lost."""
    made = []
    monkeypatch.setattr("bertcore.serving.create_app", lambda *given, **options: None)
    server = SimpleNamespace(run=lambda sockets: None)
    monkeypatch.setattr("uvicorn.Server", lambda config: made.append(config) or server)
    assert main(["serve", "demo", "--host", "::1", "--port", "0", "--backend", "numpy"]) == 0
    assert made[0].timeout_keep_alive > 60
    assert capsys.readouterr().out.startswith("bertcore: listening at http://[::1]:")


@pytest.mark.parametrize(("key", "wrong"), [("", "is empty"), ("a\n", "has other characters"), ("é", "has other")])
def test_a_key_that_cannot_work_is_refused_at_start(monkeypatch, capsys, key, wrong):
    monkeypatch.setenv("BERTCORE_API_KEY", key)
    assert main(["serve", "demo", "--port", "0", "--backend", "numpy"]) == 1
    assert f"BERTCORE_API_KEY {wrong}" in capsys.readouterr().err


def test_answers_are_sent_at_once():
    """Without TCP_NODELAY the second part of an answer waits 40 ms for the acknowledgement of the first."""
    with listening_socket("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
