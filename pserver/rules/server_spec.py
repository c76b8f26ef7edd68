"""What the operator `listen_and_serv` says about its server, read once; nothing is invented.

Names go both ways: gradient -> block, block -> gradients. The file knows programs, no values.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bireme.errors import ProgramError
from bireme.ir import BlockRef, DistributedMode, Operator, Program
from bireme.ir.names import is_counter, without_trainer
from bireme.net.membership import JobSize

from .footprint import Footprint, footprints

__all__ = ["Settings", "read_settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """One server: who it is, how many trainers it serves, and which block each gradient wakes."""

    endpoint: str = ""
    index: int = -1
    servers: int = 0  # of the job; 0: the program does not say
    trainers: int = 1
    mode: int = DistributedMode.SYNC
    dc_asgd: bool = False
    blocks: tuple[int, ...] = ()
    gradients: Mapping[str, int] = field(default_factory=dict)  # name on the wire -> block
    sparse: Mapping[str, str] = field(default_factory=dict)  # gradient -> parameter
    lr_block: int = -1
    aliases: Mapping[str, str] = field(default_factory=dict)  # accepted name -> name in the program
    touched: Mapping[int, Footprint] = field(default_factory=dict)  # block -> what it costs

    @property
    def size(self) -> JobSize:
        """What this server was told of its job."""
        return JobSize(self.trainers, self.servers, self.index)

    def bound(self, name: str) -> str:
        """The program's name of a pushed gradient; with one trainer it may come without suffix."""
        return self.aliases.get(name, name)

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Those of these names under which nobody may push."""
        return [n for n in names if n not in self.gradients and not is_counter(n)]

    def owned_by(self, block: int) -> tuple[str, ...]:
        """The gradients, by their names in the program, that `block` waits for."""
        return tuple(name for name, owner in self.gradients.items() if owner == block)

    def owned(self) -> dict[int, set[str]]:
        """The gradients of every block that waits for some."""
        found: dict[int, set[str]] = {}
        for name, owner in self.gradients.items():
            found.setdefault(owner, set()).add(name)
        return found


def read_settings(op: Operator, program: Program) -> Settings:
    """The settings that `op` carries.

    Raises:
        ProgramError: the attributes contradict each other or the program.
    """
    merged = _pairs(op, "grad_to_block_id")
    blocks = tuple(ref.idx for ref in _refs(op))
    owners = {name: _block_number(op, block, program) for name, block in merged.items()}
    given = op.attrs
    trainers = int(given.get("Fanin", 1))
    if trainers < 1:
        raise ProgramError(f"a server cannot wait for {trainers} trainers", op=op)
    gradients = _on_the_wire(op, owners, program)
    return Settings(
        endpoint=str(given.get("endpoint", "")),
        index=int(given.get("bireme.server", given.get("pserver_id", -1))),
        servers=len(program._endpoints),
        trainers=trainers,
        mode=int(given.get("distributed_mode", DistributedMode.SYNC)),
        dc_asgd=bool(given.get("dc_asgd", False)),
        blocks=blocks,
        gradients=gradients,
        sparse=_pairs(op, "sparse_grad_to_param"),
        lr_block=int(given.get("lr_decay_block_id", -1)),
        aliases=_aliases(gradients, trainers),
        touched=footprints(program, blocks),
    )


def _pairs(op: Operator, attr: str) -> dict[str, str]:
    found = {}
    for text in op.attrs.get(attr, ()):
        name, colon, value = text.rpartition(":")
        if not colon:
            raise ProgramError(f"attribute {attr} holds {text!r}, not name:value", op=op)
        found[name] = value
    return found


def _refs(op: Operator) -> tuple[BlockRef, ...]:
    return tuple(op.attrs.get("optimize_blocks", ()))


def _block_number(op: Operator, text: str, program: Program) -> int:
    if not text.isdigit() or int(text) not in {ref.idx for ref in _refs(op)}:
        raise ProgramError(
            f"grad_to_block_id names block {text}, which is no optimize block", op=op
        )
    if int(text) >= program.num_blocks:
        raise ProgramError(f"grad_to_block_id names block {text} of {program.num_blocks}", op=op)
    return int(text)


def _on_the_wire(op: Operator, owners: Mapping[str, int], program: Program) -> dict[str, int]:
    """X names what arrives: in sync `merged.trainer_<i>`. A gradient of which X says nothing
    arrives in the parts that its block adds, or as it is.
    """
    found = {
        name: owners[origin]
        for name in op.input("X")
        if (origin := without_trainer(name)) in owners
    }
    known = set(map(without_trainer, found))
    for name, block in owners.items():
        if name not in known:
            first = program.block(block).ops[:1]
            merges = bool(first) and first[0].type == "sum" and first[0].output("Out") == [name]
            found.update(dict.fromkeys(first[0].input("X") if merges else [name], block))
    return found


def _aliases(gradients: Mapping[str, int], trainers: int) -> dict[str, str]:
    if trainers > 1:
        return {}
    return {without_trainer(name): name for name in gradients if without_trainer(name) != name}
