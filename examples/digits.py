"""Handwritten digits, one script for every role: local, parameter server, trainer, or all-reduce.

    python examples/digits.py                                       one process
    bireme launch --servers 2 --trainers 2 examples/digits.py       parameter servers
    bireme launch --servers 2 --trainers 2 examples/digits.py --mode async
    bireme launch --mode nccl2 --trainers 2 examples/digits.py      all-reduce

The environment says which role a process plays; model and training loop are the same in all.
"""

import argparse
from pathlib import Path

import digits_data
import digits_report

import bireme as fluid
from bireme.fleet.progress import report
from bireme.fleet.role_maker import Role
from bireme.transpiler import GeoSgdTranspiler

BESIDE = ("async", "half_async", "geo")  # modes in which a Communicator sends and receives
GEO_STEPS = 10  # steps that a trainer of geo-SGD makes on its own


def build(size, rate, momentum):
    """The model: two layers, cross entropy, momentum."""
    pixels = fluid.layers.data(name="pixels", shape=[size], dtype="float32")
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    hidden = fluid.layers.fc(pixels, size=512, act="relu")
    guess = fluid.layers.fc(hidden, size=10, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(input=guess, label=label))
    accuracy = fluid.layers.accuracy(input=guess, label=label)
    test = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.Momentum(learning_rate=rate, momentum=momentum).minimize(loss)
    return guess, loss, accuracy, test


def distribute(role, mode):
    """The transpiler of this role; None when there is nothing to distribute."""
    if role.kind == "local":
        return None
    config = fluid.DistributeTranspilerConfig()
    config.mode = "nccl2" if mode == "nccl2" else "pserver"
    if mode in BESIDE:
        config.sync_mode, config.runtime_split_send_recv = False, mode != "geo"
        config.half_async = mode == "half_async"
    t = (GeoSgdTranspiler if mode == "geo" else fluid.DistributeTranspiler)(config=config)
    if mode == "nccl2":
        t.transpile(
            role.trainer_id,
            trainers=",".join(role.trainer_endpoints),
            current_endpoint=role.endpoint,
        )
    else:
        t.transpile(
            role.trainer_id,
            pservers=",".join(role.servers),
            trainers=role.trainers,
            sync_mode=mode not in BESIDE,
        )
    return t


def communicate(t, program, mode, role):
    """What sends and receives beside training; None where the program does so itself."""
    if t is None or mode not in BESIDE:
        return None
    if mode != "geo":
        return fluid.communicator.Communicator(program)
    told = {"push_vars": t.vars_info, "trainers": role.trainers, "push_nums": GEO_STEPS}
    return fluid.communicator.Communicator(program, kwargs=told)


def serve(t, endpoint):
    """A server's whole life: run until every trainer has finished."""
    program, startup = t.get_pserver_programs(endpoint)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    exe.run(program)


def train(exe, program, fetch, digits, options, role):
    """All epochs."""
    step, samples, total = 0, 0, options.epochs * (len(digits) // options.batch)
    for epoch in range(options.epochs):
        for batch in digits.batches(options.batch, epoch, role.trainer_id, role.trainers):
            feed = {"pixels": batch.pixels, "label": batch.labels}
            loss, accuracy = (
                float(v.item()) for v in exe.run(program, feed=feed, fetch_list=fetch)
            )
            step, samples = step + 1, samples + len(batch)
            report(step=step, loss=loss, accuracy=accuracy, samples=samples, total=total)


def finish(exe, guess, accuracy, test, digits, options, repeatable):
    """Test the model, save it with its curve, and print what came out."""
    feed = {"pixels": digits.pixels, "label": digits.labels}
    (share,) = exe.run(test, feed=feed, fetch_list=[accuracy])
    scope = fluid.global_scope()
    parameters = [(p.name, scope.find_var(p.name).get_tensor()) for p in test.all_parameters()]
    if options.save:
        folder = Path(options.save)
        folder.mkdir(parents=True, exist_ok=True)
        fluid.io.save_inference_model(str(folder / "model"), ["pixels"], [guess], exe, test)
        print(f"model: {folder / 'model'}")
        fluid.save_curves(folder / "curve.svg", "digits, trainer 0")
    print(f"test accuracy: {share.item():.4f}")
    same = " (the same on every run on this kind of processor)" if repeatable else ""
    print(f"parameters: {digits_report.parameter_hash(parameters)}{same}")


def main(options):
    role = Role.from_env()
    mode = options.mode or ("nccl2" if role.is_collective else "pserver")
    training, held_out = digits_data.load(options.data)
    fluid.default_main_program().random_seed = fluid.default_startup_program().random_seed = 1
    # where every trainer's gradient counts in full instead of their mean, each step is smaller;
    # and late gradients are momentum enough
    rate = options.lr / (role.trainers if mode == "half_async" else 1)
    momentum = 0.0 if mode == "async" else 0.9
    guess, loss, accuracy, test = build(training.pixels.shape[1], rate, momentum)
    t = distribute(role, mode)
    if role.is_server:
        return serve(t, role.endpoint)
    program = fluid.default_main_program()
    if t and mode != "nccl2":
        program = t.get_trainer_program()
        if role.is_first:
            print(t.plan, flush=True)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    communicator = communicate(t, program, mode, role)
    if communicator:
        communicator.start()
    train(exe, program, [loss, accuracy], training, options, role)
    if communicator:
        communicator.stop()
    if role.is_first:
        finish(exe, guess, accuracy, test, held_out, options, mode not in BESIDE)
    exe.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="of all trainers together")
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--mode", choices=["pserver", *BESIDE, "nccl2"], help="default: by role")
    parser.add_argument("--data", metavar="DIR", help="folder of idx .gz files (MNIST's format)")
    parser.add_argument("--save", metavar="DIR", help="write the model and the learning curve here")
    main(parser.parse_args())
