"""Deep interest network on parameter servers; every process is told its role by arguments."""
from __future__ import print_function

import argparse
import os
import pickle
import random

import numpy as np
import paddle.fluid as fluid

ITEMS, CATEGORIES = 40, 6


def parse_args():
    parser = argparse.ArgumentParser("din")
    parser.add_argument("--config_path", type=str, default="config.pkl")
    parser.add_argument("--train_dir", type=str, default="paddle_train")
    parser.add_argument("--model_dir", type=str, default="din_amazon")
    parser.add_argument("--init_model", type=str, default="")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--epoch_num", type=int, default=10)
    parser.add_argument("--base_lr", type=float, default=2.0)
    parser.add_argument("--use_cuda", type=int, default=0)
    parser.add_argument("--is_local", type=int, default=1)
    parser.add_argument("--role", type=str, default="trainer", help="trainer or pserver")
    parser.add_argument("--endpoints", type=str, default="127.0.0.1:6000")
    parser.add_argument("--current_endpoint", type=str, default="127.0.0.1:6000")
    parser.add_argument("--trainer_id", type=int, default=0)
    parser.add_argument("--trainers", type=int, default=1)
    return parser.parse_args()


def write_reviews(args):
    """A line: bought items; their categories; the item shown; its category; label."""
    rng = random.Random(5)
    category_of = [rng.randrange(CATEGORIES) for _ in range(ITEMS)]
    lines = []
    for _ in range(128):
        liked = rng.randrange(CATEGORIES)
        pool = [i for i in range(ITEMS) if category_of[i] == liked] or [0]
        bought = [rng.choice(pool) for _ in range(rng.randint(2, 6))]
        shown = rng.choice(pool) if rng.random() < 0.5 else rng.randrange(ITEMS)
        label = int(category_of[shown] == liked)
        lines.append(";".join([
            " ".join(str(i) for i in bought), " ".join(str(category_of[i]) for i in bought),
            str(shown), str(category_of[shown]), str(label)]))
    for name in [args.config_path, args.train_dir]:
        if os.path.dirname(name) and not os.path.isdir(os.path.dirname(name)):
            os.makedirs(os.path.dirname(name))
    draft = "%s.%d" % (args.train_dir, os.getpid())
    with open(draft, "w") as out:
        out.write("\n".join(lines) + "\n")
    os.rename(draft, args.train_dir)
    with open(draft, "wb") as out:
        pickle.dump((0, ITEMS, CATEGORIES, 6), out, protocol=2)
    os.rename(draft, args.config_path)


def din_attention(hist, target_expand, max_len, mask):
    """Weigh what was bought by how near it is to what is shown."""
    hidden_size = hist.shape[-1]
    concat = fluid.layers.concat(
        [hist, target_expand, hist - target_expand, hist * target_expand], axis=2)
    fc1 = fluid.layers.fc(
        name="fc1", input=concat, size=16, act="sigmoid", num_flatten_dims=2)
    fc2 = fluid.layers.fc(name="fc2", input=fc1, size=8, act="sigmoid", num_flatten_dims=2)
    fc3 = fluid.layers.fc(name="fc3", input=fc2, size=1, act=None, num_flatten_dims=2)
    fc3 += mask
    weight = fluid.layers.reshape(x=fc3, shape=[-1, 1, max_len])
    weight = fluid.layers.scale(x=weight, scale=hidden_size**-0.5)
    weight = fluid.layers.softmax(weight)
    out = fluid.layers.matmul(weight, hist)
    return fluid.layers.reshape(x=out, shape=[0, hidden_size])


