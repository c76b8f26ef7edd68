"""Small uses of layers over images and volumes, against a `fluid` that is either one."""

USES = {}  # read by Python 3.8 as well


def image(f, shape=(2, 4, 6, 6), name="x", dtype="float32"):
    v = f.layers.data(name, list(shape), append_batch_size=False, dtype=dtype)
    v.stop_gradient = dtype != "float32"
    return v


def each(layer, variants, shape=(2, 4, 6, 6)):
    """A use of a layer for each set of arguments."""
    for name, given in variants.items():

        def use(f, n=layer, k=given):
            return getattr(f.layers, n)(image(f, shape), **k)

        USES[layer + name] = use


VOLUME = (2, 4, 4, 5, 5)
LAST = (2, 6, 6, 4)

each(
    "conv2d",
    {
        "": dict(num_filters=5, filter_size=3),
        "_padded": dict(num_filters=5, filter_size=3, padding=1, stride=2),
        "_point": dict(num_filters=3, filter_size=1),
        "_point_stride": dict(num_filters=3, filter_size=1, stride=2),
        "_dilated": dict(num_filters=3, filter_size=3, dilation=2, padding=2),
        "_groups": dict(num_filters=4, filter_size=3, groups=2),
        "_depthwise": dict(num_filters=4, filter_size=3, groups=4, padding=1),
        "_depthwise_two": dict(num_filters=8, filter_size=3, groups=4, padding=1),
        "_uneven": dict(num_filters=3, filter_size=[3, 2], stride=[1, 2], padding=[1, 0]),
        "_four_paddings": dict(num_filters=3, filter_size=3, padding=[1, 0, 2, 1]),
        "_pairs": dict(num_filters=3, filter_size=3, padding=[[0, 0], [0, 0], [1, 0], [2, 1]]),
        "_same": dict(num_filters=3, filter_size=3, padding="SAME", stride=2),
        "_valid": dict(num_filters=3, filter_size=2, padding="VALID"),
        "_no_bias": dict(num_filters=3, filter_size=3, bias_attr=False, act="relu"),
    },
)
each("conv2d", {"_last": dict(num_filters=3, filter_size=3, data_format="NHWC")}, LAST)
each(
    "conv2d_transpose",
    {
        "": dict(num_filters=3, filter_size=3),
        "_stride": dict(num_filters=3, filter_size=3, stride=2, padding=1),
        "_size": dict(num_filters=3, filter_size=3, stride=2, output_size=[14, 14]),
        "_only_size": dict(num_filters=3, output_size=[13, 13], stride=2),
        "_groups": dict(num_filters=4, filter_size=3, groups=2),
        "_dilated": dict(num_filters=3, filter_size=3, dilation=2),
        "_same": dict(num_filters=3, filter_size=3, stride=2, padding="SAME"),
    },
)
each("conv3d", {"": dict(num_filters=3, filter_size=3, padding=1)}, VOLUME)
each("conv3d", {"_groups": dict(num_filters=4, filter_size=2, stride=2, groups=2)}, VOLUME)
each("conv3d_transpose", {"": dict(num_filters=3, filter_size=3, stride=2)}, VOLUME)
for _kind in ("max", "avg"):
    each(
        "pool2d",
        {
            f"_{_kind}": dict(pool_size=2, pool_type=_kind, pool_stride=2),
            f"_{_kind}_overlap": dict(pool_size=3, pool_type=_kind, pool_stride=2, pool_padding=1),
            f"_{_kind}_step": dict(pool_size=3, pool_type=_kind),
            f"_{_kind}_all": dict(pool_type=_kind, global_pooling=True),
            f"_{_kind}_ceil": dict(pool_size=3, pool_type=_kind, pool_stride=2, ceil_mode=True),
            f"_{_kind}_inclusive": dict(
                pool_size=3, pool_type=_kind, pool_stride=2, pool_padding=1, exclusive=False
            ),
            f"_{_kind}_uneven": dict(
                pool_size=[3, 2], pool_type=_kind, pool_stride=[2, 1], pool_padding=[1, 0]
            ),
            f"_{_kind}_same": dict(
                pool_size=3, pool_type=_kind, pool_stride=2, pool_padding="SAME"
            ),
            f"_{_kind}_four": dict(
                pool_size=3, pool_type=_kind, pool_stride=2, pool_padding=[1, 0, 1, 1]
            ),
        },
        (2, 3, 7, 7),
    )
    _last = dict(pool_size=2, pool_type=_kind, pool_stride=2, data_format="NHWC")
    each("pool2d", {f"_{_kind}_last": _last}, LAST)
    each("pool3d", {"_" + _kind: dict(pool_size=2, pool_type=_kind, pool_stride=2)}, VOLUME)
    _pad = dict(pool_size=3, pool_type=_kind, pool_stride=2, pool_padding=1)
    each("pool3d", {f"_{_kind}_padded": _pad}, VOLUME)
    each("adaptive_pool2d", {"_" + _kind: dict(pool_size=[2, 3], pool_type=_kind)}, (2, 3, 7, 7))
    each("adaptive_pool3d", {"_" + _kind: dict(pool_size=[2, 3, 2], pool_type=_kind)}, VOLUME)
