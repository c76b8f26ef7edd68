"""Residual networks on CIFAR batches: warm-up, then cosine decay; label smoothing; PyReader."""
from __future__ import print_function

import argparse
import math
import os
import pickle
import tarfile
import time
from io import BytesIO

import numpy as np
import paddle
import paddle.fluid as fluid
from paddle.fluid.layers.learning_rate_scheduler import _decay_step_counter
import paddle.fluid.layers.ops as ops

CLASSES = 4
SIZE = 16


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--num_epochs", type=int, default=4)
    parser.add_argument("--warm_up_epochs", type=int, default=1)
    parser.add_argument("--total_images", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--l2_decay", type=float, default=1e-4)
    parser.add_argument("--label_smoothing_epsilon", type=float, default=0.1)
    parser.add_argument("--layers", type=int, default=18)
    parser.add_argument("--use_gpu", type=eval, default=False)
    parser.add_argument("--pretrained_model", "--init_model", dest="pretrained_model", default=None)
    parser.add_argument("--model_save_dir", "--model_dir", dest="model_save_dir", default="output")
    return parser.parse_args()


def write_cifar(path, total):
    """A tar file as CIFAR comes: pickled dictionaries of pixels and labels."""
    rng = np.random.RandomState(3)
    patterns = rng.rand(CLASSES, 3 * SIZE * SIZE)
    with tarfile.open(path, mode="w:gz") as tar:
        for name, count in [("data_batch_1", total), ("test_batch", 16)]:
            labels = rng.randint(0, CLASSES, count)
            pixels = 0.7 * patterns[labels] + 0.3 * rng.rand(count, 3 * SIZE * SIZE)
            batch = {b"data": (pixels * 255).astype("uint8"), b"labels": labels.tolist()}
            data = pickle.dumps(batch, protocol=2)
            info = tarfile.TarInfo("cifar/" + name)
            info.size = len(data)
            tar.addfile(info, BytesIO(data))


def cifar_reader(path, part):
    def reader():
        with tarfile.open(path, mode="r") as f:
            names = (each.name for each in f if part in each.name)
            for name in names:
                batch = pickle.load(f.extractfile(name), encoding="bytes")
                for sample, label in zip(batch[b"data"], batch[b"labels"]):
                    image = (sample / 255.0 - 0.5).astype(np.float32)
                    yield image.reshape(3, SIZE, SIZE), int(label)

    return reader


def cosine_decay_with_warmup(learning_rate, step_each_epoch, epochs, warmup_epoch):
    """The rate rises linearly over the warm-up, then follows a cosine, decided step by step."""
    global_step = _decay_step_counter()
    lr = fluid.layers.tensor.create_global_var(
        shape=[1], value=0.0, dtype="float32", persistable=True, name="learning_rate")
    warmup = fluid.layers.fill_constant(
        shape=[1], dtype="float32", value=float(warmup_epoch), force_cpu=True)
    with fluid.layers.control_flow.Switch() as switch:
        epoch = ops.floor(global_step / step_each_epoch)
        with switch.case(epoch < warmup):
            decayed_lr = learning_rate * (global_step / (step_each_epoch * warmup_epoch))
            fluid.layers.tensor.assign(input=decayed_lr, output=lr)
        with switch.default():
            decayed_lr = learning_rate * (ops.cos(
                (global_step - warmup_epoch * step_each_epoch) *
                (math.pi / (epochs * step_each_epoch))) + 1) / 2
            fluid.layers.tensor.assign(input=decayed_lr, output=lr)
    return lr


class ResNet(object):
    def __init__(self, layers=18):
        self.depth = {18: [1, 1, 1], 34: [2, 2, 2]}[layers]

    def net(self, input, class_dim):
        num_filters = [8, 16, 32]
        conv = self.conv_bn_layer(input, 8, 3, stride=1, act="relu", name="conv1")
        conv = fluid.layers.pool2d(
            input=conv, pool_size=3, pool_stride=2, pool_padding=1, pool_type="max")
        for block in range(len(self.depth)):
            for i in range(self.depth[block]):
                conv = self.basic_block(
                    input=conv, num_filters=num_filters[block],
                    stride=2 if i == 0 and block != 0 else 1,
                    name="res" + str(block + 2) + chr(97 + i))
        pool = fluid.layers.pool2d(input=conv, pool_type="avg", global_pooling=True)
        stdv = 1.0 / math.sqrt(pool.shape[1] * 1.0)
        return fluid.layers.fc(
            input=pool, size=class_dim,
            param_attr=fluid.param_attr.ParamAttr(
                initializer=fluid.initializer.Uniform(-stdv, stdv)))

    def conv_bn_layer(self, input, num_filters, filter_size, stride=1, groups=1, act=None,
                      name=None):
        conv = fluid.layers.conv2d(
            input=input, num_filters=num_filters, filter_size=filter_size, stride=stride,
            padding=(filter_size - 1) // 2, groups=groups, act=None,
            param_attr=fluid.ParamAttr(name=name + "_weights"), bias_attr=False)
        bn_name = "bn_" + name if name == "conv1" else "bn" + name[3:]
        return fluid.layers.batch_norm(
            input=conv, act=act,
            param_attr=fluid.ParamAttr(name=bn_name + "_scale"),
            bias_attr=fluid.ParamAttr(bn_name + "_offset"),
            moving_mean_name=bn_name + "_mean",
            moving_variance_name=bn_name + "_variance")

    def shortcut(self, input, ch_out, stride, name):
        if input.shape[1] != ch_out or stride != 1:
            return self.conv_bn_layer(input, ch_out, 1, stride, name=name)
        return input

    def basic_block(self, input, num_filters, stride, name):
        conv0 = self.conv_bn_layer(
            input, num_filters, 3, act="relu", stride=stride, name=name + "_branch2a")
        conv1 = self.conv_bn_layer(conv0, num_filters, 3, act=None, name=name + "_branch2b")
        short = self.shortcut(input, num_filters, stride, name=name + "_branch1")
        return fluid.layers.elementwise_add(x=short, y=conv1, act="relu")


def build_program(is_train, main_prog, startup_prog, args):
    with fluid.program_guard(main_prog, startup_prog):
        py_reader = fluid.layers.py_reader(
            capacity=16, shapes=[[-1, 3, SIZE, SIZE], [-1, 1]], lod_levels=[0, 0],
            dtypes=["float32", "int64"], use_double_buffer=True,
            name="train_reader" if is_train else "test_reader")
        with fluid.unique_name.guard():
            image, label = fluid.layers.read_file(py_reader)
            out = ResNet(args.layers).net(image, CLASSES)
            softmax_out = fluid.layers.softmax(out, use_cudnn=False)
            if is_train and args.label_smoothing_epsilon > 0:
                one_hot = fluid.layers.one_hot(input=label, depth=CLASSES)
                smooth = fluid.layers.label_smooth(
                    label=one_hot, epsilon=args.label_smoothing_epsilon, dtype="float32")
                cost = fluid.layers.cross_entropy(
                    input=softmax_out, label=smooth, soft_label=True)
            else:
                cost = fluid.layers.cross_entropy(input=softmax_out, label=label)
            avg_cost = fluid.layers.mean(cost)
            acc_top1 = fluid.layers.accuracy(input=softmax_out, label=label, k=1)
            acc_top2 = fluid.layers.accuracy(input=softmax_out, label=label, k=2)
            if not is_train:
                return py_reader, [avg_cost, acc_top1, acc_top2]
            step = int(math.ceil(float(args.total_images) / args.batch_size))
            optimizer = fluid.optimizer.Momentum(
                learning_rate=cosine_decay_with_warmup(
                    args.lr, step, args.num_epochs, args.warm_up_epochs),
                momentum=0.9,
                regularization=fluid.regularizer.L2Decay(args.l2_decay))
            optimizer.minimize(avg_cost)
            rate = optimizer._global_learning_rate()
            rate.persistable = True
            return py_reader, [avg_cost, acc_top1, acc_top2, rate]


def run_pass(exe, program, py_reader, fetch_list, on_batch):
    py_reader.start()
    results = []
    try:
        while True:
            begin = time.time()
            results.append(exe.run(program, fetch_list=fetch_list))
            on_batch(len(results) - 1, results[-1], time.time() - begin)
    except fluid.core.EOFException:
        py_reader.reset()
    return [np.mean([np.array(r[i]) for r in results]) for i in range(len(fetch_list))]


def main():
    args = parse_args()
    write_cifar("cifar.tar.gz", args.total_images)
    train_prog, test_prog = fluid.Program(), fluid.Program()
    startup_prog = fluid.Program()
    train_reader, train_fetches = build_program(True, train_prog, startup_prog, args)
    test_reader, test_fetches = build_program(False, test_prog, startup_prog, args)
    test_prog = test_prog.clone(for_test=True)

    place = fluid.CUDAPlace(0) if args.use_gpu else fluid.CPUPlace()
    exe = fluid.Executor(place)
    startup_prog.random_seed = 90
    exe.run(startup_prog)
    if args.pretrained_model:
        def if_exist(var):
            return os.path.exists(os.path.join(args.pretrained_model, var.name))

        fluid.io.load_vars(exe, args.pretrained_model, main_program=train_prog, predicate=if_exist)

    train_reader.decorate_paddle_reader(paddle.batch(
        cifar_reader("cifar.tar.gz", "data_batch"), batch_size=args.batch_size, drop_last=True))
    test_reader.decorate_paddle_reader(
        paddle.batch(cifar_reader("cifar.tar.gz", "test_batch"), batch_size=8))

    build_strategy = fluid.BuildStrategy()
    build_strategy.memory_optimize = False
    build_strategy.enable_inplace = True
    exec_strategy = fluid.ExecutionStrategy()
    exec_strategy.num_iteration_per_drop_scope = 10
    compiled = fluid.CompiledProgram(train_prog).with_data_parallel(
        loss_name=train_fetches[0].name, build_strategy=build_strategy,
        exec_strategy=exec_strategy, places=[place])

    for pass_id in range(args.num_epochs):
        def log(batch, values, period):
            loss, acc1, acc2, lr = [np.mean(np.array(v)) for v in values]
            print("Pass {0}, trainbatch {1}, loss {2}, acc1 {3}, acc2 {4}, lr {5}".format(
                pass_id, batch, "%.6f" % loss, "%.5f" % acc1, "%.5f" % acc2, "%.5f" % lr))

        run_pass(exe, compiled, train_reader, [v.name for v in train_fetches], log)
        test = run_pass(exe, test_prog, test_reader, test_fetches, lambda *_: None)
        print("End pass %d, test_loss %.5f, test_acc1 %.5f" % (pass_id, test[0], test[1]))

    if not os.path.isdir(args.model_save_dir):
        os.makedirs(args.model_save_dir)
    fluid.io.save_persistables(exe, args.model_save_dir, train_prog)


if __name__ == "__main__":
    main()
