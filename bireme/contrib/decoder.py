"""One cell for training and for beam search: a `StateCell` says what a step computes, a
`TrainingDecoder` runs it along the target, a `BeamSearchDecoder` along its own best words.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from bireme import layers
from bireme.errors import InvalidArgument
from bireme.ir import Variable, VarType, default_main_program, unique_name
from bireme.layers import blocks

__all__ = ["BeamSearchDecoder", "InitState", "StateCell", "TrainingDecoder"]


class InitState:
    """How a hidden state starts: as `init`, one row per sequence, or with `shape` filled with
    `value`, as many rows as `init_boot` has.

    Raises:
        InvalidArgument: neither `init` nor `init_boot` is given.
    """

    def __init__(
        self,
        init: Variable | None = None,
        shape: Sequence[int] | None = None,
        value: float = 0.0,
        init_boot: Variable | None = None,
        need_reorder: bool = False,
        dtype: Any = "float32",
    ) -> None:
        if init is None:
            if init_boot is None:
                raise InvalidArgument("InitState needs init, or init_boot to take the rows from")
            init = layers.fill_constant_batch_size_like(
                input=init_boot, shape=list(shape or ()), dtype=dtype, value=value
            )
        self.value = init
        self.need_reorder = need_reorder


class _Decoder(Protocol):
    """What a cell needs of the decoder that runs it."""

    def remember(self, state: InitState) -> Variable: ...
    def update(self, memory: Variable, new: Variable) -> None: ...


class StateCell:
    """The hidden states and inputs of a recurrent cell, by name.

    `inputs` maps names to variables, or to None where each step sets them; `out_state` names the
    state that words are scored by. `state_updater` marks the function that computes a step:

    @cell.state_updater
    def step(cell):
        new = layers.fc([cell.get_input("x"), cell.get_state("h")], 32, act="tanh")
        cell.set_state("h", new)
    """

    def __init__(
        self,
        inputs: Mapping[str, Variable | None],
        states: Mapping[str, InitState],
        out_state: str,
        name: str | None = None,
    ) -> None:
        if out_state not in states:
            raise InvalidArgument(f"out_state {out_state!r} is none of {sorted(states)}")
        if not all(isinstance(state, InitState) for state in states.values()):
            raise InvalidArgument("states are InitState objects")
        self._inputs = dict(inputs)
        self._states = dict(states)
        self._out = out_state
        self._updater: Callable[[StateCell], Any] | None = None
        self._decoder: _Decoder | None = None
        self._memories: dict[str, Variable] = {}
        self._current: dict[str, Variable] = {}

    @contextmanager
    def run_by(self, decoder: _Decoder) -> Iterator[None]:
        """Keep the states in a decoder's memories within the block."""
        if self._decoder is not None:
            raise InvalidArgument("a StateCell is used by one decoder at a time")
        self._decoder, self._memories, self._current = decoder, {}, {}
        try:
            yield
        finally:
            self._decoder = None

    def _running(self) -> _Decoder:
        if self._decoder is None:
            raise InvalidArgument("a StateCell is used inside `with decoder.block()`")
        return self._decoder

    @property
    def input_names(self) -> list[str]:
        return list(self._inputs)

    @property
    def state_names(self) -> list[str]:
        return list(self._states)

    def get_state(self, state_name: str) -> Variable:
        """The state as this step has it so far; that of the last step at first."""
        decoder = self._running()
        if state_name not in self._states:
            raise InvalidArgument(f"{state_name!r} is none of the states {self.state_names}")
        if state_name not in self._current:
            memory = decoder.remember(self._states[state_name])
            self._memories[state_name] = self._current[state_name] = memory
        return self._current[state_name]

    def get_input(self, input_name: str) -> Variable:
        """The input that this step was given."""
        found = self._inputs.get(input_name)
        if found is None:
            raise InvalidArgument(f"input {input_name!r} of the StateCell is not set")
        return found

    def set_state(self, state_name: str, state_value: Variable) -> None:
        """Give a state its value after this step."""
        self.get_state(state_name)
        self._current[state_name] = state_value

    def state_updater(self, updater: Callable[["StateCell"], Any]) -> Callable[["StateCell"], Any]:
        """Let `updater` compute the steps of this cell."""
        self._updater = updater
        return updater

    def compute_state(self, inputs: Mapping[str, Variable]) -> None:
        """Compute the new states from the given inputs."""
        if self._updater is None:
            raise InvalidArgument("the StateCell has no @cell.state_updater function")
        unknown = [name for name in inputs if name not in self._inputs]
        if unknown:
            raise InvalidArgument(f"{unknown[0]!r} is none of the inputs {self.input_names}")
        self._inputs.update(inputs)
        self._updater(self)

    def update_states(self) -> None:
        """Hand the states over to the next step."""
        for name, memory in self._memories.items():
            self._running().update(memory, self._current[name])

    def out_state(self) -> Variable:
        """The state that words are scored by."""
        return self.get_state(self._out)


