"""The process side of the pool: a small fork server with sympy loaded, and the workers it forks.

It is started with `python -c`, not by multiprocessing, because multiprocessing would run the parent's main
module again in each child and load torch there. Single-threaded, so forking is safe. Everything ends when
the parent does: the server sees its control socket close, and the kernel kills its workers
(PR_SET_PDEATHSIG).

Protocol. Control socket: the parent sends one byte `F` with a socket attached (fork a worker on it) or `K`
and a process id (kill that worker). Worker socket: messages are a length and that many bytes of JSON.
"""

import array
import ctypes
import json
import os
import resource
import select
import signal
import socket
import struct
import sys

_LENGTH = struct.Struct("!I")
_KILL = struct.Struct("!cI")
_PR_SET_PDEATHSIG = 1


def send_message(sock: socket.socket, message: object) -> None:
    """Write one message; lone surrogates survive as JSON escapes."""
    data = json.dumps(message).encode("ascii")
    sock.sendall(_LENGTH.pack(len(data)) + data)


def receive_exactly(sock: socket.socket, count: int) -> bytes:
    """Read `count` bytes.

    Raises:
        EOFError: the other end closed.
    """
    data = bytearray()
    while len(data) < count:
        chunk = sock.recv(min(count - len(data), 1 << 16))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


def receive_message(sock: socket.socket) -> object:
    """Read one message; EOFError when the other end closed."""
    (length,) = _LENGTH.unpack(receive_exactly(sock, _LENGTH.size))
    return json.loads(receive_exactly(sock, length))


def limit_resources(memory_mb: int) -> None:
    """Bound the address space, forbid files and core dumps, and die with the fork server."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def work(sock: socket.socket, memory_mb: int, server_pid: int) -> None:
    """Answer [answer, reference] with a status, one at a time, until the parent closes the socket."""
    from dapo_ref.verifier.equal import compare
    from dapo_ref.verifier.verdict import Status

    limit_resources(memory_mb)
    if os.getppid() != server_pid:  # the server died before prctl took effect
        return
    send_message(sock, os.getpid())
    while True:
        message = receive_message(sock)
        assert isinstance(message, list)
        try:
            status = compare(message[0], message[1], symbolic=True)
        except MemoryError:
            send_message(sock, Status.TOO_BIG.value)
            return  # the address space of a process that ran out is not to be trusted again
        send_message(sock, status.value)


def fork_worker(sock: socket.socket, control: socket.socket, memory_mb: int) -> int:
    """Fork one worker; returns its process id in the server."""
    server_pid = os.getpid()
    pid = os.fork()
    if pid:
        sock.close()
        return pid
    code = 1
    try:
        control.close()
        work(sock, memory_mb, server_pid)
        code = 0
    except (EOFError, ConnectionError):
        code = 0
    finally:
        os._exit(code)  # no clean-up handlers of the server run in its children


def serve(control: socket.socket, memory_mb: int) -> None:
    """Fork and kill on request until the parent is gone."""
    children: set[int] = set()
    while True:
        readable, _, _ = select.select([control], [], [], 1.0)
        reap(children)
        if not readable:
            continue
        data, fds, _, _ = socket.recv_fds(control, _KILL.size, 1)
        if not data:
            return
        command, pid = _KILL.unpack(data + receive_exactly(control, _KILL.size - len(data)))
        if command == b"F":
            children.add(fork_worker(socket.socket(fileno=fds[0]), control, memory_mb))
        elif (
            pid in children
        ):  # only the parent of a process may be sure that its id is still the same process
            os.kill(pid, signal.SIGKILL)


def reap(children: set[int]) -> None:
    """Collect workers that have ended."""
    for pid in list(children):
        done, _ = os.waitpid(pid, os.WNOHANG)
        if done:
            children.discard(pid)


def main(control_fd: int, memory_mb: int) -> None:
    """The fork server's entry point: load the symbolic stage once, say so, and serve."""
    import gc

    from dapo_ref.verifier import equal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's affair
    control = socket.socket(fileno=control_fd)
    equal.is_equivalent(
        "\\sqrt{x} + \\sec x", "\\frac{1}{\\cos x} + \\sqrt{x}"
    )  # fills sympy's first-use caches
    gc.freeze()
    control.sendall(b"R")
    serve(control, memory_mb)


def request_fork(control: socket.socket, worker_end: socket.socket) -> None:
    """Parent side: ask for a worker on `worker_end`, which the parent may close afterwards."""
    fds = array.array("i", [worker_end.fileno()])
    control.sendmsg([_KILL.pack(b"F", 0)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])


def request_kill(control: socket.socket, pid: int) -> None:
    """Parent side: ask for a worker to be killed."""
    control.sendall(_KILL.pack(b"K", pid))
