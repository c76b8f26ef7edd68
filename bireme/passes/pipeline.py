"""The passes in the order in which Fluid 1.8.5 applies them, which field asks for each, and what
the other fields are ignored for.

A `Build` keeps what they make of one program.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bireme.ir import Program
from bireme.ir.verify import verify

from .data_parallel import data_parallel
from .fold_batch_norm import fold_batch_norm
from .fold_constants import fold_constants
from .fuse_bn_act import fuse_bn_act
from .fuse_bn_add_act import fuse_bn_add_act
from .fuse_elementwise import fuse_elementwise
from .fuse_elewise_add_act import fuse_elewise_add_act
from .fuse_optimizer import fuse_adam, fuse_momentum, fuse_sgd
from .fuse_relu_depthwise_conv import fuse_relu_depthwise_conv
from .gradient_scale import gradient_scale
from .memory_optimize import memory_optimize
from .notes import Entry, Notes, Report, log
from .pipeline_stages import cut_into_stages
from .remove_identity import remove_identity
from .strategies import BuildStrategy, ExecutionStrategy, GradientScaleStrategy, ReduceStrategy
from .sync_batch_norm import sync_batch_norm
from .update_in_backward import update_in_backward

__all__ = ["IGNORED", "PASSES", "SERVING", "Build", "Built", "Pass", "applied", "for_serving"]


class Pass(NamedTuple):
    """A function from program to program, and whether it is asked for."""

    name: str
    wanted: Callable[[BuildStrategy, Program], bool]
    run: Callable[[Program, Notes], Program]


def _on(name: str) -> Callable[[BuildStrategy, Program], bool]:
    return lambda strategy, program: bool(getattr(strategy, name))


def _optimizers(strategy: BuildStrategy, program: Program) -> bool:
    whole = not _reduces(strategy) and program._pipeline_opt is None
    return bool(strategy.fuse_all_optimizer_ops) and whole


def _memory(strategy: BuildStrategy, program: Program) -> bool:
    return strategy.memory_optimize is not False


def _customized(strategy: BuildStrategy, program: Program) -> bool:
    chosen: Any = strategy.gradient_scale_strategy
    return bool(chosen == GradientScaleStrategy.Customized)


def _all_reduces(strategy: BuildStrategy, program: Program) -> bool:
    return _ranks(program) > 1 and not _reduces(strategy)


def _divides(strategy: BuildStrategy, program: Program) -> bool:
    return _ranks(program) > 1 and _reduces(strategy)


def _ranks(program: Program) -> int:
    """How many trainers run the same program; those of a pipeline each run another part."""
    return 0 if program._pipeline_opt else len(program._trainers_endpoints)


def _in_stages(strategy: BuildStrategy, program: Program) -> bool:
    return program._pipeline_opt is not None


def _reduces(strategy: BuildStrategy) -> bool:
    chosen: Any = strategy.reduce_strategy
    return bool(chosen == ReduceStrategy.Reduce)


PASSES = (
    Pass("sync_batch_norm_pass", _on("sync_batch_norm"), sync_batch_norm),
    Pass(
        "fuse_relu_depthwise_conv_pass", _on("fuse_relu_depthwise_conv"), fuse_relu_depthwise_conv
    ),
    Pass("fuse_bn_act_pass", _on("fuse_bn_act_ops"), fuse_bn_act),
    Pass("fuse_bn_add_act_pass", _on("fuse_bn_add_act_ops"), fuse_bn_add_act),
    Pass("fuse_elewise_add_act_pass", _on("fuse_elewise_add_act_ops"), fuse_elewise_add_act),
    Pass("fuse_adam_op_pass", _optimizers, fuse_adam),
    Pass("fuse_sgd_op_pass", _optimizers, fuse_sgd),
    Pass("fuse_momentum_op_pass", _optimizers, fuse_momentum),
    Pass("memory_optimize_pass", _memory, memory_optimize),
    Pass("fusion_group_pass", _on("enable_auto_fusion"), fuse_elementwise),
    Pass("update_in_backward_pass", _memory, update_in_backward),
    Pass("gradient_scale_pass", _customized, gradient_scale),
    Pass("all_reduce_mode_multi_devices_pass", _all_reduces, data_parallel),
    Pass("reduce_mode_multi_devices_pass", _divides, data_parallel),
    Pass("pipeline_pass", _in_stages, cut_into_stages),
)

SERVING = (
    Pass("remove_identity_pass", lambda strategy, program: True, remove_identity),
    Pass("fold_constants_pass", lambda strategy, program: True, fold_constants),
    Pass("fold_batch_norm_pass", lambda strategy, program: True, fold_batch_norm),
)

IGNORED = {
    "async_mode": "trainers with parameter servers are asynchronous as the transpiler says",
    "build_cinn_pass": "there is no CINN compiler here",
    "cache_runtime_context": "plans look nothing up at run time",
    "enable_addto": "gradients are summed in place where nobody else reads them",
    "enable_backward_optimizer_op_deps": "memory_optimize says where updates stand",
    "enable_inplace": "plans always write into memory that nobody else reads",
    "enable_sequential_execution": "operators always run in the program's order",
    "fix_op_run_order": "operators always run in the program's order",
    "fuse_gemm_epilogue": "it needs cuBLASLt; fuse_elewise_add_act_ops fuses bias and relu",
    "is_distribution": "trainers with parameter servers run what the transpiler made",
    "mkldnn_enabled_op_types": "FLAGS_use_onednn decides, for all operators",
    "remove_unnecessary_lock": "plans take no locks",
}
_RUN = {
    "allow_op_delay": "operators always run in the program's order",
    "num_iteration_per_drop_scope": "no temporary outlives a run",
    "use_experimental_executor": "there is one executor",
    "use_thread_barrier": "replicas are joined before every update",
    "use_cuda": "the executor's place decides",
}


@dataclass(frozen=True, slots=True)
class Built:
    """What passes made of one version of a program."""

    program: Program
    report: Report
    hidden: frozenset[str]  # names without their value of the original program


def applied(
    program: Program,
    strategy: BuildStrategy,
    *,
    execution: ExecutionStrategy | None = None,
    device: bool = False,
    keep: Collection[str] = (),
) -> Built:
    """Apply the passes that a strategy asks for, and check the program after each.

    A pass that cannot apply leaves the program as it is. `keep` are names that will be fed or
    fetched.

    Raises:
        ProgramError: a pass left a program that is not valid; the message names it.
    """
    notes = Notes(strategy, device, frozenset(keep))
    _say(strategy, execution, notes)
    if _reduces(strategy) and not _divides(strategy, program):
        notes.useless("reduce_strategy", "one process updates its parameters once")
    return _through(PASSES, program, notes)


def for_serving(program: Program, keep: Collection[str], values: dict[str, Any]) -> Built:
    """Apply the passes for inference models. `keep` are feeds and targets; `values` are the
    parameters by name, to which those of new variables are added.

    Raises:
        ProgramError: a pass left a program that is not valid; the message names it.
    """
    return _through(SERVING, program, Notes(BuildStrategy(), keep=frozenset(keep), values=values))


def _through(passes: Iterable[Pass], program: Program, notes: Notes) -> Built:
    for each in passes:
        if each.wanted(notes.strategy, program):
            made = each.run(program, notes)
            if made is not program:
                verify(made, after=each.name)
            program = made
    return Built(program, Report(tuple(notes.entries)), frozenset(notes.hidden))


def _say(strategy: BuildStrategy, execution: ExecutionStrategy | None, notes: Notes) -> None:
    """Note what is ignored, and warn of what the original warns of."""
    for fault in [*strategy.ignored(), *(execution.ignored() if execution else ())]:
        notes.useless(fault.split("\n")[0], "ignored")
    reduces = _reduces(strategy)
    if strategy.fuse_broadcast_ops and strategy.given("fuse_broadcast_ops") and not reduces:
        reason = "Currently, fuse_broadcast_ops only works under Reduce mode."
        log.warning(reason)
        notes.useless("fuse_broadcast_ops", reason)
    if strategy.fuse_all_optimizer_ops and reduces:
        reason = "Currently, fuse_all_optimizer_ops only works under AllReduce mode."
        log.warning(reason)
        notes.useless("fuse_all_optimizer_ops", reason)
    for name, reason in IGNORED.items():
        _ignored(strategy, name, reason, notes)
    for name, reason in _RUN.items() if execution else ():
        _ignored(execution, name, reason, notes)


def _ignored(strategy: Any, name: str, reason: str, notes: Notes) -> None:
    if getattr(strategy, name) != type(strategy)._DEFAULTS[name]:
        notes.useless(name, f"accepted, has no effect: {reason}")


@dataclass(slots=True)
class Build:
    """A program's strategy, and what it made of the program's last version."""

    strategy: BuildStrategy = field(default_factory=BuildStrategy)
    execution: ExecutionStrategy | None = None
    device: bool = False
    keep: frozenset[str] = frozenset()
    _version: int = -1
    _built: Built | None = None

    def made(self, program: Program, names: Iterable[str] = ()) -> Program:
        """The program to run when `names` are fed or fetched; rewritten anew if the last one does
        not compute one of them.
        """
        names = frozenset(names)
        while self._built is None or not self.serves(program, names):
            self.keep |= self._missing(names)
            self.strategy.finalize()
            self._built, self._version = self._apply(program), program.version
        return self._built.program

    def serves(self, program: Program, names: Iterable[str]) -> bool:
        """Whether `made` gives the program that it gave before."""
        return self._version == program.version and not self._missing(frozenset(names))

    def _missing(self, names: frozenset[str]) -> frozenset[str]:
        """Those of the names that passes have left out without being told to keep them."""
        return names & self._built.hidden - self.keep if self._built else frozenset()

    @property
    def report(self) -> Report:
        """What was done last."""
        return self._built.report if self._built else Report((Entry("none", None, "not built"),))

    def _apply(self, program: Program) -> Built:
        return applied(
            program, self.strategy, execution=self.execution, device=self.device, keep=self.keep
        )
