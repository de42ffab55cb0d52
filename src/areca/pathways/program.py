"""What runs on an island: a sharded SPMD computation, known by the shapes it takes and gives.

A Program is traced once and compiled once for each island, before anything is dispatched; its outputs' shapes are known
from tracing, so that a graph whose programs don't fit together is refused while it is being made (Barham et al. 2022,
section 3: "sharded dataflow").
"""

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.tree_util import tree_flatten, tree_unflatten

from areca.errors import ConfigError

_numbers = itertools.count()


class Program:
    """A jax function of arrays with the shapes of `inputs`, for one island at a time.

    `inputs` are trees of arrays or of jax.ShapeDtypeStruct; a struct with a PartitionSpec in `specs` at the same place
    is cut so over the island's mesh, all others are whole on each device. `donates` are arguments whose memory the
    outputs may take; nothing may use those values afterwards. ConfigError when `function` does not take the inputs.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        *,
        specs: Sequence[Any] | None = None,
        out_specs: Any = None,
        donates: Sequence[int] = (),
    ) -> None:
        self.name, self.function, self.donates = name, function, tuple(donates)
        self.number = next(_numbers)
        self.inputs = tuple(jax.tree.map(_abstract, tree) for tree in inputs)
        self.specs = None if specs is None else tuple(specs)
        self.out_specs = out_specs
        if beyond := [i for i in self.donates if not 0 <= i < len(self.inputs)]:
            raise ConfigError(f"program {name} donates argument {beyond[0]} and takes {len(self.inputs)}.")
        try:
            self.outputs = jax.eval_shape(function, *self.inputs)
        except (TypeError, ValueError) as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ConfigError(f"program {name} does not take inputs of {shapes(self.inputs)}: {first}") from None
        self.flat_outputs, self.out_tree = tree_flatten(self.outputs)
        self._compiled: dict[Any, Callable[..., Any]] = {}
        self._lock = threading.Lock()

    def compiled(self, island: Any) -> Callable[..., Any]:
        """The executable for an island, made at the first call: it takes the inputs' leaves and gives a list of leaves.

        `island` has a `mesh` (jax.sharding.Mesh).
        """
        with self._lock:
            if island not in self._compiled:
                self._compiled[island] = self._compile(island.mesh)
            return self._compiled[island]

    def __getstate__(self) -> dict[str, Any]:
        """Without what is compiled: another process compiles it itself."""
        return {k: v for k, v in vars(self).items() if k not in ("_compiled", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._compiled, self._lock = {}, threading.Lock()

    def _compile(self, mesh: Any) -> Callable[..., Any]:
        leaves, tree = tree_flatten(self.inputs)
        lies_in = [place(mesh, spec) for spec in self._specs_in()]
        lies_out = [place(mesh, spec) for spec in flat_specs(self.out_specs, self.outputs)]
        counts = [len(tree_flatten(a)[0]) for a in self.inputs]
        starts = [0, *itertools.accumulate(counts)]
        donated = [i for a in self.donates for i in range(starts[a], starts[a + 1])]

        def flat(*arrays: Any) -> list[Any]:
            return tree_flatten(self.function(*tree_unflatten(tree, arrays)))[0]

        flat.__name__ = self.name
        structs = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s) for a, s in zip(leaves, lies_in, strict=True)]
        jitted = jax.jit(
            flat, in_shardings=tuple(lies_in), out_shardings=lies_out, donate_argnums=tuple(donated), keep_unused=True
        )
        return jitted.lower(*structs).compile()

    def _specs_in(self) -> list[Any]:
        specs = self.specs or [None] * len(self.inputs)
        return [s for spec, tree in zip(specs, self.inputs, strict=True) for s in flat_specs(spec, tree)]

    def __repr__(self) -> str:
        return f"Program({self.name})"


def place(mesh: Any, spec: Any) -> Any:
    """The sharding of a PartitionSpec on a mesh; None is whole on each device."""
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec() if spec is None else spec)


def shapes(tree: Any) -> str:
    """`f32[8,16], i32[]`: the leaves of a tree as a message shows them; of many, the first four."""
    leaves = [f"{jax.numpy.dtype(a.dtype).name}{list(a.shape)}" for a in tree_flatten(tree)[0]]
    return ", ".join(leaves[:4]) + (f" and {len(leaves) - 4} more" if len(leaves) > 4 else "")


def _abstract(a: Any) -> jax.ShapeDtypeStruct:
    return a if type(a) is jax.ShapeDtypeStruct else jax.ShapeDtypeStruct(jax.numpy.shape(a), jax.numpy.result_type(a))


def flat_specs(specs: Any, like: Any) -> list[Any]:
    """One PartitionSpec a leaf of `like`; a spec, or None for whole, may stand for a whole subtree."""
    whole = jax.sharding.PartitionSpec()

    def known(s: Any) -> bool:
        return s is None or isinstance(s, jax.sharding.PartitionSpec)

    def fill(s: Any, t: Any) -> Any:
        return jax.tree.map(lambda _: whole if s is None else s, t)

    filled = jax.tree.map(fill, specs, like, is_leaf=known)
    return tree_flatten(filled, is_leaf=lambda s: isinstance(s, jax.sharding.PartitionSpec))[0]
