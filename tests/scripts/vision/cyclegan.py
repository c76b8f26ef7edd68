"""CycleGAN whose discriminators pay for gradients that are not of norm 1 (second order)."""
from __future__ import print_function

import argparse
import os

import numpy as np
import paddle
import paddle.fluid as fluid

SIZE = 8
LAMBDA_CYCLE, LAMBDA_GP = 10.0, 10.0


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epoch", type=int, default=4)
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--g_base_dims", type=int, default=6)
    parser.add_argument("--d_base_dims", type=int, default=6)
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--init_model", type=str, default=None)
    parser.add_argument("--output", "--model_dir", dest="output", type=str, default="output")
    return parser.parse_args()


def write_images(folder):
    """Two folders of grey PGM images: dark ones with a bright stripe, and the other way."""
    rng = np.random.RandomState(6)
    for name in ["trainA", "trainB"]:
        where = os.path.join(folder, name)
        if not os.path.isdir(where):
            os.makedirs(where)
        for i in range(16):
            image = rng.randint(20, 60, (SIZE, SIZE))
            image[:, rng.randint(SIZE)] += 150
            if name == "trainB":
                image = 255 - image.T
            with open(os.path.join(where, "%03d.pgm" % i), "wb") as out:
                out.write(("P5\n%d %d\n255\n" % (SIZE, SIZE)).encode())
                out.write(image.astype("uint8").tobytes())


def image_reader(folder):
    def reader():
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name), "rb") as f:
                pixels = np.frombuffer(f.read()[-SIZE * SIZE:], dtype="uint8")
            yield (pixels.reshape(1, SIZE, SIZE) / 127.5 - 1.0).astype("float32")

    return reader


def norm_layer(input, name):
    """Instance normalization written out, with its own scale and offset."""
    mean = fluid.layers.reduce_mean(input, dim=[2, 3], keep_dim=True)
    sub_mean = fluid.layers.elementwise_sub(input, mean)
    variance = fluid.layers.reduce_mean(fluid.layers.square(sub_mean), dim=[2, 3], keep_dim=True)
    normed = fluid.layers.elementwise_div(sub_mean, fluid.layers.sqrt(variance + 1e-5))
    scale = fluid.layers.create_parameter(
        name=name + "_scale", shape=input.shape[1:2], dtype="float32",
        default_initializer=fluid.initializer.Constant(1.0))
    offset = fluid.layers.create_parameter(
        name=name + "_offset", shape=input.shape[1:2], dtype="float32",
        default_initializer=fluid.initializer.Constant(0.0))
    return fluid.layers.elementwise_add(
        fluid.layers.elementwise_mul(normed, scale, axis=1), offset, axis=1)


def conv2d(input, num_filters, filter_size, stride=1, padding=0, name="conv2d", norm=True,
           act=None):
    conv = fluid.layers.conv2d(
        input, num_filters, filter_size, stride=stride, padding=padding,
        param_attr=fluid.ParamAttr(
            name=name + "_w", initializer=fluid.initializer.TruncatedNormal(scale=0.1)),
        bias_attr=fluid.ParamAttr(
            name=name + "_b", initializer=fluid.initializer.Constant(0.0)))
    if norm:
        conv = norm_layer(conv, name + "_norm")
    if act == "relu":
        return fluid.layers.relu(conv)
    if act == "leaky":
        return fluid.layers.leaky_relu(conv, alpha=0.2)
    if act == "tanh":
        return fluid.layers.tanh(conv)
    return conv


def deconv2d(input, num_filters, name):
    conv = fluid.layers.conv2d_transpose(
        input, num_filters, filter_size=4, stride=2, padding=1,
        param_attr=fluid.ParamAttr(
            name=name + "_w", initializer=fluid.initializer.TruncatedNormal(scale=0.1)),
        bias_attr=fluid.ParamAttr(
            name=name + "_b", initializer=fluid.initializer.Constant(0.0)))
    return fluid.layers.relu(norm_layer(conv, name + "_norm"))


