"""Detection layers at the sizes of real models, against a `fluid` that is either one.

A use builds a program and returns (what to fetch, what to feed, whose gradients to fetch). The
losses, poolings and samplers show their gradients too: affine_grid_grad, grid_sampler_grad,
bicubic_interp_grad, sigmoid_focal_loss_grad, yolov3_loss_grad, roi_pool_grad, roi_align_grad,
psroi_pool_grad; ssd shows mine_hard_examples, suppression_with_places multiclass_nms2.
"""

import zlib

import numpy as np

USES = {}  # type: ignore[var-annotated]  # read by Python 3.7 as well


def feeds():
    return {}


def use(function):
    USES[function.__name__] = function
    return function


def draw(name):
    return np.random.RandomState(zlib.crc32(name.encode()) & 0x7FFFFFFF)


def boxes(name, count, size=1.0, least=0.05, most=0.5):
    """Boxes (left, top, right, bottom) within a square."""
    r = draw(name)
    low = r.uniform(0, 1 - least, (count, 2))
    high = np.minimum(low + r.uniform(least, most, (count, 2)), 1)
    return (np.concatenate([low, high], 1) * size).astype("float32")


def data(f, feed, name, array, lod=None):
    """A variable that is fed with `array`."""
    shape = [-1 if lod else array.shape[0]] + list(array.shape[1:])
    var = f.layers.data(name, shape, append_batch_size=False, dtype=str(array.dtype),
                        lod_level=len(lod or []))  # fmt: skip
    var.stop_gradient = array.dtype.kind != "f"
    feed[name] = f.create_lod_tensor(array, lod, f.CPUPlace()) if lod else array
    return var


def maps(name, *shape):
    return draw(name).standard_normal(shape).astype("float32")


@use
def prior_box(f):
    feed = feeds()
    x, image = (
        data(f, feed, "x", maps("x", 1, 4, 19, 19)),
        data(f, feed, "i", maps("i", 1, 3, 300, 300)),
    )
    out = f.layers.prior_box(
        x, image, [60.0], [111.0], [2.0, 3.0], flip=True, clip=True, offset=0.5)  # fmt: skip
    more = f.layers.prior_box(
        x, image, [30.0, 60.0], [60.0, 111.0], [1.0, 2.0], steps=[16.0, 16.0],
        min_max_aspect_ratios_order=True)  # fmt: skip
    return [*out, *more], feed, []


@use
def density_prior_box(f):
    feed = feeds()
    x, image = (
        data(f, feed, "x", maps("x", 1, 4, 9, 11)),
        data(f, feed, "i", maps("i", 1, 3, 90, 130)),
    )
    out = f.layers.density_prior_box(
        x, image, [4, 2, 1], [32.0, 64.0, 128.0], [1.0, 2.0], clip=True
    )
    flat = f.layers.density_prior_box(x, image, [2], [20.0], [1.0], flatten_to_2d=True)
    return [*out, *flat], feed, []


@use
def anchor_generator(f):
    feed = feeds()
    x = data(f, feed, "x", maps("x", 1, 4, 12, 16))
    out = f.layers.anchor_generator(
        x, [64.0, 128.0, 256.0], [0.5, 1.0, 2.0], stride=[16.0, 16.0], variance=[0.1, 0.1, 0.2, 0.2]
    )
    return list(out), feed, []


@use
def overlap_and_coding(f):
    feed = feeds()
    x = data(f, feed, "x", boxes("x", 9), [[4, 5]])
    y = data(f, feed, "y", boxes("y", 40))
    spread = data(f, feed, "v", np.full((40, 4), 0.2, "float32"))
    code = data(f, feed, "c", 0.1 * maps("c", 3, 40, 4))
    other = data(f, feed, "o", 0.1 * maps("o", 40, 5, 4))
    big = data(f, feed, "b", boxes("b", 40, 300.0))
    coder = f.layers.box_coder
    out = [
        f.layers.iou_similarity(x, y),
        f.layers.iou_similarity(x, big, box_normalized=False),
        coder(y, spread, x),
        coder(y, [0.1, 0.1, 0.2, 0.2], x),
        coder(y, spread, code, "decode_center_size"),
        coder(big, [0.1, 0.1, 0.2, 0.2], code, "decode_center_size", box_normalized=False),
        coder(y, spread, other, "decode_center_size", axis=1),
    ]
    return out, feed, []


@use
def clipping_and_assigning(f):
    feed = feeds()
    x = data(f, feed, "x", boxes("x", 9, 500.0) - 50, [[4, 5]])
    info = data(f, feed, "info", np.array([[300, 400, 1.0], [330, 220, 1.1]], "float32"))
    prior = data(f, feed, "p", boxes("p", 30, 300.0))
    spread = data(f, feed, "v", np.array([0.1, 0.1, 0.2, 0.2], "float32"))
    target = data(f, feed, "t", maps("t", 30, 5 * 4))
    score = data(f, feed, "s", np.abs(maps("s", 30, 5)))
    grid = data(f, feed, "g", maps("g", 2, 8, 6, 7))
    out = [f.layers.box_clip(x, info), f.layers.polygon_box_transform(grid)]
    out += f.layers.box_decoder_and_assign(prior, spread, target, score, 4.135)
    return out, feed, []


