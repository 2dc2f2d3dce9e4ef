"""The HTTP client against a server that misbehaves on purpose."""

import os
import socket
import threading

import pytest
from paddock_testing.run import seconds

from paddock import InvalidArgumentError, PaddockError, TransportError
from paddock._http import HttpClient

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Script:
    """Answers each connection with what the script says: a list of answers, then it closes."""

    def __init__(self, *connections):
        self.connections = list(connections)
        self.requests = []
        self.closed = threading.Semaphore(0)  # once for each connection
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        for answers in self.connections:
            sock, _ = self.listener.accept()
            with sock, sock.makefile("rb") as reader:
                for answer in answers:
                    head = b""
                    while not head.endswith(b"\r\n\r\n"):
                        line = reader.readline()
                        if not line:
                            break
                        head += line
                    length = 0
                    for line in head.lower().split(b"\r\n"):
                        if line.startswith(b"content-length:"):
                            length = int(line.split(b":")[1])
                    self.requests.append((head, reader.read(length)))
                    sock.sendall(answer)
            self.closed.release()


def test_a_connection_is_kept():
    server = Script([OK, OK, OK])
    client = HttpClient(server.url)
    for _ in range(3):
        assert client.request("GET", "/x").json() == {}
    assert len(server.requests) == 3


def test_a_connection_that_was_closed_while_it_rested_is_not_used():
    server = Script([OK], [OK])
    client = HttpClient(server.url)
    client.request("POST", "/1")
    assert server.closed.acquire(timeout=seconds(20))
    client.request("POST", "/2")
    assert [r[0].split()[1] for r in server.requests] == [b"/1", b"/2"]


@pytest.mark.parametrize("method, idempotent, times", [
    ("GET", None, 2), ("PUT", None, 2), ("POST", None, 1), ("POST", True, 2), ("DELETE", None, 1)])
def test_only_what_may_be_repeated_is(method, idempotent, times):
    server = Script([b""], [OK])
    client = HttpClient(server.url)
    if times == 2:
        assert client.request(method, "/", body=b"abc", idempotent=idempotent).status == 200
    else:
        with pytest.raises(TransportError):
            client.request(method, "/", body=b"abc", idempotent=idempotent)
    assert [body for _, body in server.requests] == [b"abc"] * times


def test_a_file_is_sent_again_from_where_it_began(tmp_path):
    (tmp_path / "f").write_bytes(b"0123456789")
    server = Script([b""], [OK])
    with open(tmp_path / "f", "rb") as f:
        f.read(4)
        HttpClient(server.url).request("PUT", "/", body=f)
    assert [body for _, body in server.requests] == [b"456789"] * 2


def test_pieces_of_unknown_number_are_sent_as_they_come(server):
    client = HttpClient(server.url, {"X-API-Key": server.key})
    box = client.request("POST", "/v1/sandboxes").json()["id"]
    files = f"/v1/sandboxes/{box}/files"
    pieces = (bytes([n]) * 100000 for n in range(40))
    client.request("PUT", files, query={"path": "f"}, body=pieces)
    back = client.request("GET", files, query={"path": "f"}).body
    assert back == b"".join(bytes([n]) * 100000 for n in range(40))
    client.request("PUT", files, query={"path": "f"}, body=iter([b"", b"x", b""]))
    assert client.request("GET", files, query={"path": "f"}).body == b"x"
    # What is no bytes is an error of the caller's, and the connection is not used again.
    for wrong in (["text"], open(__file__)):
        with pytest.raises(InvalidArgumentError):
            client.request("PUT", files, query={"path": "f"}, body=wrong)
        assert client.request("GET", files, query={"path": "f"}).body == b"x"
    client.request("DELETE", f"/v1/sandboxes/{box}")


def test_an_answer_that_breaks_off_is_an_error():
    server = Script([b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"])
    with pytest.raises(TransportError, match="broke off"):
        HttpClient(server.url).request("POST", "/")


@pytest.mark.parametrize("body, code", [
    (b'{"error":{"code":"capacity","message":"full","details":{"a":1}}}', "capacity"),
    (b"<html>", "bad_gateway"), (b"[]", "bad_gateway"), (b'{"error":"x"}', "bad_gateway")])
def test_errors_of_any_form(body, code):
    head = b"HTTP/1.1 502 X\r\nRetry-After: 7\r\nContent-Length: %d\r\n\r\n" % len(body)
    server = Script([head + body])
    with pytest.raises(PaddockError) as caught:
        HttpClient(server.url).request("GET", "/")
    assert caught.value.code == code and caught.value.status == 502
    assert caught.value.retry_after == 7


def test_events_in_odd_forms():
    body = (b": comment\n\nid: 1.2\nevent: a\ndata: x\ndata: y\n\nid:3\r\nevent:b\r\ndata:z\r\n\r\n"
            b"data: unfinished")
    server = Script([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body])
    with HttpClient(server.url).open("GET", "/") as stream:
        assert [tuple(e) for e in stream.events()] == [("1.2", "a", "x\ny"), ("3", "b", "z")]


def test_a_child_of_fork_has_connections_of_its_own():
    server = Script([OK, OK], [OK])
    client = HttpClient(server.url)
    client.request("GET", "/parent")
    child = os.fork()
    if child == 0:
        client._take()
        os._exit(0 if client._idle == [] else 1)
    assert os.waitpid(child, 0)[1] == 0
    client.request("GET", "/parent-again")
    assert len(server.requests) == 2
