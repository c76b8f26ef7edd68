"""The flag table: typed, read once, and able to print itself."""

import pytest

from bireme import flags
from bireme.errors import ConfigError, UnknownName


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flags, "_settings", flags.read({}))


def test_defaults_hold_without_an_environment() -> None:
    assert flags.get("rpc_deadline") == 180000
    assert flags.get("rpc_retry_times") == 3
    assert flags.get("heartbeat_seconds") == 10.0


def test_the_environment_sets_a_typed_value_and_its_source() -> None:
    read = flags.read({"FLAGS_rpc_deadline": "5000", "FLAGS_check_nan_inf": "true"})
    assert (read["rpc_deadline"].value, read["rpc_deadline"].source) == (5000, "FLAGS_rpc_deadline")
    assert read["check_nan_inf"].value is True


def test_an_unknown_flag_warns_with_the_nearest_name() -> None:
    with pytest.warns(UserWarning, match="did you mean FLAGS_rpc_deadline"):
        flags.read({"FLAGS_rpc_deadlin": "1"})


def test_a_value_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="FLAGS_rpc_deadline = 'soon' is not an integer"):
        flags.read({"FLAGS_rpc_deadline": "soon"})


def test_the_communicator_follows_cpu_num_unless_told() -> None:
    read = flags.read({"CPU_NUM": "4", "FLAGS_communicator_send_queue_size": "9"})
    assert read["communicator_max_merge_var_num"].value == 4
    assert read["communicator_send_queue_size"].value == 9


def test_set_flags_changes_and_get_flags_answers_by_the_name_asked() -> None:
    flags.set_flags({"FLAGS_rpc_deadline": 7, "rpc_retry_times": "1"})
    assert flags.get_flags(["FLAGS_rpc_deadline"]) == {"FLAGS_rpc_deadline": 7}
    assert flags.get_flags("rpc_retry_times") == {"rpc_retry_times": 1}


def test_set_flags_changes_all_or_nothing() -> None:
    with pytest.raises(UnknownName, match="did you mean rpc_retry_times"):
        flags.set_flags({"rpc_deadline": 7, "rpc_retry_time": 1})
    assert flags.get("rpc_deadline") == 180000


def test_the_table_prints_name_value_source_and_meaning() -> None:
    flags.set_flags({"rpc_deadline": 7})
    row = next(line for line in flags.describe().splitlines() if line.startswith("rpc_deadline"))
    assert row.split()[:3] == ["rpc_deadline", "7", "set_flags"]