def network(args, item_count, cat_count, max_len):
    emb_size = 8
    hist_item = fluid.layers.data(name="hist_item_seq", shape=[max_len], dtype="int64")
    hist_cat = fluid.layers.data(name="hist_cat_seq", shape=[max_len], dtype="int64")
    target_item = fluid.layers.data(name="target_item", shape=[1], dtype="int64")
    target_cat = fluid.layers.data(name="target_cat", shape=[1], dtype="int64")
    label = fluid.layers.data(name="label", shape=[1], dtype="float32")
    mask = fluid.layers.data(name="mask", shape=[max_len, 1], dtype="float32")
    inputs = [hist_item, hist_cat, target_item, target_cat, label, mask]

    def embedded(ids, size, name):
        return fluid.embedding(
            input=ids, size=[size, emb_size], is_sparse=True,
            param_attr=fluid.ParamAttr(
                name=name, initializer=fluid.initializer.Uniform(low=-0.3, high=0.3)))

    hist = fluid.layers.concat(
        [embedded(hist_item, item_count, "item_emb"), embedded(hist_cat, cat_count, "cat_emb")],
        axis=2)
    target = fluid.layers.concat(
        [embedded(fluid.layers.squeeze(target_item, [1]), item_count, "item_emb"),
         embedded(fluid.layers.squeeze(target_cat, [1]), cat_count, "cat_emb")], axis=1)
    target_expand = fluid.layers.expand(
        fluid.layers.unsqueeze(target, [1]), expand_times=[1, max_len, 1])
    seq = din_attention(hist, target_expand, max_len, mask)
    seq_fc = fluid.layers.fc(name="list_fc", input=seq, size=emb_size * 2)
    embedding_concat = fluid.layers.concat([seq_fc, target, seq_fc * target], axis=1)
    hidden = fluid.layers.fc(name="dim_fc", input=embedding_concat, size=16, act="sigmoid")
    logit = fluid.layers.fc(name="fc_out", input=hidden, size=1)
    item_b = fluid.layers.embedding(
        input=target_item, is_sparse=True, size=[item_count, 1],
        param_attr=fluid.ParamAttr(
            name="item_b", initializer=fluid.initializer.Constant(value=0.0)))
    logit = logit + item_b
    loss = fluid.layers.sigmoid_cross_entropy_with_logits(x=logit, label=label)
    return inputs, fluid.layers.mean(loss)


def batches(args, max_len):
    lines = open(args.train_dir).read().split("\n")[:-1]
    if not args.is_local:
        lines = lines[args.trainer_id::args.trainers]
    for start in range(0, len(lines), args.batch_size):
        rows = [line.split(";") for line in lines[start:start + args.batch_size]]

        def padded(column):
            rows_of = [[int(i) for i in row[column].split()] for row in rows]
            return np.array([r + [0] * (max_len - len(r)) for r in rows_of], dtype="int64")

        lengths = [len(row[0].split()) for row in rows]
        mask = np.array([[0.0] * n + [-1e9] * (max_len - n) for n in lengths], dtype="float32")
        yield {
            "hist_item_seq": padded(0),
            "hist_cat_seq": padded(1),
            "target_item": np.array([[int(row[2])] for row in rows]),
            "target_cat": np.array([[int(row[3])] for row in rows]),
            "label": np.array([[float(row[4])] for row in rows], dtype="float32"),
            "mask": mask[:, :, np.newaxis],
        }


def train():
    args = parse_args()
    write_reviews(args)  # every process writes the same
    with open(args.config_path, "rb") as f:
        _, item_count, cat_count, max_len = pickle.load(f)

    inputs, avg_cost = network(args, item_count, cat_count, max_len)
    fluid.clip.set_gradient_clip(clip=fluid.clip.GradientClipByGlobalNorm(clip_norm=5.0))
    base_lr = args.base_lr
    boundaries, values = [64], [base_lr, base_lr * 0.5]
    optimizer = fluid.optimizer.SGD(
        learning_rate=fluid.layers.piecewise_decay(boundaries=boundaries, values=values))
    optimizer.minimize(avg_cost)

    place = fluid.CUDAPlace(0) if args.use_cuda else fluid.CPUPlace()
    exe = fluid.Executor(place)

    def train_loop(main_program):
        for epoch in range(args.epoch_num):
            total, count = 0.0, 0
            for feed in batches(args, max_len):
                results = exe.run(main_program, feed=feed, fetch_list=[avg_cost])
                total += results[0][0]
                count += 1
            print("epoch: %d\tglobal_step: %d\ttrain_loss: %.6f" % (
                epoch, (epoch + 1) * count, total / count))
        if args.trainer_id == 0:
            fluid.io.save_persistables(exe, args.model_dir, main_program)
            fluid.io.save_inference_model(
                dirname=args.model_dir + "_infer", feeded_var_names=[v.name for v in inputs],
                target_vars=[avg_cost], executor=exe, main_program=main_program)
            print("model saved in %s" % args.model_dir)

    if args.is_local:
        fluid.default_startup_program().random_seed = 90
        exe.run(fluid.default_startup_program())
        if args.init_model:
            fluid.io.load_vars(
                exe, args.init_model, fluid.default_main_program(),
                predicate=lambda var: os.path.exists(os.path.join(args.init_model, var.name)))
        train_loop(fluid.default_main_program())
        return
    t = fluid.DistributeTranspiler()
    t.transpile(
        args.trainer_id, pservers=args.endpoints, trainers=args.trainers)
    if args.role == "pserver":
        prog = t.get_pserver_program(args.current_endpoint)
        startup = t.get_startup_program(args.current_endpoint, pserver_program=prog)
        exe.run(startup)
        exe.run(prog)
    elif args.role == "trainer":
        exe.run(fluid.default_startup_program())
        train_loop(t.get_trainer_program())
        exe.close()


if __name__ == "__main__":
    train()
