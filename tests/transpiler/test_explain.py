"""A split in words and as a picture."""

from xml.etree import ElementTree

import bireme as fluid
from bireme.transpiler.explain import explain_plan, imbalance
from tests.support import oracle


def test_a_plan_lists_every_slice_and_what_servers_hold() -> None:
    plan = oracle.split("ps_wide_deep")[0].plan
    rows = [line.split() for line in explain_plan(plan).splitlines()]
    assert ["block1", "2,500", "100,000", "127.0.0.1:7171"] in rows
    names = {row[0] for row in rows}
    assert names >= {p.param for p in plan.placements}
    assert "imbalance:" in names
    assert "trainers fetch rows by id" in explain_plan(plan)


def test_an_uneven_plan_names_the_remedy() -> None:
    uneven = oracle.split("ps_mlp_bigblock")[0].plan
    assert imbalance(uneven) > 1.5
    assert "split_method = 'SizeBalanced'" in explain_plan(uneven)
    even = oracle.split("ps_mlp", split_method="SizeBalanced")[0].plan
    assert imbalance(even) < 1.05
    assert "SizeBalanced" not in explain_plan(even).splitlines()[-1]


def test_what_became_of_the_program_is_said() -> None:
    text = oracle.split("ps_mlp")[0].explain()
    assert "29 operators became 41" in text
    assert "gone: 6 sgd" in text
    assert "2 split_byref" in text
    assert "4 gradient(s) renamed, as fc_0.b_0@GRAD to fc_0.b_0@GRAD.trainer_0" in text
    assert "12 operators a step: 4 scale, 4 sgd, 4 sum" in text


def test_geo_tables_and_jobs_without_servers_are_explained() -> None:
    assert "geo" in oracle.split("geo_mlp")[0].explain().splitlines()[0]
    assert "row id mod 2" in oracle.split("ps_w2v_table")[0].explain()
    assert "no server" in oracle.split("nccl2_mlp")[0].explain()
    assert "6 c_allreduce_sum" in oracle.split("coll_gar_mlp")[0].explain()


def test_the_picture_has_a_box_for_every_slice() -> None:
    transpiler = oracle.split("ps_wide_deep")[0]
    picture = ElementTree.fromstring(transpiler.draw())
    titles = [t.text or "" for t in picture.iter("{http://www.w3.org/2000/svg}title")]
    slices = [s for p in transpiler.plan.placements for s in p.shards]
    assert sorted(t.split(" ")[0] for t in titles) == sorted(s.name for s in slices)


def test_a_plan_prints_as_a_table() -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        x = fluid.layers.data("x", [64])
        loss = fluid.layers.mean(fluid.layers.fc(x, 512, param_attr="w"))
        fluid.optimizer.SGD(0.1).minimize(loss)
    t = fluid.DistributeTranspiler()
    t.transpile(0, main, "a:1,b:2", 2, startup_program=startup)
    lines = str(t.plan).splitlines()
    assert lines[0] == "placement: 2 server(s), 2 trainer(s), sync, RoundRobin"
    assert any(line.split()[:1] == ["w"] and "block0" in line for line in lines)


def test_the_picture_shows_trainers_and_what_travels() -> None:
    transpiler = oracle.split("ps_wide_deep")[0]
    picture = ElementTree.fromstring(transpiler.draw())
    cluster = transpiler.plan.cluster
    of_class = [element.get("class") for element in picture.iter()]
    assert of_class.count("trainer") == cluster.trainers
    assert of_class.count("link") == cluster.trainers * len(cluster.endpoints)
    texts = [t.text or "" for t in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert sum(text.endswith("per trainer and step") for text in texts) == len(cluster.endpoints)
    assert any("rows of sparse parameters" in text for text in texts)


def test_heights_are_to_one_scale() -> None:
    transpiler = oracle.split("ps_mlp")[0]
    picture = ElementTree.fromstring(transpiler.draw())
    boxes = [e for e in picture.iter("{http://www.w3.org/2000/svg}rect") if len(e)]
    sizes = {s.name: s.bytes for p in transpiler.plan.placements for s in p.shards}
    tall = [
        (float(box.get("height", 0)), sizes[(box[0].text or "").split(" ")[0]]) for box in boxes
    ]
    largest = max(tall)
    for height, count in tall:
        assert abs(height - max(0.5, largest[0] * count / largest[1])) < 0.1
