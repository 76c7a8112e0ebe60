"""What a stranger may name: public addresses alone, however they are spelt, and never more than was allowed."""

import itertools
import socket
import time
from pathlib import Path

import pytest
from files.strangers import PUBLIC, Stranger, answer, contexts

from vitrail.errors import DataError
from vitrail.files.public import INTERNET, MOST_LOOKUPS, Network, fetch_public, is_public

BODY = bytes(range(251)) * 7
URL = "http://images.example/cat.jpg"
HOSTS = {"images.example": [PUBLIC]}
UNFOUND = "is not found on the public internet. Send the image itself instead."


def untouched(host: str) -> list[str]:
    raise AssertionError(f"{host} was looked up")


def unreached(address: str, port: int, seconds: float) -> socket.socket:
    raise AssertionError(f"{address} was dialed")


NOWHERE = Network(look_up=untouched, dial=unreached)
SYSTEM = Network(look_up=INTERNET.look_up, dial=unreached)  # the machine's own lookup, and no connection


def refusal(url: str, network: Network, *, most: int = 10_000, seconds: float = 5.0) -> str:
    with pytest.raises(DataError) as caught:
        fetch_public(url, most=most, seconds=seconds, network=network)
    return str(caught.value)


def met(*scripts: bytes | list[bytes | float], url: str = URL, **bounds: float) -> str:
    """What is said of a server with these answers."""
    with Stranger(*scripts).running() as stranger:
        return refusal(url, stranger.network(HOSTS), **bounds)  # pyright: ignore[reportArgumentType]


def test_a_public_file_comes_as_it_is_from_the_address_that_was_checked() -> None:
    with Stranger(answer(BODY)).running() as stranger:
        url = "http://IMAGES.example./katze%20ä.jpg?größe=3#part"
        assert fetch_public(url, most=len(BODY), seconds=5, network=stranger.network(HOSTS)) == BODY
    assert stranger.dialed == [(PUBLIC, 80)]
    lines = stranger.asked[0].decode().split("\r\n")
    assert lines[0] == "GET /katze%20%C3%A4.jpg?gr%C3%B6%C3%9Fe=3 HTTP/1.1"
    assert "Host: images.example" in lines
    assert "Accept-Encoding: identity" in lines


def test_https_asks_for_and_verifies_the_name_not_the_address(tmp_path: Path) -> None:
    server, client = contexts(tmp_path)
    with Stranger(answer(BODY), answer(BODY), answer(BODY), context=server).running() as stranger:
        hosts = HOSTS | {"other.example": [PUBLIC]}
        network = stranger.network(hosts, client)
        assert fetch_public("https://images.example/", most=9999, seconds=5, network=network) == BODY
        assert "certificate of other.example is not valid" in refusal("https://other.example/", network)
        assert "certificate of images.example" in refusal("https://images.example/", stranger.network(hosts))
    assert stranger.names == ["images.example", "other.example", "images.example"]
    assert stranger.dialed == [(PUBLIC, 443)] * 3


