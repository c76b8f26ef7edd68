"""ResNet-50 as a program to measure: convolutions without bias, batch normalisation, momentum."""

from typing import Any

import bireme as fluid

layers = fluid.layers


def _conv(x: Any, channels: int, kernel: int, stride: int = 1, act: str | None = None) -> Any:
    padding = (kernel - 1) // 2
    x = layers.conv2d(x, channels, kernel, stride, padding, bias_attr=False)
    return layers.batch_norm(x, act=act)


def _bottleneck(x: Any, width: int, stride: int) -> Any:
    y = _conv(_conv(x, width, 1, act="relu"), width, 3, stride, act="relu")
    y = _conv(y, width * 4, 1)
    if x.shape[1] != width * 4 or stride != 1:
        x = _conv(x, width * 4, 1, stride)
    return layers.elementwise_add(x, y, act="relu")


def network(
    size: int, classes: int = 1000, depths: tuple[int, ...] = (3, 4, 6, 3)
) -> tuple[Any, list[Any]]:
    """(loss, ends of the blocks) for images of size x size, in the default program."""
    image = layers.data("image", [3, size, size])
    label = layers.data("label", [1], dtype="int64")
    x = layers.pool2d(_conv(image, 64, 7, 2, "relu"), 3, "max", 2, 1)
    ends = [x]
    for stage, depth in enumerate(depths):
        for i in range(depth):
            x = _bottleneck(x, 64 << stage, 2 if i == 0 and stage else 1)
            ends.append(x)
    x = layers.pool2d(x, pool_type="avg", global_pooling=True)
    found = layers.softmax_with_cross_entropy(layers.fc(x, classes), label)
    return layers.mean(found), ends


def build(size: int, classes: int = 1000, depths: tuple[int, ...] = (3, 4, 6, 3)) -> Any:
    """(main, startup, loss) of training on images of size x size."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = 1
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        loss, _ = network(size, classes, depths)
        fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    return main, startup, loss
