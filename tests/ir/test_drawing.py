"""Pictures of programs: every operator and variable is in them, in the colour of its role."""

import xml.etree.ElementTree as ET
from pathlib import Path

import bireme as fluid
from bireme.ir.drawing import COLOURS, to_dot, to_svg


def program() -> fluid.Program:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(main, startup):
        x = fluid.layers.data("x", [3])
        loss = fluid.layers.mean(fluid.layers.fc(x, 1))
        rate = fluid.layers.piecewise_decay([5], [0.1, 0.01])
        fluid.optimizer.SGD(rate).minimize(loss)
    return main


def test_dot_has_a_node_for_each_operator_and_variable_and_a_cluster_for_each_block() -> None:
    made = program()
    dot = to_dot(made)
    for block in made.blocks:
        assert f"subgraph cluster_{block.idx}" in dot
        for i in range(len(block.ops)):
            assert f"op_{block.idx}_{i} [" in dot
        for name in block.vars:
            assert f'"{block.idx}:{name}" [' in dot
    assert '"0:fc_0.w_0" -> op_0_' in dot
    assert dot.count("{") == dot.count("}")


def test_svg_is_well_formed_and_shows_the_roles() -> None:
    made = program()
    root = ET.fromstring(to_svg(made))
    space = "{http://www.w3.org/2000/svg}"
    boxes = [g.find(f"{space}rect") for g in root.iter(f"{space}g")]
    assert len(boxes) == sum(len(b.ops) for b in made.blocks)
    fills = {box.get("fill") for box in boxes if box is not None}
    shown = {COLOURS[r] for r in ("forward", "loss", "backward", "optimize", "lr schedule")}
    assert shown <= fills
    assert len(list(root.iter(f"{space}path"))) > 5


def test_a_build_strategy_may_ask_for_the_picture(tmp_path: Path) -> None:
    strategy = fluid.BuildStrategy()
    strategy.debug_graphviz_path = str(tmp_path / "picture.dot")
    with fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(fluid.CompiledProgram(fluid.Program(), strategy))
    assert (tmp_path / "picture.dot").read_text().startswith("digraph")


def test_the_debugger_writes_the_form_that_the_name_asks_for(tmp_path: Path) -> None:
    block = program().global_block()
    for name, begin in (("a.dot", "digraph"), ("a.svg", "<svg")):
        fluid.debugger.draw_block_graphviz(block, path=str(tmp_path / name))
        assert (tmp_path / name).read_text().startswith(begin)
