"""The layer that keeps instances by their tags."""

from bireme.ir import Variable, VarType

from .helper import LayerHelper
from .single import checked

__all__ = ["filter_by_instag"]


def filter_by_instag(
    ins: Variable, ins_tag: Variable, filter_tag: Variable, is_lod: bool, out_val_if_empty: int = 0
) -> tuple[Variable, Variable]:
    """(the instances that have one of the tags, the weight of each in the loss [kept, 1]).

    An instance is a sequence if `is_lod`, else a row; `ins_tag` has a sequence of tags for each. If
    none is kept there is one row of `out_val_if_empty`, with weight 0.
    """
    helper = LayerHelper("filter_by_instag")
    kind = checked(ins, "filter_by_instag", "ins").dtype
    out = helper.create_variable_for_type_inference(kind)
    weight = helper.create_variable_for_type_inference(VarType.FP32, stop_gradient=True)
    index = helper.create_variable_for_type_inference(VarType.INT64, stop_gradient=True)
    helper.append_op(
        type="filter_by_instag",
        inputs={"Ins": ins, "Ins_tag": ins_tag, "Filter_tag": filter_tag},
        outputs={"Out": out, "LossWeight": weight, "IndexMap": index},
        attrs={"is_lod": is_lod, "out_val_if_empty": out_val_if_empty},
    )
    return out, weight
