"""The gradient of the loss as the user feeds it."""

from bireme.ir import OpRole, Program

from .notes import Notes
from .uses import rewritten

__all__ = ["gradient_scale"]


def gradient_scale(program: Program, notes: Notes) -> Program:
    """Leave out what sets the gradient of a loss (GradientScaleStrategy.Customized), so that
    `<loss>@GRAD` can be fed.
    """
    ops = program.global_block().ops
    seeds = [i for i, op in enumerate(ops) if op.role == OpRole.Backward | OpRole.Loss]
    names = [n for i in seeds for n in ops[i].output_arg_names]
    if not names:
        notes.applied("gradient_scale_pass", 0, "the program has no gradients")
        return program
    made = rewritten(program, dict.fromkeys(seeds), notes)
    for name in names:
        made.global_block().var(name).is_data = True
    notes.applied("gradient_scale_pass", len(names), f"feed {', '.join(names)}")
    return made