def resnet_block(input, dim, name):
    padded = fluid.layers.pad2d(input, [1, 1, 1, 1], mode="reflect")
    out = conv2d(padded, dim, 3, name=name + "_c1", act="relu")
    padded = fluid.layers.pad2d(out, [1, 1, 1, 1], mode="reflect")
    return fluid.layers.elementwise_add(input, conv2d(padded, dim, 3, name=name + "_c2"))


def generator(image, dims, name):
    padded = fluid.layers.pad2d(image, [1, 1, 1, 1], mode="reflect")
    out = conv2d(padded, dims, 3, name=name + "_c1", act="relu")
    out = conv2d(out, dims * 2, 3, stride=2, padding=1, name=name + "_c2", act="relu")
    out = resnet_block(out, dims * 2, name + "_r1")
    out = deconv2d(out, dims, name + "_dc1")
    padded = fluid.layers.pad2d(out, [1, 1, 1, 1], mode="reflect")
    return conv2d(padded, 1, 3, name=name + "_out", norm=False, act="tanh")


def discriminator(image, dims, name):
    out = conv2d(image, dims, 4, stride=2, padding=1, name=name + "_c1", norm=False, act="leaky")
    out = conv2d(out, dims * 2, 3, padding=1, name=name + "_c2", norm=False, act="leaky")
    return conv2d(out, 1, 3, padding=1, name=name + "_out", norm=False)


def gradient_penalty(real, fake, mix, dims, name):
    """(|gradient of the judgement by a mixed image| - 1) squared."""
    mixed = fluid.layers.elementwise_add(
        fluid.layers.elementwise_mul(real, mix, axis=0),
        fluid.layers.elementwise_mul(
            fake, fluid.layers.scale(mix, scale=-1.0, bias=1.0), axis=0))
    mixed.stop_gradient = False
    pred = discriminator(mixed, dims, name)
    gradient = fluid.gradients(targets=pred, inputs=mixed, no_grad_set=set())[0]
    gradient = fluid.layers.reshape(gradient, [-1, SIZE * SIZE])
    norm = fluid.layers.sqrt(
        fluid.layers.reduce_sum(fluid.layers.square(gradient), dim=1) + 1e-10)
    return fluid.layers.reduce_mean(fluid.layers.square(norm - 1.0))


class GTrainer(object):
    def __init__(self, input_A, input_B, args, step_per_epoch):
        self.program = fluid.default_main_program().clone()
        with fluid.program_guard(self.program):
            dims = args.g_base_dims
            self.fake_B = generator(input_A, dims, "GA")
            self.fake_A = generator(input_B, dims, "GB")
            cyc_A = generator(self.fake_B, dims, "GB")
            cyc_B = generator(self.fake_A, dims, "GA")
            self.infer_program = self.program.clone(for_test=True)
            abs_A = fluid.layers.abs(fluid.layers.elementwise_sub(x=input_A, y=cyc_A))
            abs_B = fluid.layers.abs(fluid.layers.elementwise_sub(x=input_B, y=cyc_B))
            self.cyc_loss = LAMBDA_CYCLE * (
                fluid.layers.reduce_mean(abs_A) + fluid.layers.reduce_mean(abs_B))
            judged_A = discriminator(self.fake_B, args.d_base_dims, "DA")
            judged_B = discriminator(self.fake_A, args.d_base_dims, "DB")
            self.adv_loss = -1.0 * (
                fluid.layers.reduce_mean(judged_A) + fluid.layers.reduce_mean(judged_B))
            self.g_loss = fluid.layers.elementwise_add(self.cyc_loss, self.adv_loss)
            vars = [v.name for v in self.program.list_vars()
                    if fluid.io.is_parameter(v) and v.name.startswith(("GA", "GB"))]
            optimizer = fluid.optimizer.Adam(
                learning_rate=fluid.layers.piecewise_decay(
                    boundaries=[3 * step_per_epoch],
                    values=[args.learning_rate, args.learning_rate * 0.5]),
                beta1=0.5, beta2=0.999, name="net_G")
            optimizer.minimize(self.g_loss, parameter_list=vars)


