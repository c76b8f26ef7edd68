"""The line that an operator or a message names is the user's."""

import sys

import pytest

import bireme as fluid
from bireme.errors import WrongType
from bireme.sites import raising_site


def test_operators_of_a_block_that_ends_name_its_with_statement() -> None:
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        limit = fluid.layers.fill_constant([1], "int64", 3)
        loop = fluid.layers.While(fluid.layers.less_than(limit, limit))
        line = sys._getframe().f_lineno + 1
        with loop.block():
            fluid.layers.increment(limit)
    op = program.global_block().ops[-1]
    assert (op.type, op.site and op.site[:2]) == ("while", (__file__, line))


def test_an_error_names_the_innermost_line_of_the_user() -> None:
    def model() -> None:
        fluid.layers.fc(3, 3)

    with pytest.raises(WrongType) as caught:
        model()
    site = raising_site(caught.tb)
    assert site is not None
    assert (site.file, site.function) == (__file__, "model")
    assert raising_site(None) is None
