"""What a program needs: memory of its variables, counts of its operators, parameters and FLOPs of
its layers.
"""

from collections import Counter
from itertools import pairwise
from typing import Any

from bireme.errors import InvalidArgument
from bireme.ir import ITEM_SIZE, Program

__all__ = ["memory_usage", "op_freq_statistic", "summary"]

_UNITS = ("B", "KB", "MB", "GB")


def memory_usage(program: Program, batch_size: int) -> tuple[float, float, str]:
    """(lower bound, upper bound, unit) of the memory that the variables of the first block need at
    this batch size.

    Raises:
        InvalidArgument: it is no program, or the batch size is not above 0.
    """
    if not isinstance(program, Program):
        raise InvalidArgument(f"memory_usage of a {type(program).__name__}", hint="give a Program")
    if batch_size <= 0:
        raise InvalidArgument(f"batch_size is {batch_size}", hint="give a positive number")
    block = program.global_block()
    written = {name for op in block.ops for name in op.output_arg_names}
    total = 0.0
    for name in written:
        var = block.vars.get(name)
        if var is None or var.dtype not in ITEM_SIZE:
            continue
        count = 1
        for n in var.shape:
            count *= batch_size if n < 0 else n
        total += count * ITEM_SIZE[var.dtype]
    unit = 0
    while total > 1024 and unit < len(_UNITS) - 1:
        total, unit = total / 1024, unit + 1
    return total * 1.05, total * 1.1, _UNITS[unit]


def op_freq_statistic(program: Program) -> tuple[list[Any], list[Any]]:
    """(how often each operator occurs, how often each pair of neighbours does), most often first;
    a pair is written "first->second".
    """
    types = [op.type for op in program.global_block().ops]
    pairs = [f"{first}->{second}" for first, second in pairwise(types)]
    return Counter(types).most_common(), Counter(pairs).most_common()


def summary(main_prog: Program) -> None:
    """Print a table of the layers with weights or pooling: shapes, parameters, FLOPs."""
    rows = [row for op in main_prog.global_block().ops if (row := _layer(main_prog, op))]
    head = ("No.", "TYPE", "INPUT", "OUTPUT", "PARAMs", "FLOPs")
    lines = [head, *((str(i), *map(str, row)) for i, row in enumerate(rows))]
    widths = [max(len(line[c]) for line in lines) for c in range(len(head))]
    rule = "+" + "+".join("-" * (w + 2) for w in widths) + "+"
    print(rule)
    for i, line in enumerate(lines):
        cells = (f" {cell:>{w}} " for cell, w in zip(line, widths, strict=True))
        print("|" + "|".join(cells) + "|")
        if i == 0:
            print(rule)
    print(rule)
    params, flops = (sum(row[c] for row in rows) for c in (3, 4))
    print(f"Total PARAMs: {params}({params / 1e9:.4f}G)")
    print(f"Total FLOPs: {flops}({flops / 1e9:.2f}G)")


def _layer(program: Program, op: Any) -> tuple[Any, ...] | None:
    """(type, input, output, parameters, multiply-adds) of one operator; None if it is no layer."""
    block = program.global_block()

    def shape(slot: str, names: Any) -> tuple[int, ...]:
        return tuple(block.var(names(slot)[0]).shape)

    if op.type in ("conv2d", "depthwise_conv2d"):
        kernel, x = shape("Filter", op.input), shape("Input", op.input)
        out = shape("Output", op.output)
        count = _product(kernel)
        flops = _product(out[1:]) * _product(kernel[1:])
    elif op.type == "mul":
        weight, x, out = shape("Y", op.input), shape("X", op.input), shape("Out", op.output)
        count = flops = _product(weight)
    elif op.type == "pool2d":
        x, out, count = shape("X", op.input), shape("Out", op.output), 0
        flops = _product(out[1:]) * _product(op.attr("ksize"))
    elif op.type == "batch_norm":
        x, out = shape("X", op.input), shape("Y", op.output)
        count, flops = 4 * x[1], _product(x[1:])
    else:
        return None
    return op.type, x[1:], out[1:], count, flops


def _product(sizes: Any) -> int:
    result = 1
    for n in sizes:
        result *= abs(int(n))
    return result
