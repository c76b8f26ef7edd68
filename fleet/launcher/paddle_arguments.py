"""The options of Paddle's launchers, by generation; other options are rejected."""

import argparse
import difflib
from collections.abc import Sequence
from typing import Any, NoReturn

from bireme.errors import ConfigError

__all__ = ["OLD", "OURS", "V2", "Parser"]

OLD: dict[str, Any] = {
    "cluster_node_ips": "127.0.0.1",
    "log_dir": None,
    "log_level": 20,
    "node_ip": "127.0.0.1",
    "print_config": True,
    "selected_gpus": None,
    "started_port": None,
    "use_paddlecloud": False,
}
V2: dict[str, Any] = {
    "gpus": None,
    "heter_worker_num": None,
    "heter_workers": "",
    "http_port": None,
    "ips": "127.0.0.1",
    "log_dir": "log",
    "nproc_per_node": None,
    "server_num": None,
    "servers": "",
    "worker_num": None,
    "workers": "",
}
OURS: dict[str, Any] = {"cpu": False, "grace": 10.0, "restart": 0}

MEANINGS = {
    "cluster_node_ips": "IPs of all nodes, in the order of their ranks (1.x)",
    "cpu": "run on the CPU, one process for each device that is named",
    "gpus": "devices of this node, one process each (2.x)",
    "grace": "seconds that the others get to end by themselves after a failure",
    "heter_worker_num": "not supported",
    "heter_workers": "not supported",
    "http_port": "accepted; processes meet at a port of the first worker",
    "ips": "IPs of all nodes, in the order of their ranks (2.x)",
    "log_dir": "folder of serverlog.N and workerlog.N; 1.x without it prints all to the screen",
    "log_level": "accepted",
    "node_ip": "IP of this node, as --cluster_node_ips has it (1.x)",
    "nproc_per_node": "processes on this node, instead of --gpus (2.x)",
    "print_config": "print the arguments (1.x)",
    "restart": "how often the job begins again after a failure",
    "selected_gpus": "devices of this node, one process each (1.x)",
    "server_num": "parameter servers on this node (2.x)",
    "servers": "host:port of every parameter server, with commas (2.x)",
    "started_port": "first port of every node; 6070 if there are several (1.x)",
    "use_paddlecloud": "take nodes and ports from the variables of PaddleCloud (1.x)",
    "worker_num": "workers on this node, beside servers (2.x)",
    "workers": "host:port of every worker, with commas (2.x)",
}
NUMBERS = ("http_port", "log_level", "nproc_per_node", "restart", "server_num", "started_port",
           "worker_num", "heter_worker_num")  # fmt: skip


def truth(text: str) -> bool:
    """Parse a boolean: True, False, yes, 0 and so on; empty is False."""
    word = text.strip().lower()
    if word in ("true", "yes", "1", "on"):
        return True
    if word in ("false", "no", "0", "off", ""):
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")


class Parser(argparse.ArgumentParser):
    """Options of both generations, then a script and its arguments."""

    def __init__(self, name: str) -> None:
        super().__init__(
            prog=name,
            description="Start a script once for each device of this node, or once for each server "
            "and worker, and watch until all have ended.",
            allow_abbrev=False,
        )
        for option in sorted({*OLD, *V2, *OURS}):
            self.add_argument(f"--{option}", **_kind(option), help=MEANINGS[option])
        self.add_argument("training_script", help="the script that every process runs")
        self.add_argument("training_script_args", nargs=argparse.REMAINDER, help="its arguments")

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """The given options only.

        Raises:
            ConfigError: an option that does not exist, with the nearest name.
        """
        return self.parse_args(words)

    def is_v2(self, given: argparse.Namespace) -> bool:
        """Whether the options are Paddle 2.x's; raises ConfigError for a mixture."""
        old = sorted(vars(given).keys() & (OLD.keys() - V2.keys()))
        v2 = sorted(vars(given).keys() & (V2.keys() - OLD.keys()))
        if old and v2:
            raise ConfigError(
                f"--{old[0]} is of Fluid 1.x, --{v2[0]} of Paddle 2.x",
                where=self.prog,
                hint="use the options of one of them; --help lists both",
            )
        return bool(v2)

    def error(self, message: str) -> NoReturn:
        unknown = message.partition("unrecognized arguments: ")[2].split()
        names = [word.partition("=")[0] for word in unknown if word.startswith("--")]
        if names:
            known = [f"--{option}" for option in MEANINGS]
            near = difflib.get_close_matches(names[0], known, n=1)
            raise ConfigError(
                f"there is no option {names[0]}",
                where=self.prog,
                hint=f"did you mean {near[0]}?" if near else "--help lists the options",
            )
        raise ConfigError(message, where=self.prog, hint="--help shows how it is called")


def _kind(option: str) -> dict[str, Any]:
    """The argparse settings of an option; options not given are absent from the result."""
    if option in ("cpu", "use_paddlecloud"):
        return {"action": "store_true", "default": argparse.SUPPRESS}
    kinds = {"print_config": truth, "grace": float} | dict.fromkeys(NUMBERS, int)
    return {"type": kinds.get(option, str), "default": argparse.SUPPRESS}