class TrainingDecoder:
    """Runs a cell along the sequences of `step_input`.

    decoder = TrainingDecoder(cell)
    with decoder.block():
        word = decoder.step_input(target_embedding)
        decoder.state_cell.compute_state(inputs={"x": word})
        score = layers.fc(decoder.state_cell.get_state("h"), 1000, act="softmax")
        decoder.state_cell.update_states()
        decoder.output(score)
    scores = decoder()
    """

    def __init__(self, state_cell: StateCell, name: str | None = None) -> None:
        self.state_cell = state_cell
        self.dynamic_rnn = layers.DynamicRNN()

    @contextmanager
    def block(self) -> Iterator[None]:
        """The block of one step."""
        with self.dynamic_rnn.block(), self.state_cell.run_by(self):
            yield

    def step_input(self, x: Variable) -> Variable:
        """Step t of the sequences of `x`."""
        return self.dynamic_rnn.step_input(x)

    def static_input(self, x: Variable) -> Variable:
        """All of `x` in every step."""
        return self.dynamic_rnn.static_input(x)

    def output(self, *outputs: Variable) -> None:
        """Collect variables over all steps."""
        self.dynamic_rnn.output(*outputs)

    def __call__(self) -> Any:
        """The collected outputs as sequences."""
        return self.dynamic_rnn()

    def remember(self, state: InitState) -> Variable:
        return self.dynamic_rnn.memory(init=state.value, need_reorder=state.need_reorder)

    def update(self, memory: Variable, new: Variable) -> None:
        self.dynamic_rnn.update_memory(memory, new)


