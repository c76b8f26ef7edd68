"""Pictures of programs: everything is there, coloured by role, and nothing overlaps."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bireme as fluid
from bireme.drawing.layout import place
from bireme.drawing.program_graph import ROLE_COLOURS, draw, role_of, to_dot, to_svg
from bireme.errors import InvalidArgument
from bireme.ir import OpRole, Program
from bireme.ir.flow import FAR, flow_of

SVG = "{http://www.w3.org/2000/svg}"


def trained_loop() -> Program:
    """A program with sub-blocks and every role but those of communication."""
    layers, program = fluid.layers, fluid.Program()
    with fluid.unique_name.guard(), fluid.program_guard(program, fluid.Program()):
        x, y = layers.data("x", [4]), layers.data("y", [1])
        i = layers.fill_constant([1], "int64", 0)
        n = layers.fill_constant([1], "int64", 3)
        h = layers.while_loop(
            lambda i, h: layers.less_than(i, n),
            lambda i, h: [i + 1, layers.fc(h, 8)],
            [i, layers.fc(x, 8, act="relu")],
        )[1]
        loss = layers.mean(layers.square_error_cost(layers.fc(h, 1), y))
        rate = layers.exponential_decay(0.1, 10, 0.9)
        fluid.optimizer.Momentum(rate, 0.9).minimize(loss)
    with program._role(OpRole.RPC):
        program.global_block().append_op(
            type="send_barrier", inputs={"X": []}, outputs={"Out": []}, attrs={"endpoints": ["a:1"]}
        )
    made: Program = program
    return made


def operators(program: Program) -> list[Any]:
    return [op for block in program.blocks for op in block.ops]


def boxes(svg: str) -> dict[str, list[tuple[Any, Any]]]:
    """Every node of the picture: its label, with rectangle and tooltip."""
    found: dict[str, list[tuple[Any, Any]]] = {}
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        label = group.find(f"{SVG}text").text
        found.setdefault(label, []).append((group.find(f"{SVG}rect"), group.find(f"{SVG}title")))
    return found


def test_the_svg_shows_every_operator_in_the_colour_of_its_role() -> None:
    program = trained_loop()
    found = boxes(to_svg(program))
    roles = {role_of(op.role) for op in operators(program)}
    assert roles == set(ROLE_COLOURS)
    for op in operators(program):
        fills = [rect.get("fill") for rect, _ in found[op.type]]
        wanted = [ROLE_COLOURS[role_of(o.role)] for o in operators(program) if o.type == op.type]
        assert sorted(fills) == sorted(wanted)


def test_the_tooltip_says_attributes_and_the_users_line() -> None:
    program = trained_loop()
    titles = [title.text for _, title in boxes(to_svg(program))["momentum"]]
    assert all("mu=0.9" in text for text in titles)
    assert all("test_drawing.py" in text for text in titles)
    assert "float32[4, 8]" in boxes(to_svg(program))["fc_0.w_0"][0][1].text


def test_sub_blocks_are_frames_that_name_their_operator() -> None:
    program = trained_loop()
    svg, dot = to_svg(program), to_dot(program)
    for text in ("block 0", "block 1, run by while", "block 2, run by while_grad"):
        assert f">{text}<" in svg
        assert f'label="{text}"' in dot
    assert dot.count("subgraph cluster_") == len(program.blocks) + 1  # and the legend
    assert dot.count("lhead=cluster_") == 2


def test_a_block_is_drawn_with_those_inside_it_only(tmp_path: Path) -> None:
    program = trained_loop()
    fluid.debugger.draw_block_graphviz(program.block(1), ["fc_1.w_0"], str(tmp_path / "b.svg"))
    svg = (tmp_path / "b.svg").read_text()
    assert "block 1" in svg
    assert "block 0" not in svg
    marked = [
        r for name, found in boxes(svg).items() for r, _ in found if r.get("stroke")[0] == "#"
    ]
    red = {r.get("stroke") for r, _ in boxes(svg)["fc_1.w_0"]}
    assert red == {"#d62728"}
    assert len([r for r in marked if r.get("stroke") == "#d62728"]) == 1


def test_the_debugger_writes_the_form_that_the_name_asks_for(tmp_path: Path) -> None:
    for name, begin in (("a.dot", "digraph"), ("a", "digraph"), ("a.svg", "<svg")):
        fluid.debugger.draw_program(trained_loop(), str(tmp_path / name))
        assert (tmp_path / name).read_text().startswith(begin)


def test_every_edge_of_the_dot_ends_at_a_node() -> None:
    dot = to_dot(trained_loop())
    nodes = set(re.findall(r"^\s*(\w+) \[", dot, re.MULTILINE))
    edges = re.findall(r"^\s*(\w+) -> (\w+)", dot, re.MULTILINE)
    assert len(edges) > 50
    assert {end for edge in edges for end in edge} <= nodes


def test_odd_names_are_escaped() -> None:
    program = Program()
    name = 'a"<b>&\\'
    program.global_block().create_var(name=name, shape=[1], dtype="float32")
    program.global_block().append_op(type="scale", inputs={"X": [name]}, outputs={"Out": [name]})
    assert len(boxes(to_svg(program))[name]) == 2  # before and after the update in place
    assert '"a\\"<b>&\\\\"' in to_dot(program)


def test_a_value_far_from_its_reader_is_repeated() -> None:
    program = Program()
    block = program.global_block()
    for i in range(9):
        block.create_var(name=f"v{i}", shape=[1], dtype="float32")
        if i:
            block.append_op(type="relu", inputs={"X": [f"v{i - 1}"]}, outputs={"Out": [f"v{i}"]})
    block.append_op(type="sum", inputs={"X": ["v0", "v8"]}, outputs={"Out": ["v8"]})
    flow = flow_of(block)
    assert [n.name for n in flow.nodes if n.repeated] == ["v0"]
    assert all(0 < flow.ranks[b] - flow.ranks[a] <= FAR for a, b in flow.edges)


@given(st.data())
def test_no_two_nodes_overlap(data: Any) -> None:
    ranks = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=20))
    widths = data.draw(st.lists(st.floats(1, 90), min_size=len(ranks), max_size=len(ranks)))
    pairs = [(a, b) for a in range(len(ranks)) for b in range(len(ranks)) if ranks[a] < ranks[b]]
    edges = data.draw(st.lists(st.sampled_from(pairs), max_size=20)) if pairs else []
    at = place(ranks, widths, edges, 40.0, 10.0)
    for a in range(len(ranks)):
        assert -0.01 <= at.x[a] - widths[a] / 2 <= at.x[a] + widths[a] / 2 <= at.width + 0.01
        for b in range(a):
            if ranks[a] == ranks[b]:
                assert abs(at.x[a] - at.x[b]) >= (widths[a] + widths[b]) / 2 + 9.99


def test_an_empty_program_has_a_picture_too() -> None:
    assert boxes(to_svg(Program())) == {}
    assert "block 0" in to_dot(Program())


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"drawn as \.png"):
        draw(Program(), tmp_path / "p.png")


def test_the_build_strategy_draws_the_program_that_runs(tmp_path: Path) -> None:
    x = fluid.layers.data("x", [2])
    out = fluid.layers.relu(x)
    strategy = fluid.BuildStrategy()
    strategy.debug_graphviz_path = str(tmp_path / "graph.dot")
    compiled = fluid.CompiledProgram(fluid.default_main_program(), strategy)
    with fluid.Executor(fluid.CPUPlace()) as exe:
        exe.run(compiled, {"x": np.zeros((1, 2), "float32")}, [out])
    assert 'label="relu"' in (tmp_path / "graph.dot").read_text()


def test_the_command_line_draws_a_saved_program(tmp_path: Path) -> None:
    (tmp_path / "program").write_text(str(trained_loop()))
    command = [sys.executable, "-m", "bireme", "verify", "--draw", "p.svg", "program"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    assert "momentum" in boxes((tmp_path / "p.svg").read_text())
