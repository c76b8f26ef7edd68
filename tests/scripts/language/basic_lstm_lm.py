"""Word language model on text files: contrib's basic_lstm, state carried over batches."""
from __future__ import print_function

import argparse
import os
import time

import numpy as np
import paddle.fluid as fluid
import paddle.fluid.layers as layers
from paddle.fluid.contrib.layers import basic_lstm


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data_path", type=str, default="data")
    parser.add_argument("--hidden_size", type=int, default=24)
    parser.add_argument("--num_layers", type=int, default=2)
    parser.add_argument("--num_steps", type=int, default=8)
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--max_epoch", type=int, default=6)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--base_learning_rate", type=float, default=1.0)
    parser.add_argument("--lr_decay", type=float, default=0.8)
    parser.add_argument("--max_grad_norm", type=float, default=5.0)
    parser.add_argument("--init_scale", type=float, default=0.3)
    parser.add_argument("--init_from_pretrain_model", "--init_model", dest="init_model",
                        type=str, default=None)
    parser.add_argument("--save_model_dir", "--model_dir", dest="model_dir", default="models")
    return parser.parse_args()


def write_ptb(folder):
    rng = np.random.RandomState(1)
    if not os.path.isdir(folder):
        os.makedirs(folder)
    phrases = ["the cat sat on the mat", "a dog ran to the house", "we saw the red bird"]
    for name, lines in [("train", 120), ("valid", 12)]:
        with open(os.path.join(folder, "ptb.%s.txt" % name), "w") as out:
            for _ in range(lines):
                out.write(" " + phrases[rng.randint(3)] + "\n")


def read_words(filename):
    with open(filename) as f:
        return f.read().replace("\n", "<eos>").replace("<eos>", " <eos> ").split()


def get_ptb_data(folder):
    data = read_words(os.path.join(folder, "ptb.train.txt"))
    words = sorted(set(data), key=lambda w: (-data.count(w), w))
    word_to_id = dict((w, i) for i, w in enumerate(words))
    valid = read_words(os.path.join(folder, "ptb.valid.txt"))
    return [word_to_id[w] for w in data], [word_to_id[w] for w in valid], len(words)


