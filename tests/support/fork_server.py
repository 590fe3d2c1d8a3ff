"""Real training processes without their 20 seconds of imports: a process that has imported everything forks
the ranks of a run, and each rank may carry a fault.

    python -m tests.support.fork_server

It reads a run a line and answers with two: the process ids of the ranks, and, at their end, their exit codes
with whether something else stayed behind.

A fault is `{"ranks": [1], "event": "backward", "count": 3, "action": "kill", "step": 2, "update": 1}`: on
these ranks, before the third call of the event in the first update of the second step. Without `update` the
calls are counted from the beginning of the step, without `step` from that of the run. Events are calls of
the functions in `EVENTS`; calls, not seconds, say when, so that a fault falls on the same moment on every
machine. `events` in a run's folder says how many calls there were.
"""

import contextlib
import dataclasses
import errno
import json
import math
import os
import signal
import socket
import sys
import time
from collections import Counter
from pathlib import Path

import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401  DeepSpeed imports it late and it takes seconds
import torch

import train
from dapo_ref.config import Config, load_config
from dapo_ref.distributed import shards
from dapo_ref.distributed.engine import Engine
from dapo_ref.policy.pretrained import load_plain_model
from dapo_ref.run import checkpoint
from dapo_ref.run import folder as run_folder
from dapo_ref.run.command import exit_code, leave
from dapo_ref.run.files import MetricsFile
from dapo_ref.run.manifest import HashingFile
from dapo_ref.run.preemption import StopPoints, StopSignals
from dapo_ref.run.session import Session
from dapo_ref.scoring import Scorer

ANSWER = "answer: "
LONGEST_RUN_S = 400

EVENTS = {
    "token": (StopPoints, "on_token"),
    "score": (Scorer, "score"),
    "gather": (Engine, "gather"),
    "rollouts": (run_folder.RunFolder, "write_rollouts"),
    "may stop": (StopPoints, "if_told"),
    "logprobs": (Engine, "logprobs"),
    "backward": (Engine, "backward"),
    "step": (Engine, "step"),
    "metrics": (MetricsFile, "append"),
    "write": (HashingFile, "write"),
    "close": (HashingFile, "close"),
    "begin": (checkpoint, "_begin"),
    "finish": (checkpoint, "_finish"),
    "manifest": (checkpoint, "write_manifest"),
    "sync": (checkpoint, "sync"),
    "remove": (checkpoint, "_remove"),
    "rmtree": (checkpoint.shutil, "rmtree"),
    "prune": (checkpoint, "_prune"),
    "load": (shards, "_read"),
    "export": (Engine, "export"),
}


class Faults:
    """Counts events on this rank and does what the faults say.

    Attributes:
        place: the step in progress, 0 before the first one, and the update in progress in it, 0 before its
            first one (while responses are sampled and π_old is computed).
        calls: of each event since the beginning of the run, of the step and of the update in progress.
        signals: those that the run takes in, once its loop has begun.
    """

    signals = None

    def __init__(self, faults, rank):
        self.faults = [fault for fault in faults if rank in fault["ranks"]]
        self.place = {"step": 0, "update": 0}
        self.calls = {"run": Counter(), "step": Counter(), "update": Counter()}

    def install(self):
        for event, (owner, name) in EVENTS.items():
            setattr(owner, name, self.counted(event, getattr(owner, name)))
        follow(StopSignals, "loop_begins", lambda signals: setattr(self, "signals", signals))
        follow(Session, "step", lambda run, step, *_: self.enter(step + 1, 0))
        follow(train, "update", lambda *_: self.enter(self.place["step"], self.place["update"] + 1))

    def enter(self, step, update):
        if step != self.place["step"]:
            self.calls["step"].clear()
        self.calls["update"].clear()
        self.place = {"step": step, "update": update}

    def due(self, event):
        """Counts a call of the event; the faults that fall before it."""
        for counter in self.calls.values():
            counter[event] += 1
        return [fault for fault in self.faults if fault["event"] == event and self.is_now(fault)]

    def is_now(self, fault):
        named = {key: fault[key] for key in self.place if key in fault}
        since = "update" if "update" in named else "step" if "step" in named else "run"
        return named.items() <= self.place.items() and fault["count"] == self.calls[since][fault["event"]]

    def counted(self, event, function):
        def wrapper(*args, **kwargs):
            for fault in self.due(event):
                act(fault, args)
                if fault["action"] in ("SIGTERM", "SIGINT"):
                    self.wait_for_signal()
            return function(*args, **kwargs)

        return wrapper

    def wait_for_signal(self):
        """A thread takes it in; where the loop finds it must not depend on how soon."""
        while not self.signals.received:
            time.sleep(0.001)


