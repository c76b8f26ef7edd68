"""Transformer for translation: pre-norm layers, label smoothing, noam decay; beam search with caches."""
from __future__ import print_function

import argparse
import os
from functools import partial

import numpy as np
import paddle
import paddle.fluid as fluid
import paddle.fluid.layers as layers

BOS, EOS = 0, 1


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocab_size", type=int, default=12)
    parser.add_argument("--max_length", type=int, default=10)
    parser.add_argument("--n_layer", type=int, default=2)
    parser.add_argument("--n_head", type=int, default=4)
    parser.add_argument("--d_model", type=int, default=32)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--label_smooth_eps", type=float, default=0.1)
    parser.add_argument("--learning_rate", type=float, default=0.3)
    parser.add_argument("--warmup_steps", type=int, default=20)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--epoch", type=int, default=7)
    parser.add_argument("--beam_size", type=int, default=3)
    parser.add_argument("--init_from_checkpoint", "--init_model", dest="init_model", default="")
    parser.add_argument("--save_model_path", "--model_dir", dest="model_dir", default="trained")
    return parser.parse_args()


def write_corpus(path, args):
    rng = np.random.RandomState(31)
    with open(path, "w") as out:
        for _ in range(64):
            source = rng.randint(2, args.vocab_size, rng.randint(3, 7))
            out.write("%s\t%s\n" % (" ".join(map(str, source)), " ".join(map(str, source[::-1]))))


def pad_batch_data(insts, n_head, is_target=False, is_label=False):
    """Pad with EOS; give words, positions and the attention bias (or the weights of labels)."""
    max_len = max(len(inst) for inst in insts)
    data = np.array([inst + [EOS] * (max_len - len(inst)) for inst in insts])
    if is_label:
        weight = [[1.0] * len(inst) + [0.0] * (max_len - len(inst)) for inst in insts]
        return data.reshape(-1, 1).astype("int64"), np.array(weight, "float32").reshape(-1, 1)
    pos = np.array([list(range(max_len))] * len(insts), dtype="int64")
    if is_target:
        bias = np.triu(np.ones((max_len, max_len)), 1) * -1e9
        bias = np.tile(bias.reshape(1, 1, max_len, max_len), [len(insts), n_head, 1, 1])
    else:
        bias = np.array([[0.0] * len(i) + [-1e9] * (max_len - len(i)) for i in insts])
        bias = np.tile(bias.reshape(-1, 1, 1, max_len), [1, n_head, max_len, 1])
    return data.astype("int64"), pos, bias.astype("float32")


def prepare_train_input(lines, args):
    source = [[int(w) for w in line.split("\t")[0].split()] + [EOS] for line in lines]
    target = [[int(w) for w in line.split("\t")[1].split()] for line in lines]
    src_word, src_pos, src_bias = pad_batch_data(source, args.n_head)
    trg_word, trg_pos, trg_bias = pad_batch_data(
        [[BOS] + t for t in target], args.n_head, is_target=True)
    trg_src_bias = np.tile(src_bias[:, :, :1, :], [1, 1, trg_word.shape[1], 1])
    lbl_word, lbl_weight = pad_batch_data(
        [t + [EOS] for t in target], args.n_head, is_label=True)
    return dict(src_word=src_word, src_pos=src_pos, src_slf_attn_bias=src_bias,
                trg_word=trg_word, trg_pos=trg_pos, trg_slf_attn_bias=trg_bias,
                trg_src_attn_bias=trg_src_bias, lbl_word=lbl_word, lbl_weight=lbl_weight)


def batches(path, args):
    lines = open(path).read().strip().split("\n")
    return [lines[i:i + args.batch_size] for i in range(0, len(lines), args.batch_size)]