def get_data_iter(raw_data, batch_size, num_steps):
    raw_data = np.asarray(raw_data, dtype="int64")
    batch_len = len(raw_data) // batch_size
    data = raw_data[0:batch_size * batch_len].reshape((batch_size, batch_len))
    for i in range((batch_len - 1) // num_steps):
        x = np.copy(data[:, i * num_steps:(i + 1) * num_steps])
        y = np.copy(data[:, i * num_steps + 1:(i + 1) * num_steps + 1])
        yield x.reshape((-1, num_steps, 1)), y.reshape((-1, 1))


def lm_model(args, vocab_size):
    hidden_size, num_layers, num_steps = args.hidden_size, args.num_layers, args.num_steps
    uniform = fluid.initializer.UniformInitializer(low=-args.init_scale, high=args.init_scale)
    x = layers.data(name="x", shape=[args.batch_size, num_steps, 1], dtype="int64",
                    append_batch_size=False)
    y = layers.data(name="y", shape=[args.batch_size * num_steps, 1], dtype="int64",
                    append_batch_size=False)
    state_shape = [num_layers, args.batch_size, hidden_size]
    init_hidden = layers.data(
        name="init_hidden", shape=state_shape, dtype="float32", append_batch_size=False)
    init_cell = layers.data(
        name="init_cell", shape=state_shape, dtype="float32", append_batch_size=False)
    init_cell.persistable = True
    init_hidden.persistable = True

    x_emb = layers.embedding(
        input=x, size=[vocab_size, hidden_size], dtype="float32", is_sparse=False,
        param_attr=fluid.ParamAttr(name="embedding_para", initializer=uniform))
    x_emb = layers.reshape(x_emb, shape=[-1, num_steps, hidden_size])
    if args.dropout > 0.0:
        x_emb = layers.dropout(
            x_emb, dropout_prob=args.dropout, dropout_implementation="upscale_in_train")
    rnn_out, last_hidden, last_cell = basic_lstm(
        x_emb, init_hidden, init_cell, hidden_size, num_layers=num_layers, batch_first=True,
        dropout_prob=args.dropout, param_attr=fluid.ParamAttr(initializer=uniform),
        bias_attr=fluid.ParamAttr(initializer=fluid.initializer.Constant(0.0)), forget_bias=0.0)

    rnn_out = layers.reshape(rnn_out, shape=[-1, num_steps, hidden_size])
    softmax_weight = layers.create_parameter(
        [hidden_size, vocab_size], dtype="float32", name="softmax_weight",
        default_initializer=uniform)
    softmax_bias = layers.create_parameter(
        [vocab_size], dtype="float32", name="softmax_bias", default_initializer=uniform)
    projection = layers.matmul(rnn_out, softmax_weight)
    projection = layers.elementwise_add(projection, softmax_bias)
    projection = layers.reshape(projection, shape=[-1, vocab_size])
    loss = layers.softmax_with_cross_entropy(logits=projection, label=y, soft_label=False)
    loss = layers.reshape(loss, shape=[-1, num_steps])
    loss = layers.reduce_mean(loss, dim=[0])
    loss = layers.reduce_sum(loss)
    loss.persistable = True
    last_cell.persistable = True
    last_hidden.persistable = True
    layers.assign(input=last_cell, output=init_cell)
    layers.assign(input=last_hidden, output=init_hidden)
    return loss, last_hidden, last_cell, ["x", "y", "init_hidden", "init_cell"]


def main():
    args = parse_args()
    print("Command:", " ".join("%s=%s" % pair for pair in sorted(vars(args).items())))
    write_ptb(args.data_path)
    train_data, valid_data, vocab_size = get_ptb_data(args.data_path)

    main_program, startup_program = fluid.Program(), fluid.Program()
    main_program.random_seed = startup_program.random_seed = 33
    with fluid.program_guard(main_program, startup_program):
        with fluid.unique_name.guard():
            loss, last_hidden, last_cell, feed_order = lm_model(args, vocab_size)
            fluid.clip.set_gradient_clip(
                clip=fluid.clip.GradientClipByGlobalNorm(clip_norm=args.max_grad_norm))
            learning_rate = layers.create_global_var(
                name="learning_rate", shape=[1], value=1.0, dtype="float32", persistable=True)
            inference_program = main_program.clone(for_test=True)
            optimizer = fluid.optimizer.SGD(learning_rate=learning_rate)
            optimizer.minimize(loss)

    place = fluid.CPUPlace()
    exe = fluid.Executor(place)
    exe.run(startup_program)

    def is_param(var):
        return isinstance(var, fluid.framework.Parameter)

    if args.init_model:
        fluid.io.load_vars(exe, args.init_model, main_program, predicate=is_param)

    def run_epoch(program, data, epoch_id):
        state = np.zeros((args.num_layers, args.batch_size, args.hidden_size), dtype="float32")
        hidden, cell = state, state.copy()
        total_loss, iters = 0.0, 0
        rate = args.base_learning_rate * args.lr_decay**max(epoch_id - 1, 0)
        for batch in get_data_iter(data, args.batch_size, args.num_steps):
            feed = dict(zip(feed_order, list(batch) + [hidden, cell]))
            fetch_list = [loss.name, "learning_rate", last_hidden.name, last_cell.name]
            if program is main_program:
                feed["learning_rate"] = np.ones([1], dtype="float32") * rate
            else:
                fetch_list.remove("learning_rate")
            fetched = exe.run(program=program, feed=feed, fetch_list=fetch_list)
            hidden, cell = np.array(fetched[-2]), np.array(fetched[-1])
            total_loss += np.array(fetched[0]).item()
            iters += args.num_steps
        return np.exp(total_loss / iters), iters

    for epoch_id in range(args.max_epoch):
        start = time.time()
        ppl, iters = run_epoch(main_program, train_data, epoch_id)
        print("train epoch %d, %d steps, ppl %.5f" % (epoch_id, iters, ppl))
        if time.time() - start > 600:
            print("slow")
        ppl, _ = run_epoch(inference_program, valid_data, epoch_id)
        print("valid ppl %.5f" % ppl)
    fluid.io.save_persistables(
        executor=exe, dirname=args.model_dir, main_program=main_program)


if __name__ == "__main__":
    main()