@pytest.mark.parametrize(
    "host",
    [
        "2130706433",
        "017700000001",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "127.1",
        "127.0.0.1.",
        "127.0.0.1",
        "0",
        "0.0.0.0",
        "10.0.0.1",
        "169.254.169.254",
        "100.100.100.200",
        "255.255.255.255",
        "224.0.0.1",
        "0x8.8.8.8",  # public, and yet nobody's way to write it
        "①②⑦.⓪.⓪.①",
        "１２７。０。０。１",  # noqa: RUF001
        "localhost",
        "LOCALHOST.",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:8.8.8.8]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[64:ff9b:1::808:808]",
        "[2002:7f00:1::]",
        "[2001:0:808:808::1]",
        "[fe80::1]",
        "[fe80::1%25lo]",
        "[fd00:ec2::254]",
        "[ff02::1]",
    ],
)
def test_no_spelling_of_a_private_address_is_reached(host: str) -> None:
    assert refusal(f"http://{host}/", SYSTEM).endswith("Send the image itself instead.")


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.215.14", "2606:4700::1111", "64:ff9b::808:808", "2a00:1450::5"])
def test_public_addresses_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    "100.64.0.1 168.63.129.16 172.31.255.255 192.0.0.192 192.0.2.1 192.88.99.1 192.168.3.5 198.18.0.1 198.51.100.7 "  # noqa: SIM905
    "203.0.113.9 240.0.0.1 2001:db8::1 2001:2::1 2001:20::1 3fff::1 5f00::1 100::1 fec0::1 fc00::1 64:ff9b::a00:1 "
    "64:ff9b::6440:1 2002:808:808::1 ::ffff:0:8.8.8.8 none".split(),
)
def test_special_addresses_are_not(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("others", [["127.0.0.1"], [PUBLIC, "10.0.0.3"], ["fd00::5", PUBLIC], []])
def test_one_address_that_is_not_public_refuses_a_name(others: list[str]) -> None:
    network = Network(look_up=lambda host: others, dial=unreached)
    assert refusal(URL, network) == f"images.example {UNFOUND}"


def test_a_private_name_and_an_unknown_one_are_told_apart_by_nothing() -> None:
    def unknown(host: str) -> list[str]:
        raise socket.gaierror(-2, "Name or service not known")

    private = refusal(URL, Network(look_up=lambda host: ["192.168.0.7"], dial=unreached))
    assert private == refusal(URL, Network(look_up=unknown, dial=unreached)) == f"images.example {UNFOUND}"


def test_a_name_that_changes_its_address_is_looked_up_once() -> None:
    turns = itertools.chain([[PUBLIC]], itertools.repeat(["127.0.0.1"]))
    with Stranger(answer(status="302 Found", Location="/again"), answer(BODY)).running() as stranger:
        network = stranger.network(lambda host: next(turns))
        assert refusal(URL, network) == f"images.example {UNFOUND}"  # the redirect is checked anew
    assert stranger.dialed == [(PUBLIC, 80)]


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1/",
        "http://2130706433/",
        "//[::1]/",
        "http://metadata.internal/",
        "http://images.example:22/",
        "file:///etc/passwd",
        "gopher://images.example/",
        "http://user:secret@images.example/",
        "ftp://images.example/x",
    ],
)
def test_a_redirect_is_checked_as_the_first_address_is(location: str) -> None:
    with Stranger(answer(status="301 Moved", Location=location), answer(BODY)).running() as stranger:
        hosts = HOSTS | {"metadata.internal": ["169.254.169.254"], "127.0.0.1": ["127.0.0.1"], "::1": ["::1"]}
        assert "secret" not in refusal(URL, stranger.network(hosts))
    assert stranger.dialed == [(PUBLIC, 80)]


def test_three_redirects_are_followed_and_no_more(tmp_path: Path) -> None:
    onward = [answer(status="307 Away", Location=f"{number}.jpg?a=b") for number in range(4)]
    with Stranger(*onward[:3], answer(BODY)).running() as stranger:
        assert fetch_public(URL, most=9999, seconds=5, network=stranger.network(HOSTS)) == BODY
    assert stranger.asked[-1].startswith(b"GET /2.jpg?a=b HTTP/1.1\r\n")
    assert "sends on more than 3 times" in met(*onward)
    server, client = contexts(tmp_path)
    with Stranger(answer(status="302 Found", Location=URL), context=server).running() as stranger:
        assert "from https to http" in refusal("https://images.example/", stranger.network(HOSTS, client))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("file:///etc/passwd", "starts with https:// or http://"),
        ("ftp://images.example/a", "starts with https://"),
        ("gopher://images.example/a", "starts with https://"),
        ("data:image/png;base64,AAAA", "starts with https://"),
        ("//images.example/a", "starts with https://"),
        ("http:///a", "host of letters"),
        ("http://images.example/a\r\nHost: b", "without blanks"),
        ("http://images.exa\nmple/", "without blanks"),
        ("http://images.example\\@10.0.0.1/", "backslashes"),
        ("http://images.example/\ud800", "without blanks"),
        ("http://user:secret@images.example/", "user name or a password"),
        ("http://images.example@10.0.0.1/", "user name or a password"),
        ("http://images.example:8080/", "without a port"),
        ("http://images.example:443/", "without a port"),
        ("https://images.example:22/", "without a port"),
        ("http://images.example:99999/", "such as https://HOST/FILE"),
        ("http://[::1/", "such as https://HOST/FILE"),
        ("http://a℀b.example/", "such as https://HOST/FILE"),
        ("http://%31%32%37.0.0.1/", "usual digits"),
        ("http://images%2eexample/", "host of letters"),
        ("http://-images.example/", "host of letters"),
        (f"http://{'a' * 64}.example/", "usual digits"),
        (f"http://images.example/{'a' * 5000}", "at most 4,096 signs"),
    ],
)
def test_an_address_that_can_be_read_in_two_ways_is_refused_before_any_lookup(url: str, said: str) -> None:
    message = refusal(url, NOWHERE)
    assert said in message
    assert "secret" not in message


