"""Detection, trees and data sets: where results differ."""

from .record import Difference

_YOLO = "detection/test_yolo.py"
_DETECTION = "detection/test_detection.py"

DETECTION = (
    Difference(
        "`layers.yolo_box`, maps that are not square",
        "divides columns by the number of rows, so boxes lie beside their cells",
        "divides columns by the number of columns",
        "images need not be square",
        f"{_YOLO}::test_boxes_of_a_map_that_is_not_square_lie_in_their_cells",
    ),
    Difference(
        "`layers.yolov3_loss`, maps that are not square",
        "gives objects the wrong column",
        "gives them the column that they lie in",
        "images need not be square",
        f"{_YOLO}::test_the_loss_of_a_map_that_is_not_square_has_its_gradient",
    ),
    Difference(
        "`layers.yolov3_loss`, two objects in one cell",
        "keeps the gradient of the last one",
        "adds their gradients",
        "the gradient is that of the loss",
        f"{_YOLO}::test_two_objects_in_one_cell_add_their_gradients",
    ),
    Difference(
        "`layers.generate_proposal_labels(is_cascade_rcnn=True)`",
        "treats as many of the first proposals as there are objects as if they were the objects: "
        "they are not scaled, and dropped where the object is a crowd",
        "treats all proposals alike",
        "no proposal is lost or moved",
        f"{_DETECTION}::test_all_proposals_of_a_cascade_are_scaled_and_taken",
    ),
    Difference(
        "`layers.retinanet_detection_output(nms_eta=...)`",
        "has no effect",
        "lowers the threshold with each kept box, as in `multiclass_nms`",
        "an argument does what it says",
        f"{_DETECTION}::test_a_falling_threshold_keeps_fewer_boxes_of_retinanet",
    ),
    Difference(
        "`contrib.layers.tree_conv`",
        "computes a gradient of the nodes that is not that of the result, and leaves what was in "
        "memory where a tree has fewer nodes than the batch",
        "computes the gradient of the result, and zeros there",
        "gradients agree with differences",
        "contrib/test_contrib.py::"
        "test_nodes_of_a_tree_get_their_own_gradient_and_those_outside_none",
    ),
    Difference(
        "`dataset.conll05`, ids of labels",
        "depend on the order of a set, which differs from run to run",
        "are in the order of the labels' names",
        "a saved model can be read again",
        "reader/test_data_sets.py::test_conll05_labels_each_verb",
    ),
)
