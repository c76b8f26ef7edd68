"""Collective operators: their shapes and gradients. The provider they name runs them."""

from bireme.errors import InvalidArgument
from bireme.ir import Block, Operator
from bireme.ir.names import grad_name

from .shapes import same_as
from .table import GradRule, Infer, OpSpec, declare

_PROVIDER = "bireme.collective.operators:Collectives"


def _gathered(ctx: Infer) -> None:
    x = ctx.x()
    first = x.shape[0] * ctx.attr("nranks") if x.shape[0] >= 0 else -1
    ctx.set("Out", (first, *x.shape[1:]), like=x)


def _scattered(ctx: Infer) -> None:
    x, ranks = ctx.x(), ctx.attr("nranks")
    if x.shape[0] >= 0 and x.shape[0] % ranks:
        raise InvalidArgument(
            f"the first dimension of {list(x.shape)} is not a multiple of {ranks} ranks"
        )
    first = x.shape[0] // ranks if x.shape[0] >= 0 else -1
    ctx.set("Out", (first, *x.shape[1:]), like=x)


def _turned_into(kind: str) -> GradRule:
    """The gradient of one collective is another on the same ring."""

    def rule(op: Operator, block: Block) -> list[OpSpec]:
        (x,), (out,) = op.input("X"), op.output("Out")
        ring = op.attrs.get("ring_id", 0)
        attrs = {"ring_id": ring, "nranks": op.attrs.get("nranks", 1), "use_calc_stream": True}
        return [OpSpec(kind, {"X": [grad_name(out)]}, {"Out": [grad_name(x)]}, attrs)]

    return rule


declare("gen_nccl_id", ins={}, outs={"NCCLID": ""}, effect=_PROVIDER)
declare("c_gen_nccl_id", ins={}, outs={"Out": ""}, effect=_PROVIDER)
for _type in ("c_comm_init", "c_comm_init_all"):
    declare(_type, effect=_PROVIDER)
for _type in ("sum", "prod", "max", "min"):
    declare(f"c_allreduce_{_type}", infer=same_as("X"), effect=_PROVIDER)
for _type in ("allreduce", "broadcast", "c_broadcast", "c_sync_calc_stream", "c_sync_comm_stream"):
    declare(_type, infer=same_as("X"), effect=_PROVIDER)
declare("c_allgather", infer=_gathered, grad=_turned_into("c_reducescatter"), effect=_PROVIDER)
declare("c_reducescatter", infer=_scattered, grad=_turned_into("c_allgather"), effect=_PROVIDER)

# What an nccl2 program runs beside them: several gradients as one, and parameters once. Under
# ReduceStrategy.Reduce: sums at their owners, updated parameters from them, and state once.
declare(
    "c_fused_allreduce_sum",
    ins={"X": "*"},
    outs={"Out": "*"},
    attrs={"ring_id": 0},
    effect=_PROVIDER,
)
declare("c_broadcast_once", ins={"X": "*"}, outs={}, attrs={}, effect=_PROVIDER)
declare(
    "c_fused_reduce_sum",
    ins={"X": "*"},
    outs={"Out": "*"},
    attrs={"ring_id": 0, "roots": ()},
    effect=_PROVIDER,
)
declare(
    "c_fused_broadcast",
    ins={"X": "*"},
    outs={"Out": "*"},
    attrs={"ring_id": 0, "roots": ()},
    effect=_PROVIDER,
)
declare("c_show_own_state", ins={"X": "*"}, outs={}, attrs={"barrier": False}, effect=_PROVIDER)
declare("c_keep_own_state", ins={}, outs={}, attrs={"names": (), "roots": ()}, effect=_PROVIDER)
declare(
    "bireme_pipeline",
    ins={"X": "*"},
    outs={"Out": "*"},
    attrs={},
    effect="bireme.collective.pipeline:PipelineStages",
)