def test_an_international_name_is_looked_up_in_ascii() -> None:
    with Stranger(answer(BODY)).running() as stranger:
        network = stranger.network({"xn--bcher-kva.example": [PUBLIC]})
        assert fetch_public("http://Bücher.example:80/", most=9999, seconds=5, network=network) == BODY
    assert b"Host: xn--bcher-kva.example\r\n" in stranger.asked[0]


def test_the_next_address_is_tried_where_one_does_not_answer() -> None:
    with Stranger(answer(BODY)).running() as stranger:
        network = stranger.network({"images.example": ["8.8.8.8", "2606:4700::1", PUBLIC, PUBLIC]})

        def dial(address: str, port: int, seconds: float) -> socket.socket:
            if address != PUBLIC:
                raise OSError(101, "no way there")
            return network.dial(address, port, seconds)

        assert fetch_public(URL, most=9999, seconds=5, network=Network(look_up=network.look_up, dial=dial)) == BODY
    assert stranger.dialed == [(PUBLIC, 80)]


DRIP: list[bytes | float] = [piece for _ in range(40) for piece in (b"a", 0.03)]


@pytest.mark.parametrize("start", [[], [b"HTTP/1.1 200 OK\r\nX: "], [answer(Content_Length=5000)], [5.0]])
def test_a_server_that_drips_is_left_at_the_deadline(start: list[bytes | float]) -> None:
    before = time.monotonic()
    script = [0.25] if start == [5.0] else [*start, *DRIP]
    with Stranger(script).running() as stranger:
        message = refusal(URL, stranger.network(HOSTS), seconds=0.2)
        assert time.monotonic() - before < 0.5
    assert "did not answer in full within 0.2 seconds" in message


def test_a_lookup_without_an_answer_is_left_at_the_deadline() -> None:
    def slow(host: str) -> list[str]:
        time.sleep(0.3)
        return [PUBLIC]

    before = time.monotonic()
    for _ in range(3):
        assert "within 0.05 seconds" in refusal(URL, Network(look_up=slow, dial=unreached), seconds=0.05)
    assert time.monotonic() - before < 0.3
    assert MOST_LOOKUPS >= 3


def test_what_is_too_large_is_refused_by_what_it_says_and_by_what_it_is() -> None:
    assert "at most 100 bytes; images.example sends 1,757" in met(answer(BODY), most=100)
    assert "sends more" in met(answer(BODY, Content_Length=""), most=100)
    chunks = b"".join(b"40\r\n" + b"a" * 64 + b"\r\n" for _ in range(30)) + b"0\r\n\r\n"
    packed = answer(Content_Length="", Transfer_Encoding="chunked")
    assert "sends more" in met(packed + chunks, most=100)
    with Stranger([packed + b"-1\r\n", *[b"a" * 65_536] * 600]).running() as stranger:  # -1: to the end
        assert "does not answer as a web server" in refusal(URL, stranger.network(HOSTS), most=100)
    assert stranger.sent < 20_000_000
    with Stranger(packed + chunks).running() as stranger:
        assert fetch_public(URL, most=1920, seconds=5, network=stranger.network(HOSTS)) == b"a" * 1920


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (answer(BODY, Content_Encoding="gzip"), "sends the file packed"),
        (answer(BODY, status="404 None"), "answered HTTP 404"),
        (answer(BODY, status="206 Part"), "answered HTTP 206"),
        (answer(status="302 Found"), "answered HTTP 302"),
        (answer(BODY, Content_Length=3000), "ended after 1,757 of 3,000 bytes. Try again."),
        (b"SSH-2.0-OpenSSH_9\r\n", "does not answer as a web server"),
        (b"", "does not answer as a web server"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n", "does not answer as a web server"),
        (b"HTTP/1.1 200 OK\r\nA: " + b"b" * 300_000, "does not answer as a web server"),
    ],
)
def test_an_answer_that_is_no_file_is_refused(script: bytes, said: str) -> None:
    assert said in met(script)


def test_no_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    with Stranger(answer(BODY)).running() as stranger:
        assert fetch_public(URL, most=9999, seconds=5, network=stranger.network(HOSTS)) == BODY


def test_the_systems_own_dialing_connects_or_says_why() -> None:
    with Stranger(answer(BODY)).running() as stranger:
        address, port = stranger.listener.getsockname()
        with INTERNET.dial(address, port, 5.0) as connection:
            assert connection.getpeername() == (address, port)
            assert connection.gettimeout() == 5.0
            connection.sendall(b"GET")
    with pytest.raises(OSError, match="refused"):
        INTERNET.dial(address, port, 5.0)
