import pytest

from agenttx import AsyncClient, Client, ConfigurationError, Tls
from agenttx.endpoint import Endpoint


def resolve(address=None, token=None, tls=None, **environment):
    return Endpoint.resolve(address, token=token, tls=tls, environment=environment)


def test_what_is_given_wins_over_the_environment_and_that_over_the_default():
    assert resolve().address == "127.0.0.1:50051"
    assert resolve(AGENTTX_ADDRESS="10.0.0.1:1").address == "10.0.0.1:1"
    assert resolve("10.0.0.2:2", AGENTTX_ADDRESS="10.0.0.1:1").address == "10.0.0.2:2"


@pytest.mark.parametrize(
    "address",
    [
        "localhost:1",
        "127.0.0.1:1",
        "127.8.9.1:1",
        "[::1]:50051",
        "unix:/run/agenttx.sock",
        "unix:relative.sock",
    ],
)
def test_a_token_goes_to_this_machine_without_tls(address):
    endpoint = resolve(address, AGENTTX_TOKEN="secret")

    assert endpoint.metadata == (("authorization", "Bearer secret"),)
    assert "secret" not in repr(endpoint)


@pytest.mark.parametrize(
    "address", ["10.0.0.1:1", "server:50051", "localhost.evil.example:1", "[2001:db8::1]:1"]
)
def test_a_token_never_crosses_a_network_in_the_clear(address):
    with pytest.raises(ConfigurationError, match="only over TLS"):
        resolve(address, token="secret")

    assert resolve(address, token="secret", tls=True).metadata
    assert resolve(address).metadata == ()


def test_an_empty_token_means_none_even_where_the_environment_has_one():
    assert resolve("10.0.0.1:1", token="", AGENTTX_TOKEN="secret").metadata == ()


@pytest.mark.parametrize("token", ["two\nlines", "schlüssel"])
def test_a_token_that_no_header_can_carry_is_refused(token):
    with pytest.raises(ConfigurationError, match="header"):
        resolve(token=token)


@pytest.mark.parametrize("port", ["0", "65536", "99999", "500510"])
def test_a_port_out_of_range_is_told_the_range(port):
    with pytest.raises(ConfigurationError, match=f"'server:{port}': ports go from 1 to 65535"):
        resolve(f"server:{port}")


def test_an_empty_address_is_refused_and_an_empty_variable_is_none():
    with pytest.raises(ConfigurationError, match="'' is no address: give HOST:PORT"):
        resolve("", AGENTTX_ADDRESS="10.0.0.1:1")
    assert resolve(AGENTTX_ADDRESS="").address == "127.0.0.1:50051"


@pytest.mark.parametrize(
    "address",
    [
        "server",
        "server:",
        ":50051",
        "http://server:50051",
        "::1:50051",
        "unix:",
        "a b:c",
    ],
)
def test_what_is_no_address_is_refused_saying_what_one_is(address):
    with pytest.raises(ConfigurationError, match=r"give (HOST:PORT|unix:PATH)"):
        resolve(address)


def test_the_channel_has_the_limits_of_the_contract_and_no_retries_of_its_own():
    options = dict(resolve().channel_options())

    assert options["grpc.max_receive_message_length"] == 8 * 1024 * 1024
    assert options["grpc.max_send_message_length"] == 8 * 1024 * 1024
    assert options["grpc.keepalive_time_ms"] == 30_000
    assert options["grpc.keepalive_timeout_ms"] == 15_000
    assert options["grpc.enable_retries"] == 0


def test_loopback_is_never_sent_through_a_proxy():
    assert dict(resolve("127.0.0.1:1").channel_options())["grpc.enable_http_proxy"] == 0
    assert "grpc.enable_http_proxy" not in dict(resolve("server:1").channel_options())


def test_files_that_cannot_be_read_and_half_of_a_pair_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="ca can't be read"):
        Tls(ca=tmp_path / "missing.pem").credentials()
    with pytest.raises(ConfigurationError, match="belong together"):
        Tls(certificate=b"pem").credentials()


def test_both_clients_refuse_bad_settings_before_anything_is_connected():
    for client_class in (Client, AsyncClient):
        with pytest.raises(ConfigurationError):
            client_class("nonsense")
