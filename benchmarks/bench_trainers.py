"""How does a step grow with the number of trainers at one server, and how fast do 64 MiB travel
beside a raw TCP socket?

Trainers are processes with almost nothing to compute (8 layers of 256 x 256, batch 1: 2 MiB of
parameters), so the server is what is measured. The tables of 64 MiB are taken in turns with a plain
socket that fills a buffer which exists already.

    python benchmarks/bench_trainers.py [--save FILE] [--trainers 1 2 4 8 16] [--large]
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import numpy as np
from bench_cluster import free_ports
from peer import machine

STEPS, WARM = 60, 15
WIDTH, LAYERS = 256, 8
SIZE = 64 << 20
ROUNDS = 15


# -- roles ---------------------------------------------------------------------------------------
def transpiled(trainer: int, endpoint: str, trainers: int):
    import bireme as fluid

    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    with fluid.program_guard(main, startup):
        h = fluid.layers.data("x", [WIDTH])
        for _ in range(LAYERS):
            h = fluid.layers.fc(h, WIDTH, bias_attr=False)
        fluid.optimizer.SGD(0.001).minimize(fluid.layers.mean(h))
    t = fluid.DistributeTranspiler()
    t.transpile(trainer, main, endpoint, trainers, startup_program=startup)
    return t, startup


def serve(endpoint: str, trainers: int) -> None:
    import bireme as fluid

    t, _ = transpiled(0, endpoint, trainers)
    program, startup = t.get_pserver_programs(endpoint)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    exe.run(program)


def store(endpoint: str, rows: int) -> None:
    """A server of one variable of `rows` x 4096 whose update computes nothing."""
    import bireme as fluid
    import bireme.ops  # the rows of the operators
    from bireme.ir import BlockRef

    program, scope = fluid.Program(), fluid.global_scope()
    block = program.global_block()
    for name in ("w", "w@GRAD.trainer_0"):
        block.create_var(name=name, shape=(rows, 4096), dtype="float32", persistable=True)
    scope.var("w").put(np.zeros((rows, 4096), np.float32))
    update = program.add_block(0).idx
    attrs = {
        "endpoint": endpoint,
        "Fanin": 1,
        "distributed_mode": 0,
        "optimize_blocks": [BlockRef(update)],
        "grad_to_block_id": [f"w@GRAD:{update}"],
        "pserver_id": 0,
    }
    given = {"X": ["w@GRAD.trainer_0"]}
    block.append_op(type="listen_and_serv", inputs=given, outputs={}, attrs=attrs)
    fluid.Executor(fluid.CPUPlace()).run(program)


def train(trainer: int, endpoint: str, trainers: int) -> None:
    import bireme as fluid

    t, startup = transpiled(trainer, endpoint, trainers)
    program = t.get_trainer_program()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    feed, times = {"x": np.ones((1, WIDTH), np.float32)}, []
    for _ in range(STEPS):
        began = time.perf_counter()
        exe.run(program, feed=feed)
        times.append(time.perf_counter() - began)
    exe.close()
    print(json.dumps(times), flush=True)


def plain(port: int) -> None:
    """A raw socket's far end: 'p' takes SIZE bytes and says so, 'g' gives them."""
    room = bytearray(SIZE)
    with socket.create_server(("127.0.0.1", port)) as listening:
        connection, _ = listening.accept()
        with connection:
            while word := connection.recv(1):
                if word == b"p":
                    fill(connection, room)
                    connection.sendall(b".")
                else:
                    connection.sendall(room)


def fill(connection: socket.socket, room: bytearray) -> None:
    view, at = memoryview(room), 0
    while at < len(room):
        at += connection.recv_into(view[at:])


# -- measuring -----------------------------------------------------------------------------------
def started(*words: object, **env: str) -> "subprocess.Popen[str]":
    one = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    one["FLAGS_keep_freed_memory"] = "1"  # as `bireme run` does
    command = [sys.executable, __file__, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL,
                            env={**os.environ, **one, **env})  # fmt: skip


@contextmanager
def ended(*children: "subprocess.Popen[str]") -> Iterator[None]:
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


def step_time(trainers: int) -> float:
    """Milliseconds of a step, the median over all trainers."""
    endpoint = f"127.0.0.1:{free_ports(1)[0]}"
    children = [started("--role", "serve", "--endpoint", endpoint, "--trainers", trainers)]
    for rank in range(trainers):
        words = ["--role", "train", "--rank", rank, "--endpoint", endpoint]
        children.append(started(*words, "--trainers", trainers))
    with ended(*children):
        outs = [child.communicate(timeout=300)[0] for child in children[1:]]
    return median(t for out in outs for t in json.loads(out)[WARM:]) * 1e3


