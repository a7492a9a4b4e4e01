"""A port that cannot be had is said before a model is loaded, not minutes later."""

import socket
import time

import pytest
from typer.testing import CliRunner

from semblend.cli.main import app
from semblend.core.errors import SettingsError
from semblend.serve.ports import listen, take_port


@pytest.fixture
def busy():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_a_port_in_use_is_named(busy):
    with pytest.raises(SettingsError, match=f"port {busy} on 127.0.0.1 is in use"):
        take_port("127.0.0.1", busy)


def test_serve_names_the_port_before_it_looks_for_the_model(busy):
    started = time.monotonic()
    result = CliRunner().invoke(app, ["serve", "/no/such/model", "--port", str(busy)])
    assert result.exit_code == 2
    assert f"port {busy} on 127.0.0.1 is in use" in " ".join(result.output.split())
    assert "/no/such/model" not in result.output
    assert time.monotonic() - started < 60


def test_clients_are_refused_until_the_server_listens():
    (mine,) = take_port("127.0.0.1", 0)
    with mine, socket.socket() as client:
        place = mine.getsockname()
        assert client.connect_ex(place) != 0
        listen([mine], "127.0.0.1")
        assert client.connect_ex(place) == 0


def test_of_two_servers_that_start_together_one_is_told():
    (first,) = take_port("127.0.0.1", 0)
    port = first.getsockname()[1]
    said = []
    with first:
        try:
            (second,) = take_port("127.0.0.1", port)
        except SettingsError as error:  # where the system does not let both bind
            said.append(str(error))
        else:
            with second:
                listen([second], "127.0.0.1")
                with pytest.raises(SettingsError) as raised:
                    listen([first], "127.0.0.1")
                said.append(str(raised.value))
    assert said == [
        f"port {port} on 127.0.0.1 is in use by another program; choose another with --port"
    ]


def test_a_port_whose_server_has_just_ended_can_be_taken_again():
    (first,) = take_port("127.0.0.1", 0)
    port = first.getsockname()[1]
    first.listen()
    with socket.create_connection(("127.0.0.1", port)) as client:
        answering, _ = first.accept()
        answering.close()  # it closes first, so its end of the connection lingers
        assert client.recv(1) == b""
    first.close()
    (again,) = take_port("127.0.0.1", port)
    again.close()


def test_all_addresses_of_a_name_get_the_same_port():
    sockets = take_port("localhost", 0)
    assert len({each.getsockname()[1] for each in sockets}) == 1
    assert sockets[0].getsockname()[1] > 0
    for each in sockets:
        each.close()


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_a_host_that_is_not_this_machine_is_named(host):
    with pytest.raises(SettingsError, match=host):
        take_port(host, 0)