@use
def matching(f):
    feed = feeds()
    truth = data(f, feed, "t", boxes("t", 7), [[3, 4]])
    prior = data(f, feed, "p", boxes("p", 60))
    near = f.layers.iou_similarity(truth, prior)
    out = [*f.layers.bipartite_match(near), *f.layers.bipartite_match(near, "per_prediction", 0.3)]
    label = data(f, feed, "l", draw("l").randint(1, 5, (7, 1)).astype("int32"), [[3, 4]])
    code = f.layers.box_coder(prior, [0.1, 0.1, 0.2, 0.2], truth)
    label = f.layers.reshape(label, [0, -1, 1])
    out += f.layers.target_assign(label, out[2], mismatch_value=0)
    out += f.layers.target_assign(code, out[2], mismatch_value=0)
    return out, feed, []


@use
def ssd(f):
    feed = feeds()
    x = data(f, feed, "x", maps("x", 2, 8, 10, 10))
    small = data(f, feed, "s", maps("s", 2, 8, 5, 5))
    image = data(f, feed, "i", maps("i", 2, 3, 100, 100))
    truth = data(f, feed, "t", boxes("t", 7), [[3, 4]])
    label = data(f, feed, "l", draw("l").randint(1, 5, (7, 1)).astype("int32"), [[3, 4]])
    place, score, prior, spread = f.layers.multi_box_head(
        [x, small, small], image, 100, 5, [[2.0], [2.0, 3.0], [2.0]], 20, 90, clip=True)  # fmt: skip
    loss = f.layers.ssd_loss(place, score, truth, label, prior, spread)
    found = f.layers.detection_output(place, score, prior, spread, nms_threshold=0.45)
    return [place, score, prior, spread, loss, found], feed, [loss, x, small]


@use
def suppression(f):
    feed = feeds()
    box = data(f, feed, "b", np.stack([boxes("b0", 150), boxes("b1", 150)]))
    score = data(f, feed, "s", draw("s").uniform(0, 1, (2, 4, 150)).astype("float32"))
    nms = f.layers.multiclass_nms
    out = [
        nms(box, score, 0.05, 100, 50),
        nms(box, score, 0.3, 40, 20, nms_threshold=0.6, nms_eta=0.9, background_label=-1),
        nms(box, score, 0.3, -1, -1, nms_threshold=0.5, normalized=False),
        nms(box, score, 2.0, 40, 20),
    ]
    per = data(f, feed, "pb", np.stack([boxes("c%d" % i, 60) for i in range(3)], 1), [[25, 35]])
    value = data(f, feed, "ps", draw("ps").uniform(0, 1, (60, 3)).astype("float32"), [[25, 35]])
    out += [nms(per, value, 0.05, 100, 50, background_label=0)]
    return out, feed, []


@use
def suppression_with_places(f):
    feed = feeds()
    box = data(f, feed, "b", np.stack([boxes("b0", 150), boxes("b1", 150)]))
    score = data(f, feed, "s", draw("s").uniform(0, 1, (2, 4, 150)).astype("float32"))
    two = f.contrib.layers.multiclass_nms2
    return [*two(box, score, 0.05, 100, 50, return_index=True)], feed, []


@use
def proposals(f):
    feed = feeds()
    x = data(f, feed, "x", maps("x", 2, 4, 12, 16))
    anchor, spread = f.layers.anchor_generator(
        x, [32.0, 64.0, 128.0], [0.5, 1.0, 2.0], stride=[16.0, 16.0], variance=[1.0, 1.0, 1.0, 1.0])  # fmt: skip
    score = data(f, feed, "s", draw("s").uniform(0, 1, (2, 9, 12, 16)).astype("float32"))
    delta = data(f, feed, "d", 0.3 * maps("d", 2, 36, 12, 16))
    info = data(f, feed, "info", np.array([[190, 250, 1.0], [180, 200, 1.1]], "float32"))
    rois, probs = f.layers.generate_proposals(score, delta, info, anchor, spread, 500, 80, 0.7, 3.0)
    levels, restore = f.layers.distribute_fpn_proposals(rois, 2, 5, 4, 56)
    chosen = f.layers.collect_fpn_proposals([rois, rois], [probs, probs], 2, 3, 50)
    return [rois, probs, *levels, restore, chosen], feed, []


@use
def yolo_box(f):
    feed = feeds()
    x = data(f, feed, "x", maps("x", 2, 3 * 9, 13, 13))
    size = data(f, feed, "n", np.array([[416, 416], [375, 500]], "int32"))
    anchors = [10, 13, 16, 30, 33, 23]
    out = f.layers.yolo_box(x, size, anchors, 4, 0.3, 32)
    out += f.layers.yolo_box(x, size, anchors, 4, 0.01, 32, clip_bbox=False, scale_x_y=1.05)
    return list(out), feed, []


