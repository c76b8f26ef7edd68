"""Metric learning: a softmax with angular margin first, then triplets, npairs and quadruplets."""
from __future__ import print_function

import argparse
import math
import os

import numpy as np
import paddle
import paddle.fluid as fluid

CLASSES, SIZE = 6, 12


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loss_name", type=str, default="arcmargin",
                        help="arcmargin, triplet, npairs or quadruplet")
    parser.add_argument("--embedding_size", type=int, default=12)
    parser.add_argument("--samples_each_class", type=int, default=2)
    parser.add_argument("--train_batch_size", type=int, default=8)
    parser.add_argument("--arc_scale", type=float, default=8.0)
    parser.add_argument("--arc_margin", type=float, default=0.15)
    parser.add_argument("--margin", type=float, default=0.5)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--total_iter_num", type=int, default=30)
    parser.add_argument("--display_iter_step", type=int, default=2)
    parser.add_argument("--pretrained_model", "--init_model", dest="pretrained_model", default=None)
    parser.add_argument("--model_save_dir", "--model_dir", dest="model_save_dir", default="output")
    return parser.parse_args()


def image_samples(args):
    """Endless batches with several images of each of some classes."""
    rng = np.random.RandomState(12)
    faces = rng.rand(CLASSES, 3, SIZE, SIZE)

    def reader():
        per_class = args.samples_each_class
        while True:
            chosen = rng.permutation(CLASSES)[:args.train_batch_size // per_class]
            for label in chosen:
                for _ in range(per_class):
                    noise = rng.rand(3, SIZE, SIZE)
                    yield (0.6 * faces[label] + 0.4 * noise - 0.5).astype("float32"), int(label)

    return reader


def backbone(image, embedding_size):
    conv = fluid.nets.simple_img_conv_pool(
        input=image, filter_size=3, num_filters=8, pool_size=2, pool_stride=2, act="relu",
        conv_padding=1)
    conv = fluid.nets.img_conv_group(
        input=conv, conv_num_filter=[12, 12], pool_size=2, conv_padding=1, conv_filter_size=3,
        conv_act="relu", conv_with_batchnorm=True, pool_stride=2, pool_type="avg")
    return fluid.layers.fc(
        input=conv, size=embedding_size,
        param_attr=fluid.ParamAttr(initializer=fluid.initializer.Xavier(uniform=False)))


def arcmargin_loss(embedding, label, args):
    input_norm = fluid.layers.sqrt(fluid.layers.reduce_sum(fluid.layers.square(embedding), dim=1))
    embedding = fluid.layers.elementwise_div(embedding, input_norm, axis=0)
    weight = fluid.layers.create_parameter(
        shape=[embedding.shape[1], CLASSES], dtype="float32", name="weight_norm",
        attr=fluid.param_attr.ParamAttr(
            initializer=fluid.initializer.MSRA(uniform=True, fan_in=embedding.shape[1])))
    weight_norm = fluid.layers.sqrt(fluid.layers.reduce_sum(fluid.layers.square(weight), dim=0))
    weight = fluid.layers.elementwise_div(weight, weight_norm, axis=1)
    cosine = fluid.layers.mul(embedding, weight)
    sine = fluid.layers.sqrt(1.0 - fluid.layers.square(cosine) + 1e-6)
    cos_m, sin_m = math.cos(args.arc_margin), math.sin(args.arc_margin)
    phi = cosine * cos_m - sine * sin_m
    beyond = math.cos(math.pi - args.arc_margin)
    turned = math.sin(math.pi - args.arc_margin) * args.arc_margin
    keep = fluid.layers.cast(cosine > beyond, "float32")
    phi = keep * phi + (1.0 - keep) * (cosine - turned)
    one_hot = fluid.one_hot(fluid.layers.squeeze(label, [1]), CLASSES)
    logit = args.arc_scale * (one_hot * phi + (1.0 - one_hot) * cosine)
    loss, probability = fluid.layers.softmax_with_cross_entropy(
        logit, label, return_softmax=True)
    return fluid.layers.mean(loss), fluid.layers.accuracy(input=probability, label=label, k=1)


def triplet_loss(embedding, label, args):
    """Anchors, positives and negatives are slices of a batch that is ordered by class."""
    feature = fluid.layers.l2_normalize(embedding, axis=1)
    anchors = fluid.layers.slice(
        fluid.layers.reshape(feature, [-1, 2, args.embedding_size]), [1], [0], [1])
    positives = fluid.layers.slice(
        fluid.layers.reshape(feature, [-1, 2, args.embedding_size]), [1], [1], [2])
    anchors = fluid.layers.squeeze(anchors, [1])
    positives = fluid.layers.squeeze(positives, [1])
    half = args.train_batch_size // 2
    order = fluid.layers.assign(np.roll(np.arange(half), 1).astype("int32"))
    negatives = fluid.layers.gather(positives, order)
    near = fluid.layers.reduce_sum(fluid.layers.square(anchors - positives), dim=1)
    far = fluid.layers.reduce_sum(fluid.layers.square(anchors - negatives), dim=1)
    loss = fluid.layers.relu(near - far + args.margin)
    right = fluid.layers.cast(fluid.layers.less_than(near, far), "float32")
    return fluid.layers.reduce_mean(loss), fluid.layers.reduce_mean(right)


def npairs_loss(embedding, label, args):
    pairs = fluid.layers.reshape(embedding, [-1, 2, args.embedding_size])
    anchors, positives = fluid.layers.split(pairs, num_or_sections=2, dim=1)
    anchors = fluid.layers.squeeze(anchors, axes=[1])
    positives = fluid.layers.squeeze(positives, axes=[1])
    labels = fluid.layers.reshape(
        fluid.layers.slice(fluid.layers.reshape(label, [-1, 2]), [1], [0], [1]), [-1])
    loss = fluid.layers.npair_loss(anchors, positives, labels, l2_reg=0.02)
    similarity = fluid.layers.matmul(anchors, positives, transpose_y=True)
    target = fluid.layers.assign(
        np.arange(args.train_batch_size // 2).reshape(-1, 1).astype("int64"))
    return loss, fluid.layers.accuracy(fluid.layers.softmax(similarity), target)


def quadruplet_loss(embedding, label, args):
    """The farthest of one's own and the nearest of the others, by masks over all distances."""
    feature = fluid.layers.l2_normalize(embedding, axis=1)
    batch = args.train_batch_size
    product = fluid.layers.matmul(feature, feature, transpose_y=True)
    distance = 2.0 - 2.0 * product
    row = fluid.layers.expand(fluid.layers.reshape(label, [batch, 1]), [1, batch])
    same = fluid.layers.cast(
        fluid.layers.equal(row, fluid.layers.transpose(row, [1, 0])), "float32")
    hardest_positive = fluid.layers.reduce_max(distance * same, dim=1)
    hardest_negative = fluid.layers.reduce_min(distance + 10.0 * same, dim=1)
    loss = fluid.layers.relu(hardest_positive - hardest_negative + args.margin)
    right = fluid.layers.cast(hardest_positive < hardest_negative, "float32")
    return fluid.layers.mean(loss), fluid.layers.mean(right)


LOSSES = {"arcmargin": arcmargin_loss, "triplet": triplet_loss, "npairs": npairs_loss,
          "quadruplet": quadruplet_loss}


def main():
    args = parse_args()
    main_prog, startup_prog = fluid.Program(), fluid.Program()
    with fluid.program_guard(main_prog, startup_prog):
        image = fluid.data(name="image", shape=[None, 3, SIZE, SIZE], dtype="float32")
        label = fluid.data(name="label", shape=[None, 1], dtype="int64")
        loader = fluid.io.DataLoader.from_generator(
            feed_list=[image, label], capacity=8, use_double_buffer=True, iterable=True)
        embedding = backbone(image, args.embedding_size)
        avg_cost, accuracy = LOSSES[args.loss_name](embedding, label, args)
        optimizer = fluid.optimizer.Momentum(
            learning_rate=fluid.layers.piecewise_decay([20], [args.lr, args.lr * 0.1]),
            momentum=0.9, regularization=fluid.regularizer.L2Decay(5e-4))
        optimizer.minimize(avg_cost)

    place = fluid.CPUPlace()
    exe = fluid.Executor(place)
    startup_prog.random_seed = 90
    exe.run(startup_prog)
    if args.pretrained_model:
        def if_exist(var):
            return os.path.exists(os.path.join(args.pretrained_model, var.name))

        fluid.io.load_vars(exe, args.pretrained_model, main_program=main_prog, predicate=if_exist)
    loader.set_sample_generator(
        image_samples(args), batch_size=args.train_batch_size, drop_last=True, places=place)
    losses, accuracies = [], []
    for iteration, data in enumerate(loader()):
        if iteration == args.total_iter_num:
            break
        loss, acc = exe.run(main_prog, feed=data, fetch_list=[avg_cost.name, accuracy.name])
        losses.append(loss)
        accuracies.append(np.mean(acc))
        if len(losses) == args.display_iter_step:
            print("iter %d, loss %f, acc1 %.3f" % (
                iteration, np.mean(losses), np.mean(accuracies)))
            losses, accuracies = [], []
    fluid.io.save_persistables(exe, args.model_save_dir, main_program=main_prog)


if __name__ == "__main__":
    main()
