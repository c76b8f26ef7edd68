"""What all optimizers share: the learning rate, state per parameter, and the order of a step.

A step is: gradients, clipping, decay, one update operator per parameter in the order of the
parameters' names. State is declared in the main program and initialised in the startup program, as
the names and the order of Fluid say.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from bireme.autodiff.backward import append_backward
from bireme.clip import GradientClipBase, append_gradient_clip_ops, error_clip_callback
from bireme.errors import InvalidArgument, WrongType
from bireme.initializer import Constant
from bireme.ir import (
    Block,
    Operator,
    Parameter,
    Program,
    Variable,
    VarType,
    default_main_program,
    device_guard,
    name_scope,
    program_guard,
    several,
    several_names,
    unique_name,
)
from bireme.layers.helper import LayerHelper
from bireme.regularizer import append_regularization_ops

from .table import check_sparse_updates, distributed_tables

Pair = tuple[Parameter, Variable | None]


class State(NamedTuple):
    """A variable that an update rule keeps for each parameter.

    `slot` is where the operator reads it, `out` where it writes it (default: `slot` + "Out");
    `scalar` state has one element whatever the parameter's shape, and stays on the host.
    """

    slot: str
    name: str
    fill: float = 0.0
    scalar: bool = False
    out: str | None = None

    @property
    def written(self) -> str:
        return self.slot + "Out" if self.out is None else self.out


class Minimizer(ABC):
    """Computes gradients and applies them: `minimize` is `backward`, then `apply_optimize`."""

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Iterable[Any] | None = None,
        no_grad_set: Iterable[Any] | None = None,
    ) -> tuple[list[Operator], list[Pair]]:
        """Append gradients and updates; returns the update operators and (parameter, gradient)
        pairs.

        Raises:
            InvalidArgument: the loss is not a scalar, or a parameter is unknown.
            UnsupportedError: an operator before the loss has no gradient.
        """
        if not isinstance(loss, Variable):
            raise WrongType(f"the loss must be a Variable, got {type(loss).__name__}")
        pairs = self.backward(loss, startup_program, parameter_list, no_grad_set)
        self._before_update(loss, startup_program, pairs)
        return self.apply_optimize(loss, startup_program, pairs), pairs

    @abstractmethod
    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Iterable[Any] | None = None,
        no_grad_set: Iterable[Any] | None = None,
        callbacks: Sequence[Any] | None = None,
    ) -> list[Pair]:
        """Append the operators that compute the gradients."""

    def _before_update(  # noqa: B027  # most append nothing
        self, loss: Variable, startup_program: Program | None, pairs: Sequence[Pair]
    ) -> None:
        """Append what comes between gradients and updates."""

    @abstractmethod
    def apply_optimize(
        self, loss: Variable, startup_program: Program | None, params_grads: Sequence[Pair]
    ) -> list[Operator]:
        """Append clipping, decay and updates to the program of the loss."""


class Optimizer(Minimizer):
    """Base of all optimizers; a subclass says which operator updates and which state it needs.

    Args:
        learning_rate: a number, or a variable that a schedule computes.
        parameter_list: the parameters to update; all trainable ones by default.
        regularization: decay of parameters that have none of their own.
        grad_clip: clips the gradients before decay and update.
        name: a prefix for the names of the state.
    """

    type: str = ""
    state: Sequence[State] = ()
    takes_rate = True

    def __init__(
        self,
        learning_rate: Any,
        parameter_list: Iterable[Any] | None = None,
        regularization: Any = None,
        grad_clip: Any = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(learning_rate, float | int | Variable):
            raise WrongType(
                f"a learning rate must be a number or a Variable, got {learning_rate!r}",
                hint="schedules of bireme.layers return such a variable",
            )
        self._parameter_list = several(parameter_list) or None
        self.regularization = self.regularizer = regularization
        self._grad_clip = _checked_clip(grad_clip)
        self._name = name
        self._learning_rate = learning_rate
        self._dtype: VarType | None = None
        self._learning_rate_map: dict[Program, Variable] = {}
        if isinstance(learning_rate, Variable):
            self._learning_rate_map[learning_rate.block.program] = learning_rate
        self._accumulators: dict[str, dict[str, Variable]] = {}
        self._opti_name_list: list[str] = []
        self._param_device_map: dict[str, str] = {}
        self.helper: LayerHelper | None = None

    # -- what a rule may say ---------------------------------------------------------------
    def attrs(self, param: Parameter) -> dict[str, Any]:
        """Attributes of the operator that updates `param`."""
        return {}

    def inputs(self, param: Parameter) -> dict[str, Any]:
        """Inputs of the update operator beside Param, Grad, LearningRate and the state."""
        return {}

    def _create_accumulators(self, block: Block, parameters: Iterable[Parameter]) -> None:
        for param in parameters:
            for item in self.state:
                shape = [1] if item.scalar else None
                device = "cpu" if item.scalar else None
                self._add_accumulator(
                    item.name, param, fill_value=item.fill, shape=shape, device=device
                )

    def _append_optimize_op(self, block: Block, param_and_grad: Sequence[Any]) -> Operator:
        param, grad = param_and_grad
        inputs = {"Param": param, "Grad": grad, **self.inputs(param)}
        outputs = {"ParamOut": param}
        for item in self.state:
            inputs[item.slot] = self._get_accumulator(item.name, param)
            if item.written:
                outputs[item.written] = inputs[item.slot]
        if self.takes_rate:
            inputs["LearningRate"] = self._create_param_lr(param_and_grad)
        return block.append_op(
            type=self.type, inputs=inputs, outputs=outputs, attrs=self.attrs(param)
        )

    def _finish_update(self, block: Block, parameters_and_grads: Sequence[Pair]) -> None:
        """Append what follows the updates of all parameters."""

    # -- learning rate ---------------------------------------------------------------------
    def _global_learning_rate(self, program: Program | None = None) -> Variable | None:
        return self._learning_rate_map.get(program or default_main_program())

    def _create_global_learning_rate(self) -> None:
        if self._global_learning_rate() is not None:
            return
        if isinstance(self._learning_rate, Variable):
            raise InvalidArgument(
                f"the learning rate {self._learning_rate.name!r} belongs to another program",
                hint="build the schedule and the optimizer under one program_guard",
            )
        helper = LayerHelper("global_var", name=unique_name.generate("learning_rate"))
        rate = helper.create_global_variable(
            name=helper.name,
            shape=[1],
            dtype=self._dtype or VarType.FP32,
            persistable=True,
            stop_gradient=True,
        )
        helper.set_variable_initializer(rate, Constant(float(self._learning_rate)))
        self._learning_rate_map[default_main_program()] = rate

    def _create_param_lr(self, param_and_grad: Sequence[Any]) -> Variable:
        """The rate of one parameter: its own variable, or the global one times its factor."""
        factor = param_and_grad[0].optimize_attr["learning_rate"]
        if isinstance(factor, Variable):
            return factor
        rate = self._global_learning_rate()
        assert rate is not None
        if factor == 1.0:
            return rate
        program = default_main_program()
        with program._lr_schedule_guard(is_with_opt=True), name_scope("scale_with_param_lr"):
            block = program.current_block()
            scaled = block.create_var(name=unique_name.generate("tmp"), dtype=rate.dtype)
            block.append_op(
                type="scale",
                inputs={"X": rate},
                outputs={"Out": scaled},
                attrs={"scale": float(factor)},
            )
        return scaled

    # -- state -----------------------------------------------------------------------------
    def _add_accumulator(
        self,
        name: str,
        param: Parameter,
        dtype: Any = None,
        fill_value: float = 0.0,
        shape: Sequence[int] | None = None,
        type: Any = None,
        device: str | None = None,
    ) -> Variable:
        """Declare state of `param`, filled with one value."""
        name = name if self._name is None else f"{self._name}_{name}"
        known = self._accumulators.setdefault(name, {})
        if param.name in known:
            raise InvalidArgument(
                f"this optimizer already updates {param.name!r} (state {name!r})",
                hint="call minimize once, or with parameter lists that share nothing",
            )
        helper = self.helper or LayerHelper(self.__class__.__name__)
        var = helper.create_global_variable(
            name=unique_name.generate(f"{param.name}_{name}"),
            persistable=True,
            dtype=dtype or param.dtype,
            type=param.type if type is None else type,
            shape=param.shape if shape is None else shape,
            belong_to_optimizer=True,
        )
        with device_guard(self._get_device_for_param(param.name) if device is None else device):
            helper.set_variable_initializer(var, Constant(float(fill_value)))
        self._opti_name_list.append(var.name)
        known[param.name] = var
        return var

    def _get_accumulator(self, name: str, param: Parameter) -> Variable:
        name = name if self._name is None else f"{self._name}_{name}"
        found = self._accumulators.get(name, {}).get(param.name)
        if found is None:
            raise InvalidArgument(f"there is no state {name!r} of parameter {param.name!r}")
        return found

    def get_opti_var_name_list(self) -> list[str]:
        """The names of all state, in the order of its creation."""
        return self._opti_name_list

    def _get_device_for_param(self, param_name: str) -> str:
        return self._param_device_map.get(param_name, "")

    def _update_param_device_map(self, pairs: Iterable[Pair], block: Block) -> None:
        """State and update of a parameter go where its first reader runs."""
        wanted = {p.name for p, _ in pairs if p.trainable}
        for op in block.ops:
            for name in wanted.intersection(op.input_arg_names):
                self._param_device_map[name] = op.attrs.get("op_device", "")
                wanted.discard(name)

    # -- a step ----------------------------------------------------------------------------
    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Iterable[Any] | None = None,
        no_grad_set: Iterable[Any] | None = None,
        callbacks: Sequence[Any] | None = None,
    ) -> list[Pair]:
        """Append the operators that compute the gradients."""
        self._dtype = loss.dtype
        program = loss.block.program
        stopped = self._get_no_grad_set(loss, no_grad_set)
        parameters = several(parameter_list) or self._parameter_list
        with program_guard(program, startup_program):
            pairs: list[Pair] = list(
                append_backward(
                    loss,
                    parameters,
                    stopped,
                    [error_clip_callback, *(callbacks or ())],
                    **self._backward_options(),
                )
            )
            self._append_dgc_ops(pairs)
        return pairs

    def _backward_options(self) -> Mapping[str, Any]:
        return {}

    def _append_dgc_ops(self, pairs: Sequence[Pair]) -> None:
        """Append what compresses gradients before they are exchanged."""

    def _get_no_grad_set(self, loss: Variable, no_grad_set: Iterable[Any] | None) -> set[str]:
        """The given names, and every frozen parameter."""
        names = set(several_names(no_grad_set))
        block = loss.block.program.global_block()
        return names | {p.name for p in block.iter_parameters() if not p.trainable}

    def apply_optimize(
        self, loss: Variable, startup_program: Program | None, params_grads: Sequence[Pair]
    ) -> list[Operator]:
        """`apply_gradients` in the program of the loss."""
        with program_guard(loss.block.program, startup_program):
            return self.apply_gradients(params_grads)

    def apply_gradients(self, params_grads: Sequence[Pair]) -> list[Operator]:
        """Append clipping, decay and updates for the pairs, in the order of the parameters'
        names.
        """
        tables = distributed_tables(default_main_program())
        pairs = sorted(params_grads, key=lambda pair: (pair[0].name in tables, pair[0].name))
        pairs = self._grad_clip(pairs) if self._grad_clip else append_gradient_clip_ops(pairs)
        pairs = append_regularization_ops(pairs, self.regularization)
        ops = self._create_optimization_pass(pairs)
        check_sparse_updates(ops, self._home(default_main_program()))
        return ops

    def _create_optimization_pass(self, parameters_and_grads: Sequence[Pair]) -> list[Operator]:
        program = default_main_program()
        block = self._home(program)
        start = len(block.ops)
        self.helper = LayerHelper(self.__class__.__name__)
        self._update_param_device_map(parameters_and_grads, block)
        self._create_accumulators(block, [p for p, _ in parameters_and_grads if p.trainable])
        self._create_global_learning_rate()
        for pair in parameters_and_grads:
            param, grad = pair
            if grad is None or not param.trainable:
                continue
            with self._update_scope(pair), device_guard(self._get_device_for_param(param.name)):
                self._append_optimize_op(block, pair)
        self._finish_update(block, parameters_and_grads)
        return block.ops[start:]

    @staticmethod
    def _home(program: Program) -> Block:
        """Where updates go: the current block, or the one whose gradients it holds."""
        block = program.current_block()
        return block if block.forward_block_idx < 0 else program.block(block.forward_block_idx)

    @staticmethod
    @contextmanager
    def _update_scope(pair: Sequence[Any], scope: str = "optimizer") -> Iterator[None]:
        """Operators built inside update this pair."""
        with pair[0].block.program._optimized_guard(pair), name_scope(scope):
            yield


def _checked_clip(clip: Any) -> Any:
    if clip is not None and not isinstance(clip, GradientClipBase):
        raise WrongType(f"grad_clip must be one of bireme.clip.GradientClipBy..., got {clip!r}")
    return clip
