"""Click-through rates with a table that grows: nobody says how many ids there are.

    python examples/ctr.py                                           one process
    bireme launch --servers 2 --trainers 2 examples/ctr.py           parameter servers
    bireme launch --servers 2 --trainers 2 examples/ctr.py --async   without waiting

A wide part adds one number per id, a deep part works on a vector per id. Rows live on the server
that their id names, and come into being when they are first learnt. After every epoch the program
that was cloned before the split is tested, and the area under the curve is that of all trainers.
"""

import argparse

import ctr_data

import bireme as fluid
from bireme.fleet import metrics
from bireme.fleet.progress import report
from bireme.fleet.role_maker import Role


def rows_of(ids, width, name):
    """A vector of `width` numbers for each id, from a table without a size."""
    attr = fluid.ParamAttr(name=name, initializer=fluid.initializer.Uniform(-0.01, 0.01))
    table = {"size": [-1, width], "is_sparse": True, "is_distributed": True}
    rows = fluid.embedding(ids, param_attr=attr, **table)
    return fluid.layers.reshape(rows, [-1, ctr_data.KINDS * width])


def build(rate):
    """The model; the guess has two columns: no click, click."""
    counts = fluid.data("counts", [None, ctr_data.COUNTS])
    ids = fluid.data("ids", [None, ctr_data.KINDS], dtype="int64")
    click = fluid.data("click", [None, 1], dtype="int64")
    wide = fluid.layers.reduce_sum(rows_of(ids, 1, "wide"), dim=1, keep_dim=True)
    deep = fluid.layers.concat([rows_of(ids, 8, "deep"), counts], axis=1)
    for size in (64, 32):
        deep = fluid.layers.fc(deep, size, act="relu")
    guess = fluid.layers.fc([wide, deep], 2, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(guess, click))
    test = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.Adagrad(rate).minimize(loss)
    return guess, loss, test


def distribute(role, waiting):
    """The transpiler of this role; None when there is nothing to distribute."""
    if role.kind == "local":
        return None
    config = fluid.DistributeTranspilerConfig()
    config.sync_mode = waiting
    t = fluid.DistributeTranspiler(config=config)
    servers = ",".join(role.servers)
    t.transpile(role.trainer_id, pservers=servers, trainers=role.trainers, sync_mode=waiting)
    return t


def serve(t, endpoint):
    """A server's whole life: run until every trainer has finished."""
    program, startup = t.get_pserver_programs(endpoint)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    exe.run(program)


def evaluate(exe, test, guess, clicks, options, role):
    """The area under the curve of all trainers, each on its part of the rows."""
    area = fluid.metrics.Auc()
    for feed in clicks.feeds(options.batch, role.trainer_id, role.trainers):
        (found,) = exe.run(test, feed=feed, fetch_list=[guess])
        area.update(found, feed["click"])
    return metrics.auc(area)


def main(options):
    role = Role.from_env()
    training, held_out = ctr_data.load(options.data)
    fluid.default_main_program().random_seed = fluid.default_startup_program().random_seed = 1
    guess, loss, test = build(options.lr)
    t = distribute(role, not options.without_waiting)
    if role.is_server:
        return serve(t, role.endpoint)
    program = t.get_trainer_program() if t else fluid.default_main_program()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    steps = 0
    for epoch in range(options.epochs):
        for feed in training.feeds(options.batch, role.trainer_id, role.trainers):
            (value,) = exe.run(program, feed=feed, fetch_list=[loss])
            steps += 1
            report(step=steps, loss=value.item(), samples=steps * len(feed["click"]))
        area = evaluate(exe, test, guess, held_out, options, role)
        if role.is_first:
            print(f"epoch {epoch + 1}: loss {value.item():.4f}, area {area:.4f}", flush=True)
    exe.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=60, help="of all trainers together")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--async", dest="without_waiting", action="store_true")
    parser.add_argument("--data", metavar="FILE", help="rows of the Criteo set, as CSV or TSV")
    main(parser.parse_args())