def multi_head_attention(queries, keys, values, attn_bias, args, cache=None, static_kv=False):
    d_model, n_head = args.d_model, args.n_head
    d_key = d_model // n_head
    keys = queries if keys is None else keys
    values = keys if values is None else values

    def project(x):
        return layers.fc(input=x, size=d_model, bias_attr=False, num_flatten_dims=2)

    def split_heads(x):
        return layers.transpose(
            layers.reshape(x=x, shape=[0, 0, n_head, d_key], inplace=False), perm=[0, 2, 1, 3])

    q = split_heads(project(queries))
    k, v = project(keys), project(values)
    k, v = split_heads(k), split_heads(v)
    if cache is not None:
        if not static_kv:
            k = cache["k"] = layers.concat([layers.gather(cache["k"], cache["parent"]), k], axis=2)
            v = cache["v"] = layers.concat([layers.gather(cache["v"], cache["parent"]), v], axis=2)
    product = layers.matmul(x=q, y=k, transpose_y=True, alpha=d_key**-0.5)
    if attn_bias is not None:
        product += attn_bias
    weights = layers.softmax(product)
    if args.dropout:
        weights = layers.dropout(weights, dropout_prob=args.dropout, is_test=False)
    out = layers.matmul(weights, v)
    out = layers.reshape(layers.transpose(out, perm=[0, 2, 1, 3]), shape=[0, 0, d_model])
    return layers.fc(input=out, size=d_model, bias_attr=False, num_flatten_dims=2)


def positionwise_feed_forward(x, args):
    hidden = layers.fc(input=x, size=args.d_model * 2, num_flatten_dims=2, act="relu")
    if args.dropout:
        hidden = layers.dropout(hidden, dropout_prob=args.dropout, is_test=False)
    return layers.fc(input=hidden, size=args.d_model, num_flatten_dims=2)


def pre_post_process_layer(prev_out, out, process_cmd, dropout_rate=0.0):
    for cmd in process_cmd:
        if cmd == "a":
            out = out + prev_out if prev_out is not None else out
        elif cmd == "n":
            out = layers.layer_norm(
                out, begin_norm_axis=len(out.shape) - 1,
                param_attr=fluid.initializer.Constant(1.0),
                bias_attr=fluid.initializer.Constant(0.0))
        elif cmd == "d" and dropout_rate:
            out = layers.dropout(out, dropout_prob=dropout_rate, is_test=False)
    return out


pre_process_layer = partial(pre_post_process_layer, None)
post_process_layer = pre_post_process_layer


def position_encoding_init(n_position, d_pos_vec):
    channels = d_pos_vec // 2
    scales = np.exp(np.arange(channels) * -(np.log(1e4) / (channels - 1)))
    signal = np.arange(n_position)[:, None] * scales[None, :]
    return np.concatenate([np.sin(signal), np.cos(signal)], axis=1).astype("float32")


def prepare_encoder_decoder(word, pos, emb_name, pos_name, args):
    word_emb = fluid.embedding(
        word, size=[args.vocab_size, args.d_model], padding_idx=None,
        param_attr=fluid.ParamAttr(
            name=emb_name, initializer=fluid.initializer.Normal(0.0, args.d_model**-0.5)))
    word_emb = layers.scale(x=word_emb, scale=args.d_model**0.5)
    pos_enc = fluid.embedding(
        pos, size=[args.max_length, args.d_model],
        param_attr=fluid.ParamAttr(
            name=pos_name, trainable=False,
            initializer=fluid.initializer.NumpyArrayInitializer(
                position_encoding_init(args.max_length, args.d_model))))
    pos_enc.stop_gradient = True
    return pre_process_layer(word_emb + pos_enc, "d", args.dropout)


def encoder(src_word, src_pos, bias, args):
    out = prepare_encoder_decoder(src_word, src_pos, "src_word_emb", "src_pos_enc", args)
    for _ in range(args.n_layer):
        attn = multi_head_attention(pre_process_layer(out, "n"), None, None, bias, args)
        attn = post_process_layer(out, attn, "da", args.dropout)
        ffd = positionwise_feed_forward(pre_process_layer(attn, "n"), args)
        out = post_process_layer(attn, ffd, "da", args.dropout)
    return pre_process_layer(out, "n")


def decoder(trg_word, trg_pos, slf_bias, src_bias, enc_output, args, caches=None):
    out = prepare_encoder_decoder(trg_word, trg_pos, "trg_word_emb", "trg_pos_enc", args)
    for i in range(args.n_layer):
        cache = None if caches is None else caches[i]
        attn = multi_head_attention(
            pre_process_layer(out, "n"), None, None, slf_bias, args, cache)
        attn = post_process_layer(out, attn, "da", args.dropout)
        cross = multi_head_attention(
            pre_process_layer(attn, "n"), enc_output, enc_output, src_bias, args)
        cross = post_process_layer(attn, cross, "da", args.dropout)
        ffd = positionwise_feed_forward(pre_process_layer(cross, "n"), args)
        out = post_process_layer(cross, ffd, "da", args.dropout)
    out = pre_process_layer(out, "n")
    flat = layers.reshape(out, shape=[-1, args.d_model], inplace=False)
    return layers.fc(input=flat, size=args.vocab_size, bias_attr=False)


