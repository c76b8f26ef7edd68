"""YOLOv3: a small DarkNet, three heads with routes, yolov3_loss; yolo_box and multiclass_nms."""
from __future__ import print_function

import argparse
import os

import numpy as np
import paddle.fluid as fluid
from paddle.fluid.param_attr import ParamAttr
from paddle.fluid.regularizer import L2Decay

SIZE, CLASSES, MAX_BOXES = 64, 3, 4
ANCHORS = [6, 8, 10, 12, 16, 14, 20, 26, 32, 24, 28, 36, 40, 44, 52, 40, 56, 58]
ANCHOR_MASKS = [[6, 7, 8], [3, 4, 5], [0, 1, 2]]


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learning_rate", type=float, default=0.002)
    parser.add_argument("--max_iter", type=int, default=16)
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--label_smooth", type=eval, default=False)
    parser.add_argument("--pretrain", "--init_model", dest="pretrain", type=str, default="")
    parser.add_argument("--model_save_dir", "--model_dir", dest="model_save_dir", default="ckpt")
    return parser.parse_args()


def batches(batch_size):
    """Pictures with filled rectangles; boxes as centre and size, padded with zeros."""
    rng = np.random.RandomState(17)
    data = []
    for _ in range(8):
        image = 0.5 * rng.rand(3, SIZE, SIZE).astype("float32")
        boxes = np.zeros((MAX_BOXES, 4), dtype="float32")
        labels = np.zeros((MAX_BOXES,), dtype="int32")
        scores = np.zeros((MAX_BOXES,), dtype="float32")
        for i in range(1):
            w, h = rng.randint(12, 40, 2)
            x, y = rng.randint(0, SIZE - w), rng.randint(0, SIZE - h)
            labels[i] = rng.randint(CLASSES)
            scores[i] = 1.0
            image[labels[i], y:y + h, x:x + w] += 0.7
            boxes[i] = np.array([x + w / 2.0, y + h / 2.0, w, h]) / SIZE
        data.append((image - 0.3, boxes, labels, scores))

    def reader():
        while True:
            for start in range(0, len(data), batch_size):
                yield data[start:start + batch_size]

    return reader


def conv_bn_layer(input, ch_out, filter_size, stride, padding, act="leaky", name=None):
    conv1 = fluid.layers.conv2d(
        input=input, num_filters=ch_out, filter_size=filter_size, stride=stride,
        padding=padding, act=None,
        param_attr=ParamAttr(
            initializer=fluid.initializer.Normal(0.0, 0.05), name=name + ".conv.weights"),
        bias_attr=False)
    bn_name = name + ".bn"
    out = fluid.layers.batch_norm(
        input=conv1, act=None,
        param_attr=ParamAttr(
            initializer=fluid.initializer.Normal(1.0, 0.02), regularizer=L2Decay(0.0),
            name=bn_name + ".scale"),
        bias_attr=ParamAttr(
            initializer=fluid.initializer.Constant(0.0), regularizer=L2Decay(0.0),
            name=bn_name + ".offset"),
        moving_mean_name=bn_name + ".mean", moving_variance_name=bn_name + ".var")
    if act == "leaky":
        out = fluid.layers.leaky_relu(x=out, alpha=0.1)
    return out


def basic_block(input, ch_out, name):
    conv1 = conv_bn_layer(input, ch_out, 1, 1, 0, name=name + ".0")
    conv2 = conv_bn_layer(conv1, ch_out * 2, 3, 1, 1, name=name + ".1")
    return fluid.layers.elementwise_add(x=input, y=conv2, act=None)


def darknet(body):
    body = conv_bn_layer(body, 4, 3, 1, 1, name="yolo_input")
    body = conv_bn_layer(body, 8, 3, 2, 1, name="yolo_input.downsample")
    blocks = []
    for i in range(4):
        body = basic_block(body, 4 * 2**min(i, 2), name="stage.%d" % i)
        blocks.append(body)
        if i < 3:
            body = conv_bn_layer(
                body, 8 * 2**min(i + 1, 2), 3, 2, 1, name="stage.%d.downsample" % i)
    body = conv_bn_layer(body, 32, 3, 2, 1, name="stage.3.downsample")
    return [body] + blocks[:1:-1]


def yolo_detection_block(input, channel, name):
    conv = input
    for j in range(2):
        conv = conv_bn_layer(conv, channel, 1, 1, 0, name="%s.%d.0" % (name, j))
        conv = conv_bn_layer(conv, channel * 2, 3, 1, 1, name="%s.%d.1" % (name, j))
    route = conv_bn_layer(conv, channel, 1, 1, 0, name="%s.2" % name)
    tip = conv_bn_layer(route, channel * 2, 3, 1, 1, name="%s.tip" % name)
    return route, tip


def upsample(input, scale=2, name=None):
    shape_nchw = fluid.layers.shape(input)
    shape_hw = fluid.layers.slice(shape_nchw, axes=[0], starts=[2], ends=[4])
    shape_hw.stop_gradient = True
    out_shape = fluid.layers.cast(shape_hw, dtype="int32") * scale
    out_shape.stop_gradient = True
    return fluid.layers.resize_nearest(
        input=input, scale=scale, actual_shape=out_shape, name=name)


