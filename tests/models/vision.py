"""Image models: LeNet, ResNet-50 (arXiv 1512.03385), SE-ResNeXt-50 (1611.05431 with 1709.01507)."""

from typing import Any

import bireme as fluid

from .model import Feed, Model, floats, ids, random

layers = fluid.layers


def conv_bn(
    x: Any,
    filters: int,
    size: int,
    stride: int = 1,
    groups: int = 1,
    act: Any = None,
    name: Any = None,
) -> Any:
    """Convolution without bias, then batch normalisation."""
    attr = None if name is None else fluid.ParamAttr(name=f"{name}_weights")
    conv = layers.conv2d(
        x, filters, size, stride, (size - 1) // 2, groups=groups, param_attr=attr, bias_attr=False
    )
    if name is None:
        return layers.batch_norm(conv, act=act)
    bn = "bn_conv1" if name == "conv1" else f"bn{name[3:]}"
    return layers.batch_norm(
        conv,
        act=act,
        param_attr=fluid.ParamAttr(name=f"{bn}_scale"),
        bias_attr=fluid.ParamAttr(name=f"{bn}_offset"),
        moving_mean_name=f"{bn}_mean",
        moving_variance_name=f"{bn}_variance",
    )


def lenet(image: Any, classes: int) -> Any:
    """Two convolutions with pooling, then a classifier: class probabilities."""
    x = fluid.nets.simple_img_conv_pool(image, 20, 5, pool_size=2, pool_stride=2, act="relu")
    x = fluid.nets.simple_img_conv_pool(x, 50, 3, pool_size=2, pool_stride=2, act="relu")
    return layers.fc(x, classes, act="softmax")


def bottleneck(x: Any, width: int, stride: int, name: Any = None) -> Any:
    """1x1, 3x3, 1x1 convolutions beside a shortcut, which projects where the shape changes."""

    def part(suffix: str) -> Any:
        return None if name is None else f"{name}_{suffix}"

    y = conv_bn(x, width, 1, act="relu", name=part("branch2a"))
    y = conv_bn(y, width, 3, stride, act="relu", name=part("branch2b"))
    y = conv_bn(y, width * 4, 1, name=part("branch2c"))
    if x.shape[1] != width * 4 or stride != 1:
        x = conv_bn(x, width * 4, 1, stride, name=part("branch1"))
    return layers.elementwise_add(x, y, act="relu")


def resnet50(image: Any, classes: int) -> Any:
    """Class probabilities by the 50-layer residual network."""
    x = conv_bn(image, 64, 7, 2, act="relu", name="conv1")
    x = layers.pool2d(x, 3, "max", 2, 1)
    for stage, (depth, width) in enumerate(zip((3, 4, 6, 3), (64, 128, 256, 512), strict=True)):
        for i in range(depth):
            stride = 2 if i == 0 and stage else 1
            x = bottleneck(x, width, stride, name=f"res{stage + 2}{chr(97 + i)}")
    x = layers.pool2d(x, pool_type="avg", global_pooling=True)
    return layers.fc(x, classes, act="softmax")


def squeeze_excite(x: Any, channels: int, ratio: int = 16) -> Any:
    """Weigh each channel by a small network over all channel means."""
    mean = layers.pool2d(x, pool_type="avg", global_pooling=True)
    gate = layers.fc(layers.fc(mean, channels // ratio, act="relu"), channels, act="sigmoid")
    return layers.elementwise_mul(x, gate, axis=0)


def se_block(x: Any, width: int, stride: int) -> Any:
    y = conv_bn(x, width, 1, act="relu")
    y = conv_bn(y, width, 3, stride, groups=32, act="relu")
    y = squeeze_excite(conv_bn(y, width * 2, 1), width * 2)
    if x.shape[1] != width * 2 or stride != 1:
        x = conv_bn(x, width * 2, 1, stride)
    return layers.elementwise_add(x, y, act="relu")


def se_resnext50(image: Any, classes: int) -> Any:
    """Class probabilities by the 50-layer network of grouped convolutions with channel gates."""
    x = layers.pool2d(conv_bn(image, 64, 7, 2, act="relu"), 3, "max", 2, 1)
    for stage, (depth, width) in enumerate(zip((3, 4, 6, 3), (128, 256, 512, 1024), strict=True)):
        for i in range(depth):
            x = se_block(x, width, 2 if i == 0 and stage else 1)
    x = layers.pool2d(x, pool_type="avg", global_pooling=True)
    return layers.fc(layers.dropout(x, 0.2), classes, act="softmax")


def _classifier(network: Any, side: int, classes: int, channels: int = 3) -> Any:
    def build() -> Any:
        image = layers.data("image", [channels, side, side])
        label = layers.data("label", [1], dtype="int64")
        return layers.mean(layers.cross_entropy(network(image, classes), label))

    return build


def _images(side: int, classes: int, batch: int, channels: int = 3) -> Any:
    def feed(step: int) -> Feed:
        rng = random(step)
        label = ids(rng, classes, batch, 1)
        image = floats(rng, batch, channels, side, side) + label[:, :, None, None] / classes
        return {"image": image.astype("float32"), "label": label}

    return feed


def _adam(rate: float) -> Any:
    return lambda: fluid.optimizer.Adam(rate)


MODELS = [
    Model("lenet", _classifier(lenet, 16, 10, 1), _images(16, 10, 16, 1), _adam(0.003), 20),
    Model("resnet50", _classifier(resnet50, 32, 4), _images(32, 4, 8), _adam(0.0005), 8),
    Model("se_resnext50", _classifier(se_resnext50, 32, 4), _images(32, 4, 8), _adam(0.0005), 6),
]
