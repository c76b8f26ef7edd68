"""ResNet-50 (He et al., arXiv 1512.03385) with the names that FleetX gives its parameters."""

import paddle.fluid as fluid

DEPTHS, WIDTHS = (3, 4, 6, 3), (64, 128, 256, 512)
layers = fluid.layers


def conv_bn(x, name, filters, size, stride=1, act=None):
    norm = "bn_conv1" if name == "conv1" else "bn" + name[3:]
    x = layers.conv2d(
        x, filters, size, stride, (size - 1) // 2, bias_attr=False, param_attr=name + "_weights"
    )
    return layers.batch_norm(
        x,
        act=act,
        param_attr=norm + "_scale",
        bias_attr=norm + "_offset",
        moving_mean_name=norm + "_mean",
        moving_variance_name=norm + "_variance",
    )


def bottleneck(x, name, width, stride):
    y = conv_bn(x, name + "_branch2a", width, 1, act="relu")
    y = conv_bn(y, name + "_branch2b", width, 3, stride, act="relu")
    y = conv_bn(y, name + "_branch2c", 4 * width, 1)
    if x.shape[1] != 4 * width or stride != 1:
        x = conv_bn(x, name + "_branch1", 4 * width, 1, stride)
    return layers.elementwise_add(x, y, act="relu")


def resnet50(image, classes):
    """Scores [N, classes] of images [N, 3, height, width]."""
    x = conv_bn(image, "conv1", 64, 7, 2, "relu")
    x = layers.pool2d(x, 3, "max", pool_stride=2, pool_padding=1)
    for stage, (depth, width) in enumerate(zip(DEPTHS, WIDTHS, strict=True)):
        for i in range(depth):
            name = "res%d%s" % (stage + 2, "abcdef"[i])
            x = bottleneck(x, name, width, 2 if i == 0 and stage else 1)
    x = layers.pool2d(x, pool_type="avg", global_pooling=True)
    return layers.fc(x, classes)