def wire_times(shared: bool) -> dict[str, list[float]]:
    """Seconds that 64 MiB take each way, ours and a plain socket's in turns."""
    from bireme import flags
    from bireme.net.grpc_client import GrpcEndpoint
    from bireme.net.heartbeat import times
    from bireme.trainer.trainer import Trainer

    port, plain_port = free_ports(2)
    endpoint = f"127.0.0.1:{port}"
    words = ["--role", "store", "--endpoint", endpoint, "--rank", 4096]
    children = [
        started(*words, FLAGS_rpc_shared_memory=str(int(shared))),
        started("--role", "plain", "--rank", plain_port),
    ]
    found: dict[str, list[float]] = {name: [] for name in ("push", "pull", "tcp push", "tcp pull")}
    flags.set_flags({"rpc_shared_memory": shared})
    with ended(*children):
        trainer = Trainer(0, lambda at: GrpcEndpoint(at, 6.0), times())
        server = trainer.servers.server(endpoint)
        gradient, room = np.ones((4096, 4096), np.float32), bytearray(SIZE)
        raw = connected(plain_port)
        for _ in range(ROUNDS + 2):
            began = time.perf_counter()
            server.push({"w@GRAD.trainer_0": gradient})
            server.barrier()
            server.pull(())
            server.result()
            found["push"].append(time.perf_counter() - began)
            began = time.perf_counter()
            server.pull(("w",))
            server.result()
            found["pull"].append(time.perf_counter() - began)
            began = time.perf_counter()
            raw.sendall(b"p")
            raw.sendall(gradient)
            raw.recv(1)
            found["tcp push"].append(time.perf_counter() - began)
            began = time.perf_counter()
            raw.sendall(b"g")
            fill(raw, room)
            found["tcp pull"].append(time.perf_counter() - began)
        raw.close()
        trainer.silence()
    return {name: seconds[2:] for name, seconds in found.items()}


def large(shared: bool) -> str:
    """Push 3 GiB as one variable and pull what the server then holds; seconds each way."""
    from bireme import flags
    from bireme.net.grpc_client import GrpcEndpoint
    from bireme.net.heartbeat import times
    from bireme.trainer.trainer import Trainer

    flags.set_flags({"rpc_shared_memory": shared})
    rows, name = (3 << 30) // (4 * 4096), "w@GRAD.trainer_0"
    endpoint = f"127.0.0.1:{free_ports(1)[0]}"
    words = ["--role", "store", "--endpoint", endpoint, "--rank", rows]
    with ended(started(*words, FLAGS_rpc_shared_memory=str(int(shared)))):
        trainer = Trainer(0, lambda at: GrpcEndpoint(at, 6.0), times())
        gradient = np.zeros((rows, 4096), np.float32)
        marks = [(0, 0), (rows // 3, 17), (rows - 1, 4095)]
        for at in marks:
            gradient[at] = 1 + at[0]
        trainer.servers.greet([endpoint])
        began = time.perf_counter()
        trainer.servers.push(endpoint, name, gradient)
        trainer.servers.barrier([endpoint], strict=True)
        trainer.servers.exchange({endpoint: ()})
        pushed = time.perf_counter()
        found = trainer.servers.exchange({endpoint: (name,)})[endpoint][name]
        pulled = time.perf_counter()
        trainer.silence()
    whole = found.shape == gradient.shape and all(found[at] == gradient[at] for at in marks)
    how = "shared memory" if shared else "sockets"
    verdict = "as it was sent" if whole and np.count_nonzero(found) == 3 else "DAMAGED"
    return f"{how:16}{pushed - began:>8.1f}{pulled - pushed:>8.1f}   {verdict}"


def connected(port: int) -> socket.socket:
    until = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


# -- tables --------------------------------------------------------------------------------------
def curve(counts: list[int]) -> Iterator[str]:
    yield "step time at one server, 2 MiB of parameters, sync"
    yield f"{'trainers':>8}{'ms per step':>14}{'ms per trainer':>16}"
    for count in counts:
        took = step_time(count)
        yield f"{count:>8}{took:>14.2f}{took / count:>16.2f}"


def wires(shared: bool) -> Iterator[str]:
    found = wire_times(shared)
    yield f"64 MiB through {'shared memory' if shared else 'sockets'}, GB/s"
    yield f"{'':6}{'bireme':>10}{'raw TCP':>10}{'share':>8}"
    for way in ("push", "pull"):
        ours, raw = (SIZE / median(found[name]) / 1e9 for name in (way, f"tcp {way}"))
        yield f"{way:6}{ours:>10.2f}{raw:>10.2f}{ours / raw:>8.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--save", type=Path)
    parser.add_argument("--large", action="store_true", help="3 GiB instead; takes 12 GiB")
    parser.add_argument("--role", choices=["serve", "store", "train", "plain"])
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--endpoint", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.large:
        print("one variable of 3 GiB, s      push    pull   came back")
        return print(large(True), large(False), sep="\n")
    if given.role == "plain":
        return plain(given.rank)
    if given.role == "train":
        return train(given.rank, given.endpoint, given.trainers[0])
    if given.role == "store":
        return store(given.endpoint, given.rank)
    if given.role == "serve":
        return serve(given.endpoint, given.trainers[0])
    lines = [machine(), ""]
    print("\n".join(lines))
    for table in (wires(False), iter([""]), wires(True), iter([""]), curve(given.trainers)):
        for line in table:
            lines.append(line)
            print(line, flush=True)
    if given.save:
        given.save.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