class DTrainer(object):
    def __init__(self, real, fake, mix, args, name):
        self.program = fluid.default_main_program().clone()
        with fluid.program_guard(self.program):
            dims = args.d_base_dims
            pred_real = discriminator(real, dims, name)
            pred_fake = discriminator(fake, dims, name)
            penalty = gradient_penalty(real, fake, mix, dims, name)
            self.d_loss = (
                fluid.layers.reduce_mean(pred_fake) - fluid.layers.reduce_mean(pred_real) +
                LAMBDA_GP * penalty)
            vars = [v.name for v in self.program.list_vars()
                    if fluid.io.is_parameter(v) and v.name.startswith(name)]
            optimizer = fluid.optimizer.Adam(
                learning_rate=args.learning_rate, beta1=0.5, beta2=0.999, name="net_" + name)
            optimizer.minimize(self.d_loss, parameter_list=vars)


def train(args):
    write_images("data")
    shape = [-1, 1, SIZE, SIZE]
    input_A = fluid.layers.data(
        name="input_A", shape=shape, dtype="float32", append_batch_size=False)
    input_B = fluid.layers.data(
        name="input_B", shape=shape, dtype="float32", append_batch_size=False)
    fake = fluid.layers.data(
        name="fake", shape=shape, dtype="float32", append_batch_size=False)
    mix = fluid.layers.data(name="mix", shape=[-1], dtype="float32", append_batch_size=False)

    steps = 16 // args.batch_size
    g_trainer = GTrainer(input_A, input_B, args, steps)
    d_A = DTrainer(input_B, fake, mix, args, "DA")
    d_B = DTrainer(input_A, fake, mix, args, "DB")

    place = fluid.CPUPlace()
    exe = fluid.Executor(place)
    fluid.default_startup_program().random_seed = 90
    exe.run(fluid.default_startup_program())
    trainers = [("g", g_trainer), ("d_A", d_A), ("d_B", d_B)]
    if args.init_model:
        for name, trainer in trainers:
            fluid.io.load_persistables(
                exe, os.path.join(args.init_model, name), main_program=trainer.program)

    A_reader = paddle.batch(image_reader("data/trainA"), args.batch_size)
    B_reader = paddle.batch(image_reader("data/trainB"), args.batch_size)
    rng = np.random.RandomState(8)
    for epoch in range(args.epoch):
        for batch_id, (data_A, data_B) in enumerate(zip(A_reader(), B_reader())):
            tensor_A, tensor_B = fluid.LoDTensor(), fluid.LoDTensor()
            tensor_A.set(np.array(data_A), place)
            tensor_B.set(np.array(data_B), place)
            g_loss, cyc_loss, fake_A, fake_B = exe.run(
                g_trainer.program,
                fetch_list=[g_trainer.g_loss, g_trainer.cyc_loss, g_trainer.fake_A,
                            g_trainer.fake_B],
                feed={"input_A": tensor_A, "input_B": tensor_B})
            mixes = rng.rand(2, args.batch_size).astype("float32")
            d_A_loss = exe.run(
                d_A.program, fetch_list=[d_A.d_loss],
                feed={"input_B": tensor_B, "fake": fake_B, "mix": mixes[0]})[0]
            d_B_loss = exe.run(
                d_B.program, fetch_list=[d_B.d_loss],
                feed={"input_A": tensor_A, "fake": fake_A, "mix": mixes[1]})[0]
            print("epoch%d: batch%d: g_cyc_loss: %.5f; g_A_: %.5f; d_A: %.5f; d_B: %.5f" % (
                epoch, batch_id, cyc_loss[0], g_loss[0], d_A_loss[0], d_B_loss[0]))
    for name, trainer in trainers:
        fluid.io.save_persistables(
            exe, os.path.join(args.output, name), main_program=trainer.program)


if __name__ == "__main__":
    train(parse_args())
