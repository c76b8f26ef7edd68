"""What detectors are trained on and how they read maps between pixels; see `uses`. Gradients shown
too: deformable_conv_grad, deformable_conv_v1_grad, deformable_psroi_pooling_grad, prroi_pool_grad.
"""

import numpy as np

from tests.detection.uses import boxes, data, draw, feeds, maps

USES = {}  # type: ignore[var-annotated]  # read by Python 3.7 as well


def use(function):
    USES[function.__name__] = function
    return function


def _objects(f, feed, crowds=(2, 8), scale=1.25):
    """(boxes, classes, crowd flags, image sizes) of 12 objects in two images."""
    lod = [[5, 7]]
    crowd = np.zeros((12, 1), "int32")
    crowd[list(crowds)] = 1
    return (
        data(f, feed, "truth", boxes("truth", 12, 300.0, 0.1), lod),
        data(f, feed, "class", draw("class").randint(1, 9, (12, 1)).astype("int32"), lod),
        data(f, feed, "crowd", crowd, lod),
        data(f, feed, "info", np.array([[320, 352, 1.0], [390, 364, scale]], "float32")),
    )


def _anchors(f, feed, classes):
    x = data(f, feed, "x", maps("x", 2, 4, 20, 22))
    anchor, spread = f.layers.anchor_generator(
        x, [32.0, 64.0, 128.0], [0.5, 1.0, 2.0], stride=[16.0, 16.0], variance=[1.0, 1.0, 1.0, 1.0]
    )
    code = data(f, feed, "code", maps("code", 2, 20 * 22 * 9, 4))
    score = data(f, feed, "score", maps("score", 2, 20 * 22 * 9, classes))
    return code, score, f.layers.reshape(anchor, [-1, 4]), f.layers.reshape(spread, [-1, 4])


def _rpn(f, **given):
    feed = feeds()
    code, score, anchor, spread = _anchors(f, feed, 1)
    truth, _, crowd, info = _objects(f, feed)
    out = f.layers.rpn_target_assign(
        code, score, anchor, spread, truth, crowd, info, use_random=False, **given)  # fmt: skip
    both = f.layers.concat([f.layers.reshape(o, [-1]) for o in out[:2]])
    return list(out), feed, [both, code, score]


@use
def rpn_target_assign(f):
    return _rpn(f)


@use
def rpn_target_assign_few_of_all_anchors(f):
    return _rpn(
        f,
        rpn_batch_size_per_im=24,
        rpn_straddle_thresh=-1.0,
        rpn_fg_fraction=0.25,
        rpn_positive_overlap=0.5,
        rpn_negative_overlap=0.6,
    )


@use
def retinanet_target_assign(f):
    feed = feeds()
    code, score, anchor, spread = _anchors(f, feed, 8)
    truth, label, crowd, info = _objects(f, feed)
    out = f.layers.retinanet_target_assign(
        code, score, anchor, spread, truth, label, crowd, info, 8, 0.45, 0.4
    )
    both = f.layers.concat([f.layers.reshape(o, [-1]) for o in out[:2]])
    return list(out), feed, [both, code, score]


def _proposals(f, **given):
    feed = feeds()
    plain = given.get("is_cascade_rcnn")  # 1.8.5 takes the first proposals of a cascade for objects
    truth, label, crowd, info = _objects(f, feed, *(((), 1.0) if plain else ()))
    near = (
        np.repeat(boxes("truth", 12, 300.0, 0.1), 12, axis=0)
        * np.repeat([1, 1.25], [60, 84])[:, None]
    )
    near = (near + 20 * maps("near", 144, 4)).astype("float32")
    near[:, 2:] = np.maximum(near[:, 2:], near[:, :2] + 5)
    near[7] = [40, 40, 20, 30]
    rois = data(f, feed, "rois", near, [[60, 84]])
    out = f.layers.generate_proposal_labels(
        rois, label, crowd, truth, info, class_nums=9, use_random=False, **given)  # fmt: skip
    return list(out), feed, []


@use
def generate_proposal_labels(f):
    return _proposals(f, batch_size_per_im=32, fg_thresh=0.5)


