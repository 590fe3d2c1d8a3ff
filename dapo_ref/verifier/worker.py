"""The process side of the pool: a fresh interpreter with sympy and without torch, one task at a time.

It is started with `python -c`, not by multiprocessing, because multiprocessing would run the parent's main
module again and load torch. It ends when the parent closes its socket, by the parent's SIGKILL, or, if the
parent has died during a task, by its own alarm, whose default action no Python code can delay.
"""

import json
import resource
import signal
import socket
import struct

ALARM_AFTER_S = 5.0  # beyond the parent's own time limit
_WARM_UP = (  # fill sympy's caches and load what it imports late
    ("\\sqrt{x} + \\sec x", "\\frac{1}{\\cos x} + \\sqrt{x}"),
    ("\\tan^2 x + e^{-x} + \\sqrt[3]{x+1}", "\\sec^2 x - 1 + \\frac{1}{e^x} + (1+x)^{1/3}"),
    ("\\sin 20^\\circ + \\log_2 3 + i", "\\cos 70^\\circ + \\frac{\\ln 3}{\\ln 2} + i"),
    ("2y + 4x = 6", "y = 3 - 2x"),
    ("1 \\le |x| \\le 2", "[-2, -1] \\cup [1, 2]"),
    ("x^2 > 4", "x < -2 or x > 2"),
)
_LENGTH = struct.Struct("!I")


def send_message(sock: socket.socket, message: object) -> None:
    """Write one message, a length and JSON; lone surrogates survive as escapes."""
    data = json.dumps(message).encode("ascii")
    sock.sendall(_LENGTH.pack(len(data)) + data)


def receive_message(sock: socket.socket) -> object:
    """Read one message.

    Raises:
        EOFError: the other end closed.
    """
    (length,) = _LENGTH.unpack(receive_exactly(sock, _LENGTH.size))
    return json.loads(receive_exactly(sock, length))


def receive_exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = sock.recv(min(count - len(data), 1 << 16))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


def limit_resources(memory_mb: int) -> None:
    """Bound the address space, forbid files and core dumps; Ctrl-C is the parent's affair."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def main(fd: int, memory_mb: int, timeout_s: float) -> None:
    """Load sympy, say so, and answer [answer, reference] with a status until the parent closes the socket."""
    from dapo_ref.verifier.decide import compare
    from dapo_ref.verifier.verdict import Status

    sock = socket.socket(fileno=fd)
    for pair in _WARM_UP:
        compare(*pair, symbolic=True)
    limit_resources(memory_mb)
    try:
        send_message(sock, "ready")
        while True:
            message = receive_message(sock)
            assert isinstance(message, list)
            signal.setitimer(signal.ITIMER_REAL, timeout_s + ALARM_AFTER_S)
            try:
                status = compare(message[0], message[1], symbolic=True)
            except MemoryError:
                send_message(sock, Status.TOO_BIG.value)
                return  # the address space of a process that ran out is not to be trusted again
            signal.setitimer(signal.ITIMER_REAL, 0)
            send_message(sock, status.value)
    except (EOFError, ConnectionError):
        return