each("adaptive_pool2d", {"_index": dict(pool_size=2, pool_type="max", require_index=True)})
each(
    "batch_norm",
    {
        "": {},
        "_relu": dict(act="relu"),
        "_momentum": dict(momentum=0.7, epsilon=1e-3),
        "_test": dict(is_test=True),
        "_global": dict(use_global_stats=True),
    },
)
each("batch_norm", {"_flat": {}}, (6, 5))
each("batch_norm", {"_last": dict(data_layout="NHWC")}, LAST)
each(
    "layer_norm",
    {
        "": {},
        "_inner": dict(begin_norm_axis=2),
        "_no_scale": dict(scale=False),
        "_no_shift": dict(shift=False),
        "_act": dict(act="relu", epsilon=1e-3),
    },
    (3, 4, 5),
)
each("group_norm", {"": dict(groups=2), "_relu": dict(groups=2, act="relu")})
USES["group_norm_scaled"] = lambda f: f.layers.group_norm(
    image(f), 2, param_attr=f.ParamAttr(name="s"), bias_attr=f.ParamAttr(name="b")
)
each("group_norm", {"_last": dict(groups=2, data_layout="NHWC")}, LAST)
each("instance_norm", {"": {}})
each("data_norm", {"": {}}, (4, 5))
each("l2_normalize", {"_axis": dict(axis=1), "_last": dict(axis=-1, epsilon=0.01)})
each("lrn", {"": {}, "_other": dict(n=3, k=2.0, alpha=0.01, beta=0.5)})
each(
    "resize_bilinear",
    {
        "": dict(out_shape=[9, 9]),
        "_scale": dict(scale=2.0),
        "_corners": dict(out_shape=[9, 8], align_corners=False),
        "_mode": dict(out_shape=[3, 4], align_corners=False, align_mode=0),
    },
)
each(
    "resize_nearest",
    {"": dict(out_shape=[9, 8]), "_scale": dict(scale=1.5, align_corners=False)},
)
each(
    "resize_trilinear",
    {"": dict(out_shape=[5, 6, 6]), "_corners": dict(out_shape=[5, 6, 6], align_corners=False)},
    (2, 2, 3, 4, 4),
)
each("image_resize", {"_nearest": dict(out_shape=[8, 8], resample="NEAREST")})
each("image_resize_short", {"": dict(out_short_len=4)})
each("unfold", {"": dict(kernel_sizes=[3, 3])})
each("unfold", {"_padded": dict(kernel_sizes=[3, 2], strides=2, paddings=[1, 0])})
each("pixel_shuffle", {"": dict(upscale_factor=2)})
each("space_to_depth", {"": dict(blocksize=2)})
each("shuffle_channel", {"": dict(group=2)})
each("prelu", {"_channels": dict(mode="channel")})
each("maxout", {"": dict(groups=2)})
each("temporal_shift", {"": dict(seg_num=2, shift_ratio=0.25)}, (4, 4, 3, 3))
each("pad2d", {"_reflect": dict(paddings=[1, 2, 0, 1], mode="reflect")})
each("pad2d", {"_last": dict(paddings=[1, 2, 0, 1], mode="edge", data_format="NHWC")}, LAST)
each("im2sequence", {"": dict(filter_size=2, stride=2)})
USES["fsp_matrix"] = lambda f: f.layers.fsp_matrix(image(f), image(f, (2, 3, 6, 6), "y"))
USES["img_conv_group"] = lambda f: f.nets.img_conv_group(
    image(f), [3, 4], pool_size=2, conv_act="relu", pool_stride=2
)
USES["simple_img_conv_pool"] = lambda f: f.nets.simple_img_conv_pool(
    image(f), 3, 3, 2, 2, act="relu"
)