class BeamSearchDecoder:
    """Runs a cell along the words of its own `beam_size` best sentences.

    `init_ids` (int64, (batch, 1)) and `init_scores` (float32, (batch, 1)) start the sentences and
    have two levels of sequences; `input_var_dict` gives inputs of the cell that all steps share.
    Each step looks at the `topk_size` best words of `target_dict_dim`, embedded in `word_dim`
    numbers; a sentence ends at `end_id` or after `max_len` words.

    decoder = BeamSearchDecoder(cell, init_ids, init_scores, 1000, 32, beam_size=4)
    decoder.decode()
    ids, scores = decoder()
    """

    def __init__(
        self,
        state_cell: StateCell,
        init_ids: Variable,
        init_scores: Variable,
        target_dict_dim: int,
        word_dim: int,
        input_var_dict: Mapping[str, Variable] | None = None,
        topk_size: int = 50,
        sparse_emb: bool = True,
        max_len: int = 100,
        beam_size: int = 1,
        end_id: int = 1,
        name: str | None = None,
    ) -> None:
        self.state_cell = state_cell
        self._given = dict(input_var_dict or {})
        unknown = [each for each in self._given if each not in state_cell.input_names]
        if unknown:
            raise InvalidArgument(f"{unknown[0]!r} is none of the inputs {state_cell.input_names}")
        self._start, self._scores_at_start = init_ids, init_scores
        self._words, self._width, self._sparse = target_dict_dim, word_dim, sparse_emb
        self._topk, self._beams, self._end = topk_size, beam_size, end_id
        self._counter = layers.zeros(shape=[1], dtype="int64", force_cpu=True)
        self._counter.stop_gradient = True
        self._limit = layers.fill_constant(shape=[1], dtype="int64", value=max_len)
        self._going_on = layers.less_than(x=self._counter, y=self._limit)
        self._loop = layers.While(self._going_on)
        self._arrays: dict[str, Variable] = {}
        self._updates: list[tuple[Variable, Variable]] = []
        self._ids: Variable | None = None
        self._scores: Variable | None = None

    @contextmanager
    def block(self) -> Iterator[None]:
        """The block of one step, for those who write another than `decode`."""
        with self._loop.block(), self.state_cell.run_by(self):
            yield
            with layers.Switch() as switch, switch.case(self._going_on):
                layers.increment(x=self._counter, value=1.0, in_place=True)
                for array, value in self._updates:
                    layers.array_write(x=value, i=self._counter, array=array)
                layers.less_than(x=self._counter, y=self._limit, cond=self._going_on)

    def early_stop(self) -> None:
        """Let this step be the last one."""
        layers.fill_constant(shape=[1], value=0, dtype="bool", force_cpu=True, out=self._going_on)

    def read_array(self, init: Variable, is_ids: bool = False, is_scores: bool = False) -> Variable:
        """What `update_array` was given in the last step; `init` in the first."""
        program = default_main_program()
        parent = blocks.parent_of(program.current_block())
        array = parent.create_var(
            name=unique_name.generate("beam_search_array"),
            dtype=init.dtype,
            type=VarType.LOD_TENSOR_ARRAY,
        )
        first = parent.create_var(name=unique_name.generate("beam_search_zero"), dtype="int64")
        attrs = {"shape": [1], "dtype": int(VarType.INT64), "value": 0.0, "force_cpu": True}
        parent.append_op(type="fill_constant", inputs={}, outputs={"Out": first}, attrs=attrs)
        parent.append_op(
            type="write_to_array", inputs={"X": init, "I": first}, outputs={"Out": array}
        )
        if is_ids:
            self._ids = array
        if is_scores:
            self._scores = array
        read = layers.array_read(array=array, i=self._counter)
        self._arrays[read.name] = array
        return read

    def update_array(self, array: Variable, value: Variable) -> None:
        """Let the variable that `read_array` gave be `value` in the next step."""
        if array.name not in self._arrays:
            raise InvalidArgument(f"{array.name!r} was not read by read_array")
        self._updates.append((self._arrays[array.name], value))

    def remember(self, state: InitState) -> Variable:
        return self.read_array(init=state.value)

    def update(self, memory: Variable, new: Variable) -> None:
        self.update_array(memory, new)

    def decode(self) -> None:
        """Make the step: embed the last words, compute the cell, keep the best words."""
        cell = self.state_cell
        with self.block():
            ids = self.read_array(init=self._start, is_ids=True)
            scores = self.read_array(init=self._scores_at_start, is_scores=True)
            word = layers.embedding(
                ids, [self._words, self._width], is_sparse=self._sparse, dtype="float32"
            )
            shared = {name: self.read_array(init=var) for name, var in self._given.items()}
            inputs = {name: layers.sequence_expand(var, scores) for name, var in shared.items()}
            for name in cell.state_names:
                cell.set_state(name, layers.sequence_expand(cell.get_state(name), scores))
            for name in cell.input_names:
                inputs.setdefault(name, word)
            cell.compute_state(inputs=inputs)
            best_ids, best_scores = self._best(ids, scores)
            with layers.Switch() as switch:
                with switch.case(layers.is_empty(best_ids)):
                    self.early_stop()
                with switch.default():
                    cell.update_states()
                    self.update_array(ids, best_ids)
                    self.update_array(scores, best_scores)
                    for name, var in shared.items():
                        self.update_array(var, inputs[name])

    def _best(self, ids: Variable, scores: Variable) -> tuple[Variable, Variable]:
        """The best words after each sentence, and the scores of the sentences with them."""
        state = layers.lod_reset(x=self.state_cell.out_state(), y=scores)
        chances = layers.fc(input=state, size=self._words, act="softmax")
        top, words = layers.topk(chances, k=self._topk)
        total = layers.elementwise_add(
            x=layers.log(top), y=layers.reshape(scores, shape=[-1]), axis=0
        )
        best_ids, best_scores, *_ = layers.beam_search(
            ids, scores, words, total, self._beams, end_id=self._end, level=0
        )
        return best_ids, best_scores

    def __call__(self) -> tuple[Variable, Variable]:
        """(ids, scores) of the found sentences, as `layers.beam_search_decode` gives them."""
        if self._ids is None or self._scores is None:
            raise InvalidArgument("call a BeamSearchDecoder after decode() or its block")
        found: tuple[Variable, Variable] = layers.beam_search_decode(
            ids=self._ids, scores=self._scores, beam_size=self._beams, end_id=self._end
        )
        return found