def make_all_inputs(names, args):
    head = args.n_head
    known = {
        "src_word": ([None, None], "int64"), "src_pos": ([None, None], "int64"),
        "src_slf_attn_bias": ([None, head, None, None], "float32"),
        "trg_word": ([None, None], "int64"), "trg_pos": ([None, None], "int64"),
        "trg_slf_attn_bias": ([None, head, None, None], "float32"),
        "trg_src_attn_bias": ([None, head, None, None], "float32"),
        "lbl_word": ([None, 1], "int64"), "lbl_weight": ([None, 1], "float32"),
    }
    return [fluid.data(name=name, shape=known[name][0], dtype=known[name][1]) for name in names]


TRAIN_INPUTS = ["src_word", "src_pos", "src_slf_attn_bias", "trg_word", "trg_pos",
                "trg_slf_attn_bias", "trg_src_attn_bias", "lbl_word", "lbl_weight"]


def create_net(args):
    inputs = make_all_inputs(TRAIN_INPUTS, args)
    enc_output = encoder(*inputs[:3] + [args])
    predict = decoder(*inputs[3:7] + [enc_output, args])
    label, weights = inputs[7:]
    smooth = layers.label_smooth(
        label=layers.one_hot(input=label, depth=args.vocab_size), epsilon=args.label_smooth_eps)
    cost = layers.softmax_with_cross_entropy(logits=predict, label=smooth, soft_label=True)
    weighted_cost = layers.elementwise_mul(x=cost, y=weights, axis=0)
    sum_cost = layers.reduce_sum(weighted_cost)
    token_num = layers.reduce_sum(weights)
    token_num.stop_gradient = True
    return sum_cost, sum_cost / token_num, token_num


def fast_decode(args):
    """Beams live in the batch; each step gathers the caches of the parents it chose."""
    src_word, src_pos, src_bias, start = make_all_inputs(TRAIN_INPUTS[:3], args) + [
        fluid.data(name="start", shape=[None, 1], dtype="int64", lod_level=2)]
    init_scores = fluid.data(name="init_scores", shape=[None, 1], dtype="float32", lod_level=2)
    enc_output = encoder(src_word, src_pos, src_bias, args)
    cross_bias = layers.slice(src_bias, axes=[2], starts=[0], ends=[1])

    max_len = layers.fill_constant(shape=[1], dtype="int64", value=args.max_length - 2)
    step_idx = layers.fill_constant(shape=[1], dtype="int64", value=0, force_cpu=True)
    cond = layers.less_than(x=step_idx, y=max_len)
    while_op = layers.While(cond)
    ids = layers.array_write(layers.reshape(start, (-1, 1)), step_idx)
    scores = layers.array_write(init_scores, step_idx)
    d_key = args.d_model // args.n_head
    caches = [{
        name: layers.fill_constant_batch_size_like(
            input=start, shape=[-1, args.n_head, 0, d_key], dtype="float32", value=0)
        for name in ("k", "v")} for _ in range(args.n_layer)]
    with while_op.block():
        pre_ids = layers.array_read(array=ids, i=step_idx)
        pre_scores = layers.array_read(array=scores, i=step_idx)
        # each live beam, as a row of its sentence
        expanded_bias = layers.sequence_expand(x=cross_bias, y=pre_scores)
        layers.assign(expanded_bias, cross_bias)
        expanded_enc = layers.sequence_expand(x=enc_output, y=pre_scores)
        layers.assign(expanded_enc, enc_output)
        parent = layers.sequence_expand(
            x=order_of(caches[0]["k"]), y=pre_scores)
        pre_pos = layers.elementwise_mul(
            x=layers.fill_constant_batch_size_like(
                input=expanded_enc, value=1, shape=[-1, 1], dtype="int64"),
            y=step_idx, axis=0)
        local = [dict(cache, parent=parent) for cache in caches]
        logits = decoder(
            pre_ids, pre_pos, None, expanded_bias, expanded_enc, args, caches=local)
        topk_scores, topk_indices = layers.topk(
            input=layers.softmax(logits), k=args.beam_size)
        accu_scores = layers.elementwise_add(
            x=layers.log(topk_scores), y=layers.reshape(pre_scores, shape=[-1]), axis=0)
        accu_scores = layers.lod_reset(accu_scores, pre_ids)
        selected_ids, selected_scores = layers.beam_search(
            pre_ids=pre_ids, pre_scores=pre_scores, ids=topk_indices, scores=accu_scores,
            beam_size=args.beam_size, end_id=EOS)
        for cache, new in zip(caches, local):
            layers.assign(new["k"], cache["k"])
            layers.assign(new["v"], cache["v"])
        layers.increment(x=step_idx, value=1.0, in_place=True)
        layers.array_write(selected_ids, i=step_idx, array=ids)
        layers.array_write(selected_scores, i=step_idx, array=scores)
        length_cond = layers.less_than(x=step_idx, y=max_len)
        finish_cond = layers.logical_not(layers.is_empty(x=selected_ids))
        layers.logical_and(x=length_cond, y=finish_cond, out=cond)
    return layers.beam_search_decode(ids, scores, beam_size=args.beam_size, end_id=EOS)


