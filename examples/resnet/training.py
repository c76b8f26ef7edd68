"""What both scripts share: the arguments, the program of ResNet-50, and the loop."""

import argparse
import os

import paddle
import paddle.fluid as fluid
from images import Images
from paddle.distributed import fleet
from resnet import resnet50


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", help="a folder with one folder of images per class")
    parser.add_argument("--size", type=int, default=64, help="height and width in pixels")
    parser.add_argument("--batch", type=int, default=32, help="images per process and step")
    parser.add_argument("--rate", type=float, default=0.01, help="learning rate")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batches", type=int, default=0, help="of an epoch at most; 0: all")
    return parser.parse_args()


def train(strategy, options):
    """Train with Momentum and L2 decay under a strategy of Fleet, and print every 5 batches."""
    images = Images(options.folder, options.size)
    image = fluid.layers.data("image", [3, options.size, options.size])
    label = fluid.layers.data("label", [1], dtype="int64")
    scores = resnet50(image, images.classes)
    cost, guess = fluid.layers.softmax_with_cross_entropy(scores, label, return_softmax=True)
    cost = fluid.layers.mean(cost)
    acc1 = fluid.layers.accuracy(guess, label, k=1)
    acc5 = fluid.layers.accuracy(guess, label, k=min(5, images.classes))

    optimizer = paddle.optimizer.Momentum(
        learning_rate=options.rate, momentum=0.9, weight_decay=paddle.regularizer.L2Decay(1e-4)
    )
    fleet.distributed_optimizer(optimizer, strategy).minimize(cost)
    exe = paddle.static.Executor(paddle.CUDAPlace(int(os.environ.get("FLAGS_selected_gpus", 0))))
    exe.run(paddle.static.default_startup_program())
    main = paddle.static.default_main_program()
    for epoch in range(options.epochs):
        rows = images.batches(epoch, fleet.worker_index(), fleet.worker_num(), options.batch)
        for step, (pixels, labels) in enumerate(rows):
            if options.batches and step == options.batches:
                break
            feed = {"image": pixels, "label": labels}
            found = exe.run(main, feed=feed, fetch_list=[cost, acc1, acc5])
            if step % 5 == 0:
                values = (epoch, step) + tuple(value.item() for value in found)
                print(
                    "[Epoch %d, batch %d] loss: %.5f, acc1: %.5f, acc5: %.5f" % values, flush=True
                )
