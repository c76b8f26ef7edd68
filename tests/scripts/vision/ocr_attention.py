"""Reading text with attention: a GRU encoder, a DynamicRNN of GRU units, one beam per step."""
from __future__ import print_function

import argparse
import os

import numpy as np
import paddle
import paddle.fluid as fluid

HEIGHT, GLYPH = 16, 6
SOS, EOS = 0, 1


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--pass_num", type=int, default=5)
    parser.add_argument("--num_classes", type=int, default=6)
    parser.add_argument("--decoder_size", type=int, default=20)
    parser.add_argument("--word_vector_dim", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--gradient_clip", type=float, default=5.0)
    parser.add_argument("--beam_size", type=int, default=2)
    parser.add_argument("--init_model", type=str, default=None)
    parser.add_argument("--save_model_dir", "--model_dir", dest="model_dir", default="models")
    return parser.parse_args()


def line_reader(args):
    """Images of two to four glyphs, the same width; labels begin with 0 and end with 1."""
    rng = np.random.RandomState(23)
    glyphs = rng.rand(args.num_classes, HEIGHT, GLYPH)
    lines = []
    for _ in range(32):
        labels = rng.randint(0, args.num_classes, 4)
        image = np.concatenate([glyphs[c] for c in labels], axis=1) - 0.5
        words = [int(c) + 2 for c in labels]
        lines.append((image.reshape(1, HEIGHT, -1).astype("float32"), [SOS] + words,
                      words + [EOS]))

    def reader():
        for line in lines:
            yield line

    return reader


def conv_bn_pool(input, group, out_ch, act="relu", is_test=False, pool=True):
    tmp = input
    for i in range(group):
        filter_std = (2.0 / (9 * tmp.shape[1]))**0.5
        tmp = fluid.layers.conv2d(
            input=tmp, num_filters=out_ch[i], filter_size=3, padding=1, bias_attr=False,
            param_attr=fluid.ParamAttr(initializer=fluid.initializer.Normal(0.0, filter_std)))
        tmp = fluid.layers.batch_norm(input=tmp, act=act, is_test=is_test)
    if pool:
        tmp = fluid.layers.pool2d(
            input=tmp, pool_size=2, pool_type="max", pool_stride=2, ceil_mode=True)
    return tmp


def encoder_net(images, rnn_hidden_size=10, is_test=False):
    features = conv_bn_pool(images, 1, [8], is_test=is_test)
    features = conv_bn_pool(features, 1, [12], is_test=is_test, pool=False)
    sliced = fluid.layers.im2sequence(
        input=features, stride=[1, 1], filter_size=[features.shape[2], 1])
    para_attr = fluid.ParamAttr(initializer=fluid.initializer.Normal(0.0, 0.05))
    bias_attr = fluid.ParamAttr(
        initializer=fluid.initializer.Normal(0.0, 0.05), learning_rate=2.0)
    outputs = []
    for is_reverse in (False, True):
        fc = fluid.layers.fc(
            input=sliced, size=rnn_hidden_size * 3, param_attr=para_attr, bias_attr=False)
        outputs.append(fluid.layers.dynamic_gru(
            input=fc, size=rnn_hidden_size, is_reverse=is_reverse, param_attr=para_attr,
            bias_attr=bias_attr, candidate_activation="relu"))
    encoded_vector = fluid.layers.concat(input=outputs, axis=1)
    encoded_proj = fluid.layers.fc(
        input=encoded_vector, size=20, bias_attr=False)
    return outputs[1], encoded_vector, encoded_proj


def simple_attention(encoder_vec, encoder_proj, decoder_state, decoder_size):
    decoder_state_proj = fluid.layers.fc(
        input=decoder_state, size=decoder_size, bias_attr=False,
        param_attr=fluid.ParamAttr(name="attention_state"))
    decoder_state_expand = fluid.layers.sequence_expand(x=decoder_state_proj, y=encoder_proj)
    concated = fluid.layers.tanh(encoder_proj + decoder_state_expand)
    attention_weights = fluid.layers.fc(
        input=concated, size=1, act=None, bias_attr=False,
        param_attr=fluid.ParamAttr(name="attention_weight"))
    attention_weights = fluid.layers.sequence_softmax(input=attention_weights)
    weigths_reshape = fluid.layers.reshape(x=attention_weights, shape=[-1])
    scaled = fluid.layers.elementwise_mul(x=encoder_vec, y=weigths_reshape, axis=0)
    return fluid.layers.sequence_pool(input=scaled, pool_type="sum")


def decoder_step(word, state, encoder_vec, encoder_proj, args):
    size = args.decoder_size
    context = simple_attention(encoder_vec, encoder_proj, state, size)
    fc_1 = fluid.layers.fc(
        input=context, size=size * 3, bias_attr=False, param_attr=fluid.ParamAttr(name="from_image"))
    fc_2 = fluid.layers.fc(
        input=word, size=size * 3, bias_attr=False, param_attr=fluid.ParamAttr(name="from_word"))
    h, _, _ = fluid.layers.gru_unit(
        input=fc_1 + fc_2, hidden=state, size=size * 3,
        param_attr=fluid.ParamAttr(name="gru_unit.w"), bias_attr=fluid.ParamAttr(name="gru_unit.b"))
    out = fluid.layers.fc(
        input=h, size=args.num_classes + 2, act="softmax",
        param_attr=fluid.ParamAttr(name="out.w"), bias_attr=fluid.ParamAttr(name="out.b"))
    return h, out


def word_embedding(ids, args):
    return fluid.layers.embedding(
        input=ids, size=[args.num_classes + 2, args.word_vector_dim], dtype="float32",
        param_attr=fluid.ParamAttr(name="word_embedding"))


def boot_state(gru_backward, args):
    backward_first = fluid.layers.sequence_pool(input=gru_backward, pool_type="first")
    return fluid.layers.fc(
        input=backward_first, size=args.decoder_size, bias_attr=False, act="relu",
        param_attr=fluid.ParamAttr(name="boot"))


def attention_train_net(args):
    images = fluid.layers.data(name="pixel", shape=[1, HEIGHT, GLYPH * 4], dtype="float32")
    label_in = fluid.layers.data(name="label_in", shape=[1], dtype="int32", lod_level=1)
    label_out = fluid.layers.data(name="label_out", shape=[1], dtype="int32", lod_level=1)
    gru_backward, encoded_vector, encoded_proj = encoder_net(images)
    decoder_boot = boot_state(gru_backward, args)
    label_in = fluid.layers.cast(x=label_in, dtype="int64")
    trg_embedding = word_embedding(label_in, args)
    rnn = fluid.layers.DynamicRNN()
    with rnn.block():
        current_word = rnn.step_input(trg_embedding)
        vec = rnn.static_input(encoded_vector)
        proj = rnn.static_input(encoded_proj)
        hidden_mem = rnn.memory(init=decoder_boot, need_reorder=True)
        h, out = decoder_step(current_word, hidden_mem, vec, proj, args)
        rnn.update_memory(hidden_mem, h)
        rnn.output(out)
    prediction = rnn()
    label_out = fluid.layers.cast(x=label_out, dtype="int64")
    sum_cost = fluid.layers.reduce_sum(
        fluid.layers.cross_entropy(input=prediction, label=label_out))
    _, maxid = fluid.layers.topk(input=prediction, k=1)
    error_evaluator = fluid.evaluator.EditDistance(
        input=maxid, label=label_out, ignored_tokens=[SOS, EOS])
    fluid.clip.set_gradient_clip(fluid.clip.GradientClipByValue(args.gradient_clip))
    learning_rate = fluid.layers.piecewise_decay([16], [args.lr, args.lr * 0.5])
    optimizer = fluid.optimizer.Adadelta(
        learning_rate=learning_rate * 100.0, epsilon=1.0e-6, rho=0.9)
    optimizer.minimize(sum_cost)
    return sum_cost, error_evaluator


def attention_infer(args, max_length=6):
    images = fluid.layers.data(name="pixel", shape=[1, HEIGHT, GLYPH * 4], dtype="float32")
    gru_backward, encoded_vector, encoded_proj = encoder_net(images, is_test=True)
    init_state = boot_state(gru_backward, args)
    array_len = fluid.layers.fill_constant(shape=[1], dtype="int64", value=max_length)
    counter = fluid.layers.zeros(shape=[1], dtype="int64", force_cpu=True)
    arrays = {}
    init_ids = fluid.layers.data(name="init_ids", shape=[1], dtype="int64", lod_level=2)
    init_scores = fluid.layers.data(name="init_scores", shape=[1], dtype="float32", lod_level=2)
    for name, first in [("state", init_state), ("ids", init_ids), ("scores", init_scores),
                        ("vec", encoded_vector), ("proj", encoded_proj)]:
        arrays[name] = fluid.layers.create_array(
            "int64" if name == "ids" else "float32")
        fluid.layers.array_write(first, array=arrays[name], i=counter)
    cond = fluid.layers.less_than(x=counter, y=array_len)
    while_op = fluid.layers.While(cond=cond)
    with while_op.block():
        pre_ids, pre_score, pre_state, pre_vec, pre_proj = [
            fluid.layers.array_read(array=arrays[name], i=counter)
            for name in ("ids", "scores", "state", "vec", "proj")]
        pre_state = fluid.layers.sequence_expand(pre_state, pre_score)
        pre_vec = fluid.layers.sequence_expand(pre_vec, pre_score)
        pre_proj = fluid.layers.sequence_expand(pre_proj, pre_score)
        word = fluid.layers.reshape(
            word_embedding(pre_ids, args), shape=[-1, args.word_vector_dim])
        state, score = decoder_step(word, pre_state, pre_vec, pre_proj, args)
        score = fluid.layers.lod_reset(x=score, y=pre_score)
        topk_scores, topk_indices = fluid.layers.topk(score, k=args.beam_size)
        accu_scores = fluid.layers.elementwise_add(
            x=fluid.layers.log(x=topk_scores),
            y=fluid.layers.reshape(pre_score, shape=[-1]), axis=0)
        selected_ids, selected_scores = fluid.layers.beam_search(
            pre_ids, pre_score, topk_indices, accu_scores, args.beam_size, EOS, level=0)
        fluid.layers.increment(x=counter, value=1, in_place=True)
        for name, value in [("state", state), ("ids", selected_ids), ("vec", pre_vec),
                            ("scores", selected_scores), ("proj", pre_proj)]:
            fluid.layers.array_write(value, array=arrays[name], i=counter)
        length_cond = fluid.layers.less_than(x=counter, y=array_len)
        finish_cond = fluid.layers.logical_not(fluid.layers.is_empty(x=selected_ids))
        fluid.layers.logical_and(x=length_cond, y=finish_cond, out=cond)
    return fluid.layers.beam_search_decode(
        arrays["ids"], arrays["scores"], args.beam_size, EOS)


def main():
    args = parse_args()
    main_prog, startup, infer_prog = fluid.Program(), fluid.Program(), fluid.Program()
    with fluid.program_guard(main_prog, startup), fluid.unique_name.guard():
        sum_cost, error_evaluator = attention_train_net(args)
    with fluid.program_guard(infer_prog, fluid.Program()), fluid.unique_name.guard():
        ids, scores = attention_infer(args)
    place = fluid.CPUPlace()
    exe = fluid.Executor(place)
    startup.random_seed = 90
    exe.run(startup)
    if args.init_model:
        fluid.io.load_persistables(exe, args.init_model, main_prog)
    feeder = fluid.DataFeeder(
        feed_list=["pixel", "label_in", "label_out"], place=place, program=main_prog)
    reader = paddle.batch(line_reader(args), batch_size=args.batch_size)
    for pass_id in range(args.pass_num):
        error_evaluator.reset(exe)
        for batch_id, data in enumerate(reader()):
            results = exe.run(
                main_prog, feed=feeder.feed(data),
                fetch_list=[sum_cost] + error_evaluator.metrics)
            print("pass %d, batch %d; avg loss: %f; seq err: %d" % (
                pass_id, batch_id, results[0][0] / len(data), results[2][0]))
        distance, _ = error_evaluator.eval(exe)
        print("pass %d, edit distance %.4f" % (pass_id, distance[0]))
    fluid.io.save_persistables(exe, args.model_dir, main_prog)
    if not args.pass_num:
        return
    for data in reader():
        count = len(data)
        lod = [[1] * count, [1] * count]
        feed = {
            "pixel": np.array([row[0] for row in data]),
            "init_ids": fluid.create_lod_tensor(np.zeros((count, 1), "int64"), lod, place),
            "init_scores": fluid.create_lod_tensor(np.zeros((count, 1), "float32"), lod, place),
        }
        found = exe.run(infer_prog, feed=feed, fetch_list=[ids], return_numpy=False)[0]
        level, flat = found.lod(), np.array(found).reshape(-1)
        for i in range(count):
            at = level[0][i]
            words = flat[level[1][at]:level[1][at + 1]]
            print("label %s best %s" % (data[i][1], " ".join(str(w) for w in words)))
        break


if __name__ == "__main__":
    main()