@use
def generate_proposal_labels_of_one_class(f):
    return _proposals(f, batch_size_per_im=512, bg_thresh_lo=0.1, is_cls_agnostic=True)


@use
def generate_proposal_labels_of_a_cascade(f):
    return _proposals(f, fg_thresh=0.5, is_cascade_rcnn=True, bbox_reg_weights=[0.1, 0.1, 0.3, 0.3])


def _candidates(f, feed, size=1.0):
    box = np.stack([boxes("box%d" % i, 60, size, 0.2) for i in range(2)])
    score = draw("score").uniform(0, 1, (2, 5, 60)).astype("float32")
    return data(f, feed, "box", box), data(f, feed, "score", score)


@use
def matrix_nms(f):
    feed = feeds()
    box, score = _candidates(f, feed)
    out = f.layers.matrix_nms(box, score, 0.3, 0.2, 40, 30, return_index=True)
    out += f.layers.matrix_nms(
        box, score, 0.5, 0.1, -1, -1, True, 1.5, -1, False, return_index=True)  # fmt: skip
    return list(out), feed, []


@use
def locality_aware_nms(f):
    feed = feeds()
    box, score = _candidates(f, feed, 100.0)
    one = f.layers.slice(score, [1], [0], [1])
    out = [
        f.layers.locality_aware_nms(box, one, 0.3, 40, 20, 0.3, False),
        f.layers.locality_aware_nms(box, one, 0.9, 400, -1, 0.1),
        f.layers.locality_aware_nms(box, one, 900.0, 400, -1, 0.1),
    ]
    return out, feed, []


@use
def retinanet_detection_output(f):
    feed = feeds()
    code, score, anchor = [], [], []
    for i, count in enumerate((300, 80)):
        code.append(data(f, feed, "code%d" % i, 0.2 * maps("code%d" % i, 2, count, 4)))
        chance = draw("s%d" % i).uniform(0, 1, (2, count, 4)).astype("float32")
        score.append(data(f, feed, "score%d" % i, chance))
        anchor.append(data(f, feed, "anchor%d" % i, boxes("anchor%d" % i, count, 320.0)))
    info = data(f, feed, "info", np.array([[320, 352, 1.0], [390, 364, 1.25]], "float32"))
    call = f.layers.retinanet_detection_output
    out = [
        call(code, score, anchor, info, 0.6, 100, 30, 0.4),
        call(code, score, anchor, info, 0.9, 1000, 100, 0.6),
    ]
    return out, feed, []


def _deformed(f, modulated, groups, parts, stride, dilation):
    feed = feeds()
    x = data(f, feed, "x", maps("x", 2, 8, 14, 17))
    high = (14 + 2 - dilation * 2 - 1) // stride + 1
    wide = (17 + 2 - dilation * 2 - 1) // stride + 1
    offset = data(f, feed, "offset", 1.5 * maps("offset", 2, 2 * parts * 9, high, wide))
    mask = data(
        f, feed, "mask", draw("mask").uniform(0, 1, (2, parts * 9, high, wide)).astype("float32")
    )
    out = f.layers.deformable_conv(
        x, offset, mask if modulated else None, 8, 3, stride, 1, dilation, groups, parts, 1,
        modulated=modulated)  # fmt: skip
    weight = f.default_main_program().all_parameters()[0]
    return [out], feed, [out, x, offset, *([mask] if modulated else []), weight]


@use
def deformable_conv(f):
    return _deformed(f, True, 1, 1, 1, 1)


@use
def deformable_conv_of_groups(f):
    return _deformed(f, True, 2, 4, 2, 2)


@use
def deformable_conv_without_weights(f):
    return _deformed(f, False, 2, 2, 1, 1)


def _regions(f, feed, channels, count=2):
    x = data(f, feed, "x", maps("x", 2, channels, 25, 30))
    rois = data(f, feed, "rois", boxes("rois", 11, 400.0) - 5, [[5, 6]])
    trans = data(f, feed, "trans", 0.4 * maps("trans", 11, count, 7, 7))
    return x, rois, trans


@use
def deformable_roi_pooling(f):
    feed = feeds()
    x, rois, trans = _regions(f, feed, 8)
    out = f.layers.deformable_roi_pooling(
        x, rois, trans, False, 1.0 / 16, pooled_height=7, pooled_width=7, sample_per_part=4
    )
    return [out], feed, [out, x, trans]