class YOLOv3(object):
    def __init__(self, args, is_train=True):
        self.args, self.is_train = args, is_train
        self.image = fluid.layers.data(name="image", shape=[3, SIZE, SIZE], dtype="float32")
        if is_train:
            self.gtbox = fluid.layers.data(name="gtbox", shape=[MAX_BOXES, 4], dtype="float32")
            self.gtlabel = fluid.layers.data(name="gtlabel", shape=[MAX_BOXES], dtype="int32")
            self.gtscore = fluid.layers.data(name="gtscore", shape=[MAX_BOXES], dtype="float32")
        else:
            self.im_shape = fluid.layers.data(name="im_shape", shape=[2], dtype="int32")
        self.losses, self.boxes, self.scores, self.downsample = [], [], [], 32

    def build_model(self):
        blocks = darknet(self.image)
        route = None
        for i, block in enumerate(blocks):
            if i > 0:
                block = fluid.layers.concat(input=[route, block], axis=1)
            route, tip = yolo_detection_block(block, 16 // 2**i, name="yolo_block.%d" % i)
            block_out = fluid.layers.conv2d(
                input=tip, num_filters=len(ANCHOR_MASKS[i]) * (CLASSES + 5), filter_size=1,
                stride=1, padding=0, act=None,
                param_attr=ParamAttr(
                    initializer=fluid.initializer.Normal(0.0, 0.02),
                    name="yolo_output.%d.conv.weights" % i),
                bias_attr=ParamAttr(
                    initializer=fluid.initializer.Constant(0.0), regularizer=L2Decay(0.0),
                    name="yolo_output.%d.conv.bias" % i))
            self.head(block_out, ANCHOR_MASKS[i], i)
            if i < len(blocks) - 1:
                route = conv_bn_layer(route, 8 // 2**i, 1, 1, 0, name="yolo_transition.%d" % i)
                route = upsample(route)
            self.downsample //= 2

    def head(self, out, mask, i):
        if self.is_train:
            loss = fluid.layers.yolov3_loss(
                x=out, gt_box=self.gtbox, gt_label=self.gtlabel, gt_score=self.gtscore,
                anchors=ANCHORS, anchor_mask=mask, class_num=CLASSES, ignore_thresh=0.7,
                downsample_ratio=self.downsample, use_label_smooth=self.args.label_smooth,
                name="yolo_loss%d" % i)
            self.losses.append(fluid.layers.reduce_mean(loss))
            return
        anchors = []
        for m in mask:
            anchors += ANCHORS[2 * m:2 * m + 2]
        boxes, scores = fluid.layers.yolo_box(
            x=out, img_size=self.im_shape, anchors=anchors, class_num=CLASSES,
            conf_thresh=0.01, downsample_ratio=self.downsample, name="yolo_box%d" % i)
        self.boxes.append(boxes)
        self.scores.append(fluid.layers.transpose(scores, perm=[0, 2, 1]))

    def loss(self):
        return sum(self.losses)

    def pred(self):
        return fluid.layers.multiclass_nms(
            bboxes=fluid.layers.concat(self.boxes, axis=1),
            scores=fluid.layers.concat(self.scores, axis=2),
            score_threshold=0.01, nms_top_k=100, keep_top_k=10, nms_threshold=0.45,
            background_label=-1, name="multiclass_nms")


def learning_rate_of(args):
    """Linear warm-up over the first steps, then pieces."""
    pieces = fluid.layers.piecewise_decay([10], [args.learning_rate, args.learning_rate * 0.1])
    return fluid.layers.linear_lr_warmup(
        learning_rate=pieces, warmup_steps=4, start_lr=0.0, end_lr=args.learning_rate)


def train(args):
    model = YOLOv3(args, is_train=True)
    model.build_model()
    loss = model.loss()
    loss.persistable = True
    optimizer = fluid.optimizer.Momentum(
        learning_rate=learning_rate_of(args), regularization=L2Decay(5e-4), momentum=0.9)
    optimizer.minimize(loss)
    place = fluid.CPUPlace()
    exe = fluid.Executor(place)
    fluid.default_startup_program().random_seed = 90
    exe.run(fluid.default_startup_program())
    if args.pretrain:
        def if_exist(var):
            return os.path.exists(os.path.join(args.pretrain, var.name))

        fluid.io.load_vars(exe, args.pretrain, predicate=if_exist)
    feeder = fluid.DataFeeder(
        place=place, feed_list=[model.image, model.gtbox, model.gtlabel, model.gtscore])
    for iter_id, data in enumerate(batches(args.batch_size)()):
        if iter_id == args.max_iter:
            break
        losses = exe.run(fetch_list=[loss.name], feed=feeder.feed(data))
        print("Iter {:d}, loss {:.6f}".format(iter_id, np.mean(np.array(losses[0]))))
    fluid.io.save_persistables(exe, args.model_save_dir)
    return exe


def infer(args, exe):
    main_prog, startup_prog = fluid.Program(), fluid.Program()
    with fluid.program_guard(main_prog, startup_prog):
        model = YOLOv3(args, is_train=False)
        model.build_model()
        outputs = model.pred()
    main_prog = main_prog.clone(for_test=True)
    for data in batches(args.batch_size)():
        images = np.array([row[0] for row in data])
        shapes = np.array([[SIZE, SIZE]] * len(data), dtype="int32")
        found, = exe.run(main_prog, feed={"image": images, "im_shape": shapes},
                         fetch_list=[outputs], return_numpy=False)
        lod, found = found.lod()[0], np.array(found)
        for i in range(len(lod) - 1):
            print("image %d: %d boxes, best %s" % (
                i, lod[i + 1] - lod[i], " ".join("%.3f" % v for v in found[lod[i]])))
        break


if __name__ == "__main__":
    arguments = parse_args()
    executor = train(arguments)
    if arguments.max_iter:
        infer(arguments, executor)
