"""The frames between an agent and its fork server."""

from __future__ import annotations

import os
import socket
import threading

from elastic_runtime.agent.workers.fork_server import receive, send


def test_a_frame_and_its_descriptors() -> None:
    one, other = socket.socketpair()
    with one, other:
        reading, writing = os.pipe()
        body = {"op": "start", "env": {"PATH": "\udcff\u00e9", "N": "\n"}, "args": ["", "x y"]}
        send(one, body, [writing])
        send(one, {"op": "next"})
        os.close(writing)
        received = receive(other)
        assert received is not None
        frame, (descriptor,) = received
        assert frame == body
        os.write(descriptor, b"through")
        os.close(descriptor)
        assert os.read(reading, 100) == b"through"
        os.close(reading)
        assert receive(other) == ({"op": "next"}, [])


def test_a_frame_larger_than_the_sockets_buffer() -> None:
    one, other = socket.socketpair()
    with one, other:
        body = {"env": {str(number): "x" * 1000 for number in range(2000)}}
        sender = threading.Thread(target=send, args=(one, body))
        sender.start()
        received = receive(other)
        sender.join()
        assert received == (body, [])


def test_the_other_end_is_gone() -> None:
    for sent in (b"", b"\0\0", b"\0\0\0\x10", b"\0\0\0\x10{}"):
        one, other = socket.socketpair()
        with other:
            one.sendall(sent)
            one.close()
            assert receive(other) is None
