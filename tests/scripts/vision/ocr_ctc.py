"""Reading lines of text with CTC: convolutions, two GRUs, warpctc, greedy decoding."""
from __future__ import print_function

import argparse
import os

import numpy as np
import paddle
import paddle.fluid as fluid

HEIGHT = 16
GLYPH = 8


def parse_args():
    parser = argparse.ArgumentParser("CRNN-CTC")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--pass_num", type=int, default=4)
    parser.add_argument("--learning_rate", type=float, default=1e-2)
    parser.add_argument("--num_classes", type=int, default=6)
    parser.add_argument("--rnn_hidden_size", type=int, default=24)
    parser.add_argument("--average_window", type=float, default=0.15)
    parser.add_argument("--init_model", type=str, default=None)
    parser.add_argument("--save_model_dir", "--model_dir", dest="model_dir", default="models")
    return parser.parse_args()


def write_lines(folder, classes, total):
    """A list file `width height name label,label,...` beside the images, as PGM."""
    rng = np.random.RandomState(11)
    glyphs = rng.randint(0, 256, (classes, HEIGHT, GLYPH))
    if not os.path.isdir(folder):
        os.makedirs(folder)
    with open(os.path.join(folder, "train.list"), "w") as listing:
        for i in range(total):
            labels = rng.randint(0, classes, 3)
            image = np.concatenate([glyphs[c] for c in labels], axis=1).astype("uint8")
            name = "line_%04d.pgm" % i
            with open(os.path.join(folder, name), "wb") as out:
                out.write(("P5\n%d %d\n255\n" % (image.shape[1], HEIGHT)).encode())
                out.write(image.tobytes())
            listing.write("%d %d %s %s\n" % (
                image.shape[1], HEIGHT, name, ",".join(str(c) for c in labels)))


def line_reader(folder):
    def reader():
        for line in open(os.path.join(folder, "train.list")):
            width, height, name, text = line.split()
            raw = open(os.path.join(folder, name), "rb").read()
            pixels = np.frombuffer(raw[-int(width) * int(height):], dtype="uint8")
            image = pixels.reshape(1, int(height), int(width)).astype("float32") / 127.5 - 1.0
            yield image, [int(c) for c in text.split(",")]

    return reader


def conv_bn_pool(input, group, out_ch, act="relu", is_test=False, pool=True):
    tmp = input
    for i in range(group):
        filter_std = (2.0 / (9 * tmp.shape[1]))**0.5
        tmp = fluid.layers.conv2d(
            input=tmp, num_filters=out_ch[i], filter_size=3, padding=1, act=None,
            param_attr=fluid.ParamAttr(initializer=fluid.initializer.Normal(0.0, filter_std)))
        tmp = fluid.layers.batch_norm(input=tmp, act=act, is_test=is_test)
    if pool:
        tmp = fluid.layers.pool2d(
            input=tmp, pool_size=2, pool_type="max", pool_stride=2, ceil_mode=True)
    return tmp


def encoder_net(images, num_classes, rnn_hidden_size, is_test=False):
    features = conv_bn_pool(images, 2, [8, 8], is_test=is_test)
    features = conv_bn_pool(features, 1, [16], is_test=is_test, pool=False)
    sliced = fluid.layers.im2sequence(
        input=features, stride=[1, 1], filter_size=[features.shape[2], 1])
    para_attr = fluid.ParamAttr(
        regularizer=fluid.regularizer.L2Decay(1e-4), initializer=fluid.initializer.Normal(0.0, 0.05))
    bias_attr = fluid.ParamAttr(initializer=fluid.initializer.Normal(0.0, 0.05), learning_rate=2.0)
    fc_1 = fluid.layers.fc(
        input=sliced, size=rnn_hidden_size * 3, param_attr=para_attr, bias_attr=False)
    fc_2 = fluid.layers.fc(
        input=sliced, size=rnn_hidden_size * 3, param_attr=para_attr, bias_attr=False)
    gru_forward = fluid.layers.dynamic_gru(
        input=fc_1, size=rnn_hidden_size, param_attr=para_attr, bias_attr=bias_attr,
        candidate_activation="relu")
    gru_backward = fluid.layers.dynamic_gru(
        input=fc_2, size=rnn_hidden_size, is_reverse=True, param_attr=para_attr,
        bias_attr=bias_attr, candidate_activation="relu")
    return fluid.layers.fc(
        input=[gru_forward, gru_backward], size=num_classes + 1,
        param_attr=para_attr, bias_attr=bias_attr)


def ctc_train_net(images, label, args):
    fc_out = encoder_net(images, args.num_classes, args.rnn_hidden_size)
    cost = fluid.layers.warpctc(
        input=fc_out, label=label, blank=args.num_classes, norm_by_times=True)
    sum_cost = fluid.layers.reduce_sum(cost)
    decoded_out = fluid.layers.ctc_greedy_decoder(input=fc_out, blank=args.num_classes)
    casted_label = fluid.layers.cast(x=label, dtype="int64")
    error_evaluator = fluid.evaluator.EditDistance(input=decoded_out, label=casted_label)
    inference_program = fluid.default_main_program().clone(for_test=True)
    optimizer = fluid.optimizer.Adam(learning_rate=args.learning_rate)
    _, params_grads = optimizer.minimize(sum_cost)
    model_average = None
    if args.average_window > 0:
        model_average = fluid.optimizer.ModelAverage(
            args.average_window, min_average_window=4, max_average_window=8)
    return sum_cost, error_evaluator, inference_program, model_average


def main():
    args = parse_args()
    for name, value in sorted(vars(args).items()):
        print("%s: %s" % (name, value))
    write_lines("lines", args.num_classes, 32)
    images = fluid.layers.data(name="pixel", shape=[1, HEIGHT, 3 * GLYPH], dtype="float32")
    label = fluid.layers.data(name="label", shape=[1], dtype="int32", lod_level=1)
    sum_cost, evaluator, test_program, model_average = ctc_train_net(images, label, args)

    place = fluid.CPUPlace()
    exe = fluid.Executor(place)
    fluid.default_startup_program().random_seed = 90
    exe.run(fluid.default_startup_program())
    if args.init_model is not None:
        fluid.io.load_persistables(exe, args.init_model)
    feeder = fluid.DataFeeder(place=place, feed_list=[images, label])
    reader = paddle.batch(line_reader("lines"), batch_size=args.batch_size)

    for pass_id in range(args.pass_num):
        evaluator.reset(exe)
        for batch_id, data in enumerate(reader()):
            loss, _, _ = exe.run(
                fluid.default_main_program(), feed=feeder.feed(data),
                fetch_list=[sum_cost] + evaluator.metrics)
            print("pass %d, batch %d, avg loss: %f" % (
                pass_id, batch_id, loss[0] / args.batch_size))
        distance, instance_error = evaluator.eval(exe)
        print("pass %d, edit distance %f, wrong lines %f" % (
            pass_id, distance[0], instance_error[0]))

    if model_average is not None and args.pass_num:
        with model_average.apply(exe):
            distances = fluid.metrics.EditDistance("distance")
            for data in reader():
                values = exe.run(test_program, feed=feeder.feed(data), fetch_list=evaluator.metrics)
                distances.update(np.array(values[0]), int(np.array(values[1]).reshape(-1)[0]))
            print("averaged: edit distance %f, wrong lines %f" % distances.eval())
    fluid.io.save_persistables(exe, dirname=args.model_dir)


if __name__ == "__main__":
    main()
