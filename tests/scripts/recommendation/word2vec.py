"""Skip-gram with negative samples: sparse tables on servers, py_reader, roles by arguments."""
from __future__ import print_function

import argparse
import os

import numpy as np
import paddle.fluid as fluid


def parse_args():
    parser = argparse.ArgumentParser(description="PaddlePaddle Word2vec example")
    parser.add_argument("--train_data_dir", type=str, default="data/text.txt")
    parser.add_argument("--dict_path", type=str, default="data/dict.txt")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--num_passes", type=int, default=5)
    parser.add_argument("--model_output_dir", "--model_dir", dest="model_dir", default="models")
    parser.add_argument("--init_model", type=str, default="")
    parser.add_argument("--nce_num", type=int, default=3)
    parser.add_argument("--embedding_size", type=int, default=16)
    parser.add_argument("--base_lr", type=float, default=1.0)
    parser.add_argument("--is_local", action="store_true", default=False)
    parser.add_argument("--is_sparse", action="store_true", default=False)
    parser.add_argument("--role", type=str, default="trainer", help="pserver or trainer")
    parser.add_argument("--endpoints", type=str, default="127.0.0.1:6000")
    parser.add_argument("--current_endpoint", type=str, default="127.0.0.1:6000")
    parser.add_argument("--trainer_id", type=int, default=0)
    parser.add_argument("--trainers", type=int, default=1)
    parser.add_argument("--use_async", action="store_true", default=False)
    return parser.parse_args()


def write_text(args):
    """Sentences in which words of one subject stand together."""
    rng = np.random.RandomState(2)
    folder = os.path.dirname(args.train_data_dir)
    if not os.path.isdir(folder):
        os.makedirs(folder)
    words = ["%s%d" % (subject, i) for subject in "abcd" for i in range(6)]
    draft = "%s.%d" % (args.train_data_dir, os.getpid())
    with open(draft, "w") as out:
        for _ in range(40):
            subject = rng.randint(4)
            out.write(" ".join(words[subject * 6 + rng.randint(6)] for _ in range(8)) + "\n")
    os.rename(draft, args.train_data_dir)
    with open(draft, "w") as out:
        for i, word in enumerate(words):
            out.write("%s %d\n" % (word, 80 - i))
    os.rename(draft, args.dict_path)


class Word2VecReader(object):
    def __init__(self, args, window_size=2):
        self.window_size_ = window_size
        self.word_to_id_ = dict()
        counts = []
        with open(args.dict_path) as f:
            for line in f:
                word, count = line.split()
                self.word_to_id_[word] = len(counts)
                counts.append(int(count))
        self.dict_size = len(counts)
        power = np.array(counts, dtype="float64")**0.75
        self.cs = (power / power.sum()).cumsum()
        self.args = args

    def train(self):
        def pairs():
            part, parts = self.args.trainer_id, self.args.trainers
            with open(self.args.train_data_dir) as f:
                lines = f.readlines()
            for line in lines[part::parts]:
                ids = [self.word_to_id_[w] for w in line.split()]
                for i, target in enumerate(ids):
                    low = max(0, i - self.window_size_)
                    for context in ids[low:i] + ids[i + 1:i + 1 + self.window_size_]:
                        yield target, context

        def reader():
            rng = np.random.RandomState(9)
            batch = []
            for pair in pairs():
                batch.append(pair)
                if len(batch) == self.args.batch_size:
                    left, right = zip(*batch)
                    negatives = np.searchsorted(
                        self.cs, rng.random_sample(len(batch) * self.args.nce_num))
                    yield (np.array(left).reshape(-1, 1), np.array(right).reshape(-1, 1),
                           negatives.reshape(-1, self.args.nce_num))
                    batch = []

        return reader


