"""SSD: a small MobileNet with multi_box_head, ssd_loss, and mean average precision in the program."""
from __future__ import print_function

import argparse
import json
import os

import numpy as np
import paddle
import paddle.fluid as fluid
from paddle.fluid.initializer import MSRA
from paddle.fluid.param_attr import ParamAttr

SIZE, CLASSES = 48, 3


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learning_rate", type=float, default=0.005)
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--epoc_num", type=int, default=6)
    parser.add_argument("--ap_version", type=str, default="11point")
    parser.add_argument("--pretrained_model", "--init_model", dest="pretrained_model", default="")
    parser.add_argument("--model_save_dir", "--model_dir", dest="model_save_dir", default="model")
    return parser.parse_args()


def write_annotations(path):
    """Annotations in COCO's format; the pictures are drawn from them."""
    rng = np.random.RandomState(21)
    images, annotations = [], []
    for i in range(16):
        images.append({"id": i, "file_name": "%d.jpg" % i, "width": SIZE, "height": SIZE})
        for _ in range(rng.randint(1, 3)):
            width, height = rng.randint(14, 30, 2)
            x, y = rng.randint(0, SIZE - width), rng.randint(0, SIZE - height)
            annotations.append({
                "image_id": i, "category_id": int(rng.randint(1, CLASSES)), "iscrowd": 0,
                "bbox": [int(x), int(y), int(width), int(height)]})
    with open(path, "w") as out:
        json.dump({"images": images, "annotations": annotations}, out)


def coco_reader(path):
    with open(path) as f:
        coco = json.load(f)

    def reader():
        rng = np.random.RandomState(3)
        for image in coco["images"]:
            picture = rng.rand(3, SIZE, SIZE).astype("float32") * 0.4
            boxes, labels, difficult = [], [], []
            for item in coco["annotations"]:
                if item["image_id"] != image["id"]:
                    continue
                x, y, w, h = item["bbox"]
                picture[item["category_id"], y:y + h, x:x + w] += 0.6
                boxes.append([x / float(SIZE), y / float(SIZE), (x + w) / float(SIZE),
                              (y + h) / float(SIZE)])
                labels.append(item["category_id"])
                difficult.append(item["iscrowd"])
            yield picture - 0.5, boxes, labels, difficult

    return reader


def conv_bn(input, filter_size, num_filters, stride, padding, num_groups=1, act="relu"):
    conv = fluid.layers.conv2d(
        input=input, num_filters=num_filters, filter_size=filter_size, stride=stride,
        padding=padding, groups=num_groups, act=None, use_cudnn=num_groups == 1,
        param_attr=ParamAttr(learning_rate=1.0, initializer=MSRA()), bias_attr=False)
    return fluid.layers.batch_norm(input=conv, act=act)


def depthwise_separable(input, num_filters1, num_filters2, num_groups, stride):
    depthwise = conv_bn(input, 3, num_filters1, stride, 1, num_groups=num_groups)
    return conv_bn(depthwise, 1, num_filters2, 1, 0)


def extra_block(input, num_filters1, num_filters2, stride):
    pointwise = conv_bn(input, 1, num_filters1, 1, 0)
    return conv_bn(pointwise, 3, num_filters2, stride, 1)


def mobile_net(num_classes, img, img_shape):
    tmp = conv_bn(img, 3, 8, 2, 1)
    tmp = depthwise_separable(tmp, 8, 16, 8, 2)
    module11 = depthwise_separable(tmp, 16, 16, 16, 2)
    module13 = depthwise_separable(module11, 16, 24, 16, 2)
    module14 = extra_block(module13, 12, 24, 2)
    return fluid.layers.multi_box_head(
        inputs=[module11, module13, module14], image=img, num_classes=num_classes,
        min_ratio=20, max_ratio=90, min_sizes=[12.0, 20.0, 32.0], max_sizes=[[], 32.0, 44.0],
        aspect_ratios=[[2.0], [2.0], [2.0]], base_size=img_shape[2], offset=0.5, flip=True)


def build_program(main_prog, startup_prog, is_train, args):
    image_shape = [3, SIZE, SIZE]
    with fluid.program_guard(main_prog, startup_prog):
        image = fluid.layers.data(name="image", shape=image_shape, dtype="float32")
        gt_box = fluid.layers.data(name="gt_box", shape=[4], dtype="float32", lod_level=1)
        gt_label = fluid.layers.data(name="gt_label", shape=[1], dtype="int32", lod_level=1)
        difficult = fluid.layers.data(name="difficult", shape=[1], dtype="int32", lod_level=1)
        feeds = [image, gt_box, gt_label, difficult]
        with fluid.unique_name.guard("base"):
            locs, confs, box, box_var = mobile_net(CLASSES, image, image_shape)
        if is_train:
            with fluid.unique_name.guard("train"):
                loss = fluid.layers.ssd_loss(locs, confs, gt_box, gt_label, box, box_var)
                loss = fluid.layers.reduce_sum(loss)
                boundaries = [8, 16]
                values = [args.learning_rate * d for d in (1.0, 0.5, 0.25)]
                optimizer = fluid.optimizer.RMSProp(
                    learning_rate=fluid.layers.piecewise_decay(boundaries, values),
                    regularization=fluid.regularizer.L2Decay(0.00005))
                optimizer.minimize(loss)
            return feeds, loss
        with fluid.unique_name.guard("inference"):
            nmsed_out = fluid.layers.detection_output(
                locs, confs, box, box_var, nms_threshold=0.45)
            detection_map = fluid.metrics.DetectionMAP(
                nmsed_out, gt_label, gt_box, difficult, CLASSES, overlap_threshold=0.5,
                evaluate_difficult=False, ap_version=args.ap_version)
        return feeds, detection_map


def main():
    args = parse_args()
    write_annotations("instances.json")
    startup_prog, train_prog, test_prog = fluid.Program(), fluid.Program(), fluid.Program()
    feeds, loss = build_program(train_prog, startup_prog, True, args)
    test_feeds, detection_map = build_program(test_prog, startup_prog, False, args)
    test_prog = test_prog.clone(for_test=True)

    place = fluid.CPUPlace()
    exe = fluid.Executor(place)
    startup_prog.random_seed = 90
    exe.run(startup_prog)
    if args.pretrained_model:
        def if_exist(var):
            return os.path.exists(os.path.join(args.pretrained_model, var.name))

        fluid.io.load_vars(exe, args.pretrained_model, main_program=train_prog, predicate=if_exist)

    reader = paddle.batch(coco_reader("instances.json"), batch_size=args.batch_size)
    feeder = fluid.DataFeeder(feed_list=feeds, place=place)
    test_feeder = fluid.DataFeeder(feed_list=test_feeds, place=place, program=test_prog)
    for epoc_id in range(args.epoc_num):
        for batch_id, data in enumerate(reader()):
            loss_v, = exe.run(train_prog, feed=feeder.feed(data), fetch_list=[loss])
            loss_v = np.mean(np.array(loss_v))
            print("Epoc {:d}, batch {:d}, loss {:.6f}".format(epoc_id, batch_id, loss_v))
        _, accum_map = detection_map.get_map_var()
        detection_map.reset(exe)
        for data in reader():
            test_map, = exe.run(test_prog, feed=test_feeder.feed(data), fetch_list=[accum_map])
        print("Epoc {0}, test map {1:.3f}".format(epoc_id, test_map[0]))
    fluid.io.save_persistables(exe, args.model_save_dir, main_program=train_prog)


if __name__ == "__main__":
    main()