def follow(owner, name, before):
    """Calls `before` in front of a function, with its arguments."""
    function = getattr(owner, name)

    def wrapper(*args):
        before(*args)
        return function(*args)

    setattr(owner, name, wrapper)


def act(fault, args):
    """Does the damage."""
    action = fault["action"]
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "kill all":
        os.killpg(os.getpgid(0), signal.SIGKILL)
    elif action == "kill in a line":  # of the metrics
        with args[0].path.open("a") as file:
            file.write(json.dumps(args[1])[:30])
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "no space":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    elif action.startswith("fill "):  # a file that leaves no room on its disk
        fill(Path(action.removeprefix("fill ")))
    elif action in ("SIGTERM", "SIGINT"):
        os.kill(os.getpid(), getattr(signal, action))
    elif action == "twice":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1.5)  # longer than two signals may be apart to count as one
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    elif action == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action == "hang":
        time.sleep(600)
    elif action == "raise":
        raise ZeroDivisionError("a fault of the program")
    else:
        raise ValueError(action)


def fill(file):
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as out:
        while out.write(bytes(2**16)):
            pass


def poison(faults):
    """Makes the loss of counted micro-batches nan, or inf with a gradient that is finite."""
    build = train.build_objective

    def poisoned(config):
        objective = build(config)

        def loss(*args):
            value = objective.loss(*args)
            for fault in faults.due("loss"):
                value = value + (math.inf if fault["action"] == "inf" else value * math.nan)
            return value

        return dataclasses.replace(objective, loss=loss)

    train.build_objective = poisoned


def reshard(argv):
    """Loads a checkpoint with this number of processes and writes it anew; the main process writes as much of
    a checkpoint as `newest_whole` needs."""
    source, target, *options = argv
    config = load_config(options)
    engine = Engine(config)
    state = json.loads((Path(source) / checkpoint.STATE_FILE).read_text())
    checkpoint.load_state(engine, Path(source), state["num_processes"])
    if engine.is_main:
        Path(target).mkdir()
    engine.barrier()
    checkpoint._write_shard(engine, Path(target))
    engine.barrier()


def run_rank(order, rank, port):
    """The life of one rank."""
    log = os.open(f"{order['log']}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    world = str(order["world"])
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": world,
        "MASTER_ADDR": "127.0.0.1",
    }
    os.environ |= {
        "LOCAL_WORLD_SIZE": world,
        "MASTER_PORT": str(port),
        "ACCELERATE_DEEPSPEED_ZERO3_INIT": "true",
    }
    faults = Faults(order["faults"], rank)
    faults.install()
    poison(faults)
    code = exit_code(reshard if order.get("reshard") else train.main, order["argv"])
    Path(f"{order['log']}.{rank}.events").write_text(json.dumps(faults.calls["run"]))
    leave(code)


def fork_run(order):
    """Forks the ranks, in a process group of their own; returns their ids."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pids = []
    for rank in range(order["world"]):
        pid = os.fork()
        if pid == 0:
            try:
                run_rank(order, rank, port)
            finally:
                os._exit(99)
        pids.append(pid)
        os.setpgid(pid, pids[0])  # from here: a child could find its leader not to be one yet
    return pids


def serve():
    torch.set_num_threads(1)
    load_plain_model(Config())  # imports the model's module
    for line in sys.stdin:
        order = json.loads(line)
        pids = fork_run(order)
        answer(pids)
        answer([*wait_for(pids, order["left_behind"]), count_orphans(pids[0])])


def wait_for(pids, left_behind):
    """Exit codes of the ranks. Those that are left behind, frozen say, are killed when the others have ended,
    as a launcher would; all are, when a run takes absurdly long."""
    codes = {}
    deadline = time.monotonic() + LONGEST_RUN_S
    while len(codes) < len(pids):
        others = [pid for rank, pid in enumerate(pids) if rank not in left_behind]
        if all(pid in codes for pid in others) or time.monotonic() > deadline:
            for pid in set(pids) - set(codes):
                os.kill(pid, signal.SIGKILL)
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            codes[pid] = os.waitstatus_to_exitcode(status)
        else:
            time.sleep(0.02)
    return [codes[pid] for pid in pids]


def count_orphans(group):
    """Processes of the run's group that stay behind after a while; there are none."""
    for _ in range(3000):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return 0
        time.sleep(0.02)
    os.killpg(group, signal.SIGKILL)
    return 1


def answer(content):
    """A line that can be told from those that libraries print when they are imported."""
    print(ANSWER + json.dumps(content), flush=True)


if __name__ == "__main__":
    serve()