def skip_gram_word2vec(dict_size, args):
    py_reader = fluid.layers.create_py_reader_by_data(
        capacity=64,
        feed_list=[
            fluid.layers.data(name="input_word", shape=[1], dtype="int64"),
            fluid.layers.data(name="true_label", shape=[1], dtype="int64"),
            fluid.layers.data(name="neg_label", shape=[args.nce_num], dtype="int64"),
        ],
        name="train_reader", use_double_buffer=False)
    input_word, true_word, neg_word = fluid.layers.read_file(py_reader)
    size = [dict_size, args.embedding_size]
    init_width = 0.5 / args.embedding_size

    input_emb = fluid.layers.embedding(
        input=input_word, is_sparse=args.is_sparse, size=size,
        param_attr=fluid.ParamAttr(
            name="emb", initializer=fluid.initializer.Uniform(-init_width, init_width)))
    true_emb_w = fluid.layers.embedding(
        input=true_word, is_sparse=args.is_sparse, size=size,
        param_attr=fluid.ParamAttr(
            name="emb_w", initializer=fluid.initializer.Constant(value=0.0)))
    true_emb_b = fluid.layers.embedding(
        input=true_word, is_sparse=args.is_sparse, size=[dict_size, 1],
        param_attr=fluid.ParamAttr(
            name="emb_b", initializer=fluid.initializer.Constant(value=0.0)))
    neg_word_reshape = fluid.layers.reshape(neg_word, shape=[-1, 1])
    neg_word_reshape.stop_gradient = True
    neg_emb_w = fluid.layers.embedding(
        input=neg_word_reshape, is_sparse=args.is_sparse, size=size,
        param_attr=fluid.ParamAttr(name="emb_w", learning_rate=1.0))
    neg_emb_w_re = fluid.layers.reshape(
        neg_emb_w, shape=[-1, args.nce_num, args.embedding_size])
    neg_emb_b = fluid.layers.embedding(
        input=neg_word_reshape, is_sparse=args.is_sparse, size=[dict_size, 1],
        param_attr=fluid.ParamAttr(name="emb_b", learning_rate=1.0))
    neg_emb_b_vec = fluid.layers.reshape(neg_emb_b, shape=[-1, args.nce_num])

    true_logits = fluid.layers.elementwise_add(
        fluid.layers.reduce_sum(
            fluid.layers.elementwise_mul(input_emb, true_emb_w), dim=1, keep_dim=True),
        true_emb_b)
    input_emb_re = fluid.layers.reshape(input_emb, shape=[-1, 1, args.embedding_size])
    neg_matmul = fluid.layers.matmul(input_emb_re, neg_emb_w_re, transpose_y=True)
    neg_matmul_re = fluid.layers.reshape(neg_matmul, shape=[-1, args.nce_num])
    neg_logits = fluid.layers.elementwise_add(neg_matmul_re, neg_emb_b_vec)

    label_ones = fluid.layers.fill_constant_batch_size_like(
        true_logits, shape=[-1, 1], value=1.0, dtype="float32")
    label_zeros = fluid.layers.fill_constant_batch_size_like(
        true_logits, shape=[-1, args.nce_num], value=0.0, dtype="float32")
    true_xent = fluid.layers.sigmoid_cross_entropy_with_logits(true_logits, label_ones)
    neg_xent = fluid.layers.sigmoid_cross_entropy_with_logits(neg_logits, label_zeros)
    cost = fluid.layers.elementwise_add(
        fluid.layers.reduce_sum(true_xent, dim=1), fluid.layers.reduce_sum(neg_xent, dim=1))
    return fluid.layers.reduce_mean(cost), py_reader


def train_loop(args, exe, train_program, word2vec_reader, py_reader, loss):
    py_reader.decorate_tensor_provider(word2vec_reader.train())
    for pass_id in range(args.num_passes):
        py_reader.start()
        batch_id, losses = 0, []
        try:
            while True:
                loss_val = exe.run(train_program, fetch_list=[loss.name])
                losses.append(np.mean(loss_val))
                batch_id += 1
        except fluid.core.EOFException:
            py_reader.reset()
        print("TRAIN --> pass: {} batches: {} loss: {}".format(
            pass_id, batch_id, "%.6f" % np.mean(losses)))
    if args.trainer_id == 0:
        fluid.io.save_persistables(exe, args.model_dir, train_program)


def train(args):
    write_text(args)  # every process writes the same
    word2vec_reader = Word2VecReader(args)
    loss, py_reader = skip_gram_word2vec(word2vec_reader.dict_size, args)
    optimizer = fluid.optimizer.SGD(
        learning_rate=fluid.layers.exponential_decay(
            learning_rate=args.base_lr, decay_steps=100, decay_rate=0.999, staircase=True))
    optimizer.minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())

    if args.is_local:
        fluid.default_startup_program().random_seed = 90
        exe.run(fluid.default_startup_program())
        if args.init_model:
            fluid.io.load_persistables(exe, args.init_model)
        train_loop(args, exe, fluid.default_main_program(), word2vec_reader, py_reader, loss)
        return
    config = fluid.DistributeTranspilerConfig()
    config.sync_mode = not args.use_async
    t = fluid.DistributeTranspiler(config=config)
    t.transpile(args.trainer_id, pservers=args.endpoints, trainers=args.trainers,
                sync_mode=not args.use_async)
    if args.role == "pserver":
        print("run pserver")
        prog = t.get_pserver_program(args.current_endpoint)
        startup = t.get_startup_program(args.current_endpoint, pserver_program=prog)
        exe.run(startup)
        exe.run(prog)
    elif args.role == "trainer":
        print("run trainer")
        exe.run(fluid.default_startup_program())
        train_loop(args, exe, t.get_trainer_program(), word2vec_reader, py_reader, loss)
        exe.close()


if __name__ == "__main__":
    train(parse_args())
