"""DeepFM on click logs: a dataset with a pipe command, which is this file's second face."""
from __future__ import print_function

import argparse
import os
import sys

import numpy as np
import paddle
import paddle.fluid as fluid
import paddle.fluid.incubate.data_generator as dg

DENSE = 13
FIELDS = 26


def parse_args():
    parser = argparse.ArgumentParser("deepfm")
    parser.add_argument("--mode", type=str, default="train", help="train or read")
    parser.add_argument("--data_dir", type=str, default="data")
    parser.add_argument("--num_feat", type=int, default=200)
    parser.add_argument("--embedding_size", type=int, default=8)
    parser.add_argument("--layer_sizes", type=str, default="32,16")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--num_epoch", type=int, default=4)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--reg", type=float, default=1e-4)
    parser.add_argument("--num_thread", type=int, default=1)
    parser.add_argument("--init_model", type=str, default="")
    parser.add_argument("--model_dir", type=str, default="model")
    return parser.parse_args()


class CriteoDataset(dg.MultiSlotDataGenerator):
    """A line: label, 13 counts, 26 ids, with tabs between them."""

    def generate_sample(self, line):
        def reader():
            columns = line.rstrip("\n").split("\t")
            dense = [float(x) if x else 0.0 for x in columns[1:1 + DENSE]]
            ids = [int(x) for x in columns[1 + DENSE:]]
            yield [("dense", dense), ("feat_ids", ids), ("label", [int(columns[0])])]

        return reader


def write_logs(args):
    """Two parts of training logs and one for the test."""
    rng = np.random.RandomState(7)
    taste = rng.randn(args.num_feat)
    if not os.path.isdir(args.data_dir):
        os.makedirs(args.data_dir)
    paths = []
    for part in ["part-0", "part-1", "test"]:
        paths.append(os.path.join(args.data_dir, part))
        with open(paths[-1], "w") as out:
            for _ in range(128):
                dense = rng.rand(DENSE)
                ids = rng.randint(0, args.num_feat, FIELDS)
                clicked = int(taste[ids].sum() + dense.sum() > DENSE / 2.0)
                row = [clicked] + ["%.3f" % x for x in dense] + list(ids)
                out.write("\t".join(str(x) for x in row) + "\n")
    return paths


def deepfm(args, dense, feat_ids, label):
    init = fluid.initializer.TruncatedNormalInitializer(loc=0.0, scale=0.05)
    reg = fluid.regularizer.L2DecayRegularizer(args.reg)

    # first order
    first_weights = fluid.layers.embedding(
        input=feat_ids, is_sparse=False, size=[args.num_feat, 1], dtype="float32",
        param_attr=fluid.ParamAttr(name="first_weights", initializer=init, regularizer=reg))
    first_weights = fluid.layers.reshape(first_weights, shape=[-1, FIELDS])
    y_first = fluid.layers.reduce_sum(first_weights, 1, keep_dim=True)
    y_dense = fluid.layers.fc(
        input=dense, size=1, param_attr=fluid.ParamAttr(name="dense_weights", initializer=init))

    # second order: half of the square of the sum, less the sum of the squares
    embeddings = fluid.layers.embedding(
        input=feat_ids, is_sparse=False, size=[args.num_feat, args.embedding_size],
        dtype="float32", param_attr=fluid.ParamAttr(name="feat_emb", initializer=init))
    embeddings = fluid.layers.reshape(embeddings, shape=[-1, FIELDS, args.embedding_size])
    sum_square = fluid.layers.square(fluid.layers.reduce_sum(embeddings, 1))
    square_sum = fluid.layers.reduce_sum(fluid.layers.square(embeddings), 1)
    y_second = 0.5 * fluid.layers.reduce_sum(sum_square - square_sum, 1, keep_dim=True)

    # the deep part
    y_deep = fluid.layers.reshape(embeddings, [-1, FIELDS * args.embedding_size])
    for size in [int(s) for s in args.layer_sizes.split(",")]:
        y_deep = fluid.layers.fc(
            input=y_deep, size=size, act="relu",
            param_attr=fluid.ParamAttr(initializer=fluid.initializer.Xavier()),
            bias_attr=fluid.ParamAttr(initializer=init))
    y_deep = fluid.layers.fc(input=y_deep, size=1)

    predict = fluid.layers.sigmoid(y_first + y_dense + y_second + y_deep)
    cost = fluid.layers.log_loss(input=predict, label=fluid.layers.cast(label, "float32"))
    avg_cost = fluid.layers.reduce_sum(cost) / fluid.layers.cast(
        fluid.layers.shape(cost)[0], "float32")
    two = fluid.layers.concat([1 - predict, predict], axis=1)
    auc, batch_auc, auc_states = fluid.layers.auc(
        input=two, label=fluid.layers.cast(label, "int64"), num_thresholds=2**12)
    return avg_cost, auc


def evaluate(exe, program, names, fetches, path, place):
    generator = CriteoDataset()
    feeder = fluid.DataFeeder(feed_list=names, place=place, program=program)

    def samples():
        for line in open(path):
            for slots in generator.generate_sample(line)():
                yield [values for _, values in slots]

    losses = []
    for batch in paddle.batch(samples, batch_size=64)():
        loss, auc = exe.run(program, feed=feeder.feed(batch), fetch_list=fetches)
        losses.append(loss[0])
    return np.mean(losses), auc


def train(args):
    paths = write_logs(args)
    dense = fluid.layers.data(name="dense", shape=[DENSE], dtype="float32")
    feat_ids = fluid.layers.data(name="feat_ids", shape=[FIELDS, 1], dtype="int64")
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    avg_cost, auc = deepfm(args, dense, feat_ids, label)
    test_program = fluid.default_main_program().clone(for_test=True)
    optimizer = fluid.optimizer.Adam(learning_rate=args.lr, lazy_mode=True)
    optimizer.minimize(avg_cost)

    place = fluid.CPUPlace()
    exe = fluid.Executor(place)
    fluid.default_startup_program().random_seed = 90
    exe.run(fluid.default_startup_program())
    if args.init_model:
        fluid.io.load_persistables(exe, args.init_model, fluid.default_main_program())

    dataset = fluid.DatasetFactory().create_dataset("QueueDataset")
    dataset.set_use_var([dense, feat_ids, label])
    dataset.set_pipe_command("%s %s --mode read --num_feat %d" % (
        sys.executable, os.path.abspath(__file__), args.num_feat))
    dataset.set_batch_size(args.batch_size)
    dataset.set_thread(args.num_thread)
    dataset.set_filelist(paths[:2])

    for epoch in range(args.num_epoch):
        exe.train_from_dataset(
            program=fluid.default_main_program(), dataset=dataset,
            fetch_list=[avg_cost, auc], fetch_info=["epoch %d cost" % epoch, "auc"],
            print_period=100, debug=False)
        loss, area = evaluate(
            exe, test_program, ["dense", "feat_ids", "label"], [avg_cost, auc], paths[0], place)
        print("epoch %d, loss: %.6f, auc %f" % (epoch, loss, area))
    fluid.io.save_persistables(exe, args.model_dir, fluid.default_main_program())
    fluid.io.save_inference_model(
        os.path.join(args.model_dir, "infer"), ["dense", "feat_ids", "label"], [avg_cost, auc], exe)


if __name__ == "__main__":
    arguments = parse_args()
    if arguments.mode == "read":
        CriteoDataset().run_from_stdin()
    else:
        train(arguments)
