"""Small programs for the tests of the runtime, and the plain interpreter they are compared with."""

from typing import Any

import numpy as np

import bireme.ops.optimize
import bireme.ops.random
import bireme.ops.unary  # noqa: F401  (these fill the table)
from bireme.arrays.places import CPUPlace
from bireme.ir import EMPTY, Program, Variable
from bireme.ops.table import ROWS, Role
from bireme.runtime.scope import Scope

PLACE = CPUPlace()


class Builder:
    """Appends operators to the global block of a program and names what they make."""

    def __init__(self) -> None:
        self.program = Program()
        self.block = self.program.global_block()

    def data(self, name: str, shape: list[int], dtype: str = "float32", **more: Any) -> Variable:
        more = {"need_check_feed": True, **more}
        return self.block.create_var(
            name=name, shape=shape, dtype=dtype, is_data=True, stop_gradient=True, **more
        )

    def lasting(self, name: str, shape: list[int], dtype: str = "float32") -> Variable:
        return self.block.create_var(name=name, shape=shape, dtype=dtype, persistable=True)

    def op(self, type: str, name: str, outputs: str = "Out", **slots: Any) -> Variable:
        """One operator with one output; capitalised arguments are slots, others attributes."""
        inputs = {k: v for k, v in slots.items() if k[0].isupper()}
        attrs = {k: v for k, v in slots.items() if not k[0].isupper()}
        out = self.block._find_var_recursive(name) or self.block.create_var(
            name=name, dtype="float32"
        )
        self.block.append_op(type=type, inputs=inputs, outputs={outputs: out}, attrs=attrs)
        return out


def put(scope: Scope, **values: Any) -> None:
    """Give variables of a scope their values."""
    for name, value in values.items():
        scope.var(name).get_tensor().set(np.asarray(value, "float32"), PLACE)


def value(scope: Scope, name: str) -> Any:
    cell = scope.find_var(name)
    assert cell is not None
    return np.array(cell.get_tensor())


def interpret(program: Program, values: dict[str, Any]) -> dict[str, Any]:
    """Run the global block without plans: no buffers, no reuse, every value copied and kept."""
    values = {name: np.array(v) for name, v in values.items()}
    for op in program.global_block().ops:
        row = ROWS[op.type]
        arguments = []
        for parameter in row.parameters(row.kernel):
            names = op.inputs.get(parameter.source, ())
            if parameter.role is Role.XP:
                arguments.append(np)
            elif parameter.role is Role.INPUT:
                given = [values[n].copy() for n in names if n != EMPTY]
                many = row.in_slots[parameter.source].many
                arguments.append(given if many else given[0] if given else None)
            elif parameter.role is Role.ATTR:
                default = row.default_of(parameter.source)
                arguments.append(op.attrs.get(parameter.source, default))
            else:
                assert parameter.role is Role.OUT, parameter
                arguments.append(None)
        assert row.kernel is not None, row
        result = row.kernel(*arguments)
        results = result if len(row.returns) > 1 else (result,)
        for slot, array in zip(row.returns, results, strict=True):
            for name in op.outputs.get(slot, ()):
                values[name] = np.array(array)
    return values