@use
def deformable_roi_pooling_by_position(f):
    feed = feeds()
    x, rois, trans = _regions(f, feed, 4 * 49, 4)
    if f.__name__ == "bireme":
        out = f.layers.deformable_roi_pooling(
            x, rois, trans, False, 1.0 / 16, [7, 7], 7, 7, [7, 7], 2, 0.2, True)  # fmt: skip
        return [out], feed, [out, x, trans]
    helper = f.layer_helper.LayerHelper("pool")  # the layer of 1.8.5 fails on Python 3
    out, count = (helper.create_variable_for_type_inference("float32") for _ in range(2))
    attrs = {"no_trans": False, "spatial_scale": 1.0 / 16, "output_dim": 4, "group_size": [7, 7]}
    attrs.update(pooled_height=7, pooled_width=7, part_size=[7, 7], sample_per_part=2)
    helper.append_op(
        type="deformable_psroi_pooling",
        inputs={"Input": x, "ROIs": rois, "Trans": trans},
        outputs={"Output": out, "TopCount": count},
        attrs=dict(attrs, trans_std=0.2),
    )
    return [out], feed, [out, x, trans]


@use
def deformable_roi_pooling_unshifted(f):
    feed = feeds()
    x, rois, trans = _regions(f, feed, 8)
    out = f.layers.deformable_roi_pooling(
        x, rois, trans, True, 1.0 / 16, pooled_height=3, pooled_width=5, sample_per_part=2
    )
    return [out], feed, [out, x]


@use
def prroi_pool(f):
    feed = feeds()
    x, rois, _ = _regions(f, feed, 6)
    out = f.layers.prroi_pool(x, rois, 1.0 / 16, 7, 5)
    return [out], feed, [out, x, rois]


@use
def prroi_pool_by_counts(f):
    feed = feeds()
    x = data(f, feed, "x", maps("x", 2, 6, 25, 30))
    rois = data(f, feed, "rois", boxes("rois", 11, 400.0) - 5)
    count = data(f, feed, "count", np.array([4, 7], "int64"))
    out = f.layers.prroi_pool(x, rois, 1.0 / 16, 3, 3, count)
    return [out], feed, [out, x]


def _outlines(f, feed):
    """One to three polygons for each of the objects of `_objects`, around their boxes."""
    r = draw("outline")
    corners, sizes, counts = [], [], []
    for left, top, right, bottom in boxes("truth", 12, 300.0, 0.1):
        counts.append(int(r.randint(1, 4)))
        for _ in range(counts[-1]):
            angle = np.sort(r.uniform(0, 2 * np.pi, int(r.randint(3, 9))))
            x = (left + right) / 2 + np.cos(angle) * (right - left) / 2 * r.uniform(0.4, 1)
            y = (top + bottom) / 2 + np.sin(angle) * (bottom - top) / 2 * r.uniform(0.4, 1)
            corners.append(np.stack([x, y], 1))
            sizes.append(len(angle))
    points = np.concatenate(corners).astype("float32")
    return data(f, feed, "outline", points, [[5, 7], counts, sizes])


def _masks(f, label):
    feed = feeds()
    _, classes, crowd, info = _objects(f, feed)
    near = boxes("truth", 12, 300.0, 0.1) + 15 * maps("move", 12, 4)
    near[5:] *= 1.25
    near[:, 2:] = np.maximum(near[:, 2:], near[:, :2] + 5)
    rois = data(f, feed, "rois", near.astype("float32"), [[5, 7]])
    label = data(f, feed, "label", np.array(label, "int32").reshape(-1, 1), [[5, 7]])
    outline = _outlines(f, feed)
    call = f.layers.generate_mask_labels
    return list(call(info, classes, crowd, outline, rois, label, 9, 14)), feed, []


@use
def generate_mask_labels(f):
    return _masks(f, [3, 0, 5, 1, 8, 2, 2, 0, 7, 4, 0, 6])


@use
def generate_mask_labels_of_an_image_without_objects(f):
    return _masks(f, [0, 0, 0, 0, 0, 2, 2, 0, 7, 4, 0, 6])