def _yolo(f, feed, **given):
    x = data(f, feed, "x", maps("x", 2, 3 * 9, 13, 13))
    size = draw("size").uniform(0.05, 0.6, (2, 6, 2))
    box = np.concatenate([draw("at").uniform(0.1, 0.9, (2, 6, 2)), size], 2).astype("float32")
    box[1, 4:] = 0
    truth = data(f, feed, "t", box)
    label = data(f, feed, "l", draw("l").randint(0, 4, (2, 6)).astype("int32"))
    anchors = [10, 13, 16, 30, 33, 23, 30, 61, 62, 45, 59, 119, 116, 90, 156, 198, 373, 326]
    loss = f.layers.yolov3_loss(x, truth, label, anchors, [6, 7, 8], 4, 0.5, 32, **given)
    return [loss], feed, [loss, x]


@use
def yolov3_loss(f):
    return _yolo(f, feeds())


@use
def yolov3_loss_with_scores(f):
    feed = feeds()
    score = data(f, feed, "w", draw("w").uniform(0.2, 1, (2, 6)).astype("float32"))
    return _yolo(f, feed, gt_score=score, use_label_smooth=False, scale_x_y=1.1)


def _regions(f, feed, channels=8):
    x = data(f, feed, "x", maps("x", 2, channels, 25, 30))
    rois = data(f, feed, "r", boxes("r", 11, 400.0) - 5, [[5, 6]])
    rois.stop_gradient = True
    return x, rois


@use
def roi_pool(f):
    feed = feeds()
    x, rois = _regions(f, feed)
    out = f.layers.roi_pool(x, rois, 7, 7, 1.0 / 16)
    return [out], feed, [out, x]


@use
def roi_align(f):
    feed = feeds()
    x, rois = _regions(f, feed)
    out = [
        f.layers.roi_align(x, rois, 7, 7, 1.0 / 16),
        f.layers.roi_align(x, rois, 3, 5, 1.0 / 8, 2),
    ]
    return out, feed, [f.layers.concat([f.layers.reshape(o, [-1]) for o in out]), x]


@use
def psroi_pool(f):
    feed = feeds()
    x, rois = _regions(f, feed, 3 * 16)
    out = f.layers.psroi_pool(x, rois, 3, 1.0 / 16, 4, 4)
    return [out], feed, [out, x]


@use
def grids(f):
    feed = feeds()
    theta = data(
        f, feed, "m", np.tile(np.eye(2, 3), (2, 1, 1)).astype("float32") + 0.3 * maps("m", 2, 2, 3)
    )
    x = data(f, feed, "x", maps("x", 2, 3, 11, 14))
    grid = f.layers.affine_grid(theta, [2, 3, 11, 14])
    out = f.layers.grid_sampler(x, grid)
    return [grid, out], feed, [out, theta, x]


@use
def bicubic(f):
    feed = feeds()
    x = data(f, feed, "x", maps("x", 2, 3, 11, 14))
    helper = f.layer_helper.LayerHelper("bicubic_interp")  # no layer of 1.8.5 appends it

    def resize(**attrs):
        out = helper.create_variable_for_type_inference("float32")
        attrs.update(interp_method="bicubic", data_layout="NCHW")
        helper.append_op(type="bicubic_interp", inputs={"X": x}, outputs={"Out": out}, attrs=attrs)
        return out

    out = [
        resize(out_h=20, out_w=31, align_corners=True),
        resize(out_h=7, out_w=9, align_corners=False),
        resize(out_h=-1, out_w=-1, scale=1.5, align_corners=False),
    ]
    return out, feed, [f.layers.concat([f.layers.reshape(o, [-1]) for o in out]), x]


@use
def hash_of_ids(f):
    feed = feeds()
    ids = data(f, feed, "i", draw("i").randint(0, 9999, (9, 2)).astype("int64"), [[4, 5]])
    if f.__name__ == "bireme":
        return [f.layers.hash(ids, 1000, 4)], feed, []
    helper = f.layer_helper.LayerHelper("hash")  # the layer of 1.8.5 fails on Python 3
    out = helper.create_variable_for_type_inference("int64", stop_gradient=True)
    attrs = {"num_hash": 4, "mod_by": 1000}
    helper.append_op(type="hash", inputs={"X": ids}, outputs={"Out": out}, attrs=attrs)
    return [out], feed, []


@use
def sigmoid_focal_loss(f):
    feed = feeds()
    x = data(f, feed, "x", maps("x", 40, 8))
    label = data(f, feed, "l", draw("l").randint(-1, 9, (40, 1)).astype("int32"))
    count = data(f, feed, "n", np.array([12], "int32"))
    out = f.layers.sigmoid_focal_loss(x, label, count, 2.0, 0.25)
    return [out], feed, [out, x]