def order_of(cache):
    """0, 1, 2, ...: the rows of a cache."""
    rows = layers.cast(layers.slice(layers.shape(cache), [0], [0], [1]), "int64")
    zero = layers.fill_constant(shape=[1], dtype="int64", value=0)
    one = layers.fill_constant(shape=[1], dtype="int64", value=1)
    return layers.reshape(layers.range(zero, rows, one, "int64"), [-1, 1])


def do_train(args, exe):
    train_prog, startup_prog = fluid.Program(), fluid.Program()
    with fluid.program_guard(train_prog, startup_prog):
        with fluid.unique_name.guard():
            sum_cost, avg_cost, token_num = create_net(args)
            optimizer = fluid.optimizer.Adam(
                learning_rate=args.learning_rate * layers.learning_rate_scheduler.noam_decay(
                    args.d_model, args.warmup_steps),
                beta1=0.9, beta2=0.997, epsilon=1e-9)
            optimizer.minimize(avg_cost)
    startup_prog.random_seed = 90
    exe.run(startup_prog)
    if args.init_model:
        fluid.io.load_persistables(exe, args.init_model, main_program=train_prog)
    norm = -((1.0 - args.label_smooth_eps) * np.log(1.0 - args.label_smooth_eps) +
             args.label_smooth_eps * np.log(args.label_smooth_eps / (args.vocab_size - 1) + 1e-20))
    step = 0
    for epoch in range(args.epoch):
        for lines in batches("train.txt", args):
            out = exe.run(train_prog, feed=prepare_train_input(lines, args),
                          fetch_list=[sum_cost.name, token_num.name])
            total = np.array(out[0]).sum() / np.array(out[1]).sum()
            print("step_idx: %d, epoch: %d, avg loss: %f, normalized loss: %f, ppl: %f" % (
                step, epoch, total, total - norm, np.exp([min(total, 100)])[0]))
            step += 1
    fluid.io.save_persistables(exe, args.model_dir, train_prog)


def do_predict(args, exe):
    test_prog, startup_prog = fluid.Program(), fluid.Program()
    with fluid.program_guard(test_prog, startup_prog):
        with fluid.unique_name.guard():
            out_ids, out_scores = fast_decode(args)
    test_prog = test_prog.clone(for_test=True)
    place = fluid.CPUPlace()
    lines = batches("train.txt", args)[0]
    count = len(lines)
    lod = [[1] * count, [1] * count]
    feed = prepare_train_input(lines, args)
    feed = dict((name, feed[name]) for name in TRAIN_INPUTS[:3])
    feed["start"] = fluid.create_lod_tensor(np.full((count, 1), BOS, "int64"), lod, place)
    feed["init_scores"] = fluid.create_lod_tensor(np.zeros((count, 1), "float32"), lod, place)
    ids, scores = exe.run(
        test_prog, feed=feed, fetch_list=[out_ids.name, out_scores.name], return_numpy=False)
    level, flat, costs = ids.lod(), np.array(ids).reshape(-1), np.array(scores).reshape(-1)
    for i, line in enumerate(lines):
        at = level[0][i]
        words = flat[level[1][at]:level[1][at + 1]]
        print("source %s best %s cost %.4f" % (
            line.split("\t")[0], " ".join(str(w) for w in words), costs[level[1][at + 1] - 1]))


if __name__ == "__main__":
    arguments = parse_args()
    write_corpus("train.txt", arguments)
    executor = fluid.Executor(fluid.CPUPlace())
    do_train(arguments, executor)
    if arguments.epoch:
        do_predict(arguments, executor)
