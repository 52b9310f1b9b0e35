"""A transformation of the columns of sites under which a posterior is invariant, with its description for summaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from torch import Tensor

_MOST_NAMED = 6

Independence = Literal["none", "signs", "all"]


class Symmetry(NamedTuple):
    r"""A transformation of sites that does not change a density.

    Attributes:
        kind: the transformations of the columns: ``"signs"``, ``"permutations"`` (signs and order) or ``"rotations"``;
            or ``"turns"``, whole turns of each entry, an angle.
        sites: the sites whose columns are transformed; several are transformed together.
        vectors: those of them that are vectors: a unit vector, which is one column, or a companion with one number
            for each column.
        reordered: sites with a value for each column, such as scales, that are reordered with the columns.
        independent: transformations that elements of a plate have of their own: ``"none"``, ``"signs"`` (the order is
            common to all elements) or ``"all"``.
        transposed: those of ``sites`` whose rows are transformed in place of columns, such as V of UV.
        whole: sites of which one column has all entries, each with the number of dimensions of these: a factor's unit
            vector, its scores of any shape, a number.
        axes: sites whose columns are along another dimension than the last, or the last but one for ``sites``; each
            with that dimension, counted from the end.
        positive: sites with a value for each column whose signs are not identified either, each with the one of
            ``sites`` whose columns change signs with it, if there is one: d and V of $U \operatorname{diag}(d) V^\top$.
        proper: whether the transformations have determinant 1, as one of the sites is a rotation and stays one.
    """

    kind: str
    sites: tuple[str, ...]
    vectors: tuple[str, ...] = ()
    reordered: tuple[str, ...] = ()
    independent: Independence = "none"
    transposed: tuple[str, ...] = ()
    positive: tuple[tuple[str, ...], ...] = ()
    proper: bool = False
    whole: tuple[tuple[str, int], ...] = ()
    axes: tuple[tuple[str, int], ...] = ()

    @property
    def is_one_sign(self) -> bool:
        """Return whether the sites are one column, as unit vectors are."""
        return self.sites[0] in self.vectors or bool(self.whole)

    @property
    def scales(self) -> tuple[str, ...]:
        """Sites with a value for each column that are reordered, or whose signs are not identified."""
        return (*self.reordered, *(name for name, *_ in self.positive if name not in self.reordered))

    @property
    def names(self) -> tuple[str, ...]:
        """All sites that it changes."""
        return (*self.sites, *self.scales)

    def matrices(self, name: str, values: Tensor) -> Tensor:
        """Return values of a site as matrices: a unit vector as one column, a companion's vector as one row."""
        for site, count in self.whole:
            if site == name:
                return (values.flatten(-count) if count else values.unsqueeze(-1)).unsqueeze(-1)
        if name in self.transposed:
            return values.mT
        if name not in self.vectors:
            return self.columns_last(name, values)
        return values.unsqueeze(-1 if name == self.sites[0] else -2)

    def put_back(self, name: str, rows: Tensor, values: Tensor) -> Tensor:
        """Return what `matrices` or `rows` has made of values of a site, in the shape of these values."""
        found = rows.reshape(self.matrices(name, values).shape)
        return found.mT if name in self.transposed else self.columns_back(name, found).reshape(values.shape)

    def columns_last(self, name: str, values: Tensor) -> Tensor:
        """Return values of a site with the dimension of its columns in the last place."""
        return values.movedim(dict(self.axes).get(name, -1), -1)

    def columns_back(self, name: str, values: Tensor) -> Tensor:
        """Return values with the dimension of columns where the site has it."""
        return values.movedim(-1, dict(self.axes).get(name, -1))

    def with_signs(self, names: tuple[str, ...], values: Mapping[str, Tensor], signs: Tensor) -> dict[str, Tensor]:
        """Return the scales of an entry of ``positive`` times signs, and the columns that change with them."""
        scale, *others = names
        found = {scale: values[scale] * signs}
        for name in others:
            matrices = self.matrices(name, values[name])
            common = (1,) * (matrices.dim() - 1 - signs.dim())  # elements of a plate that have the scales in common
            spread = signs.reshape(*signs.shape[:-1], *common, 1, signs.shape[-1])
            found[name] = self.put_back(name, matrices * spread, values[name])
        return found

    def rows(self, name: str, values: Tensor, leading: int) -> Tensor:
        """Return the rows of a site that are transformed by one matrix.

        Args:
            name: one of ``sites``.
            values: ``(..., [batch], n, p)``; a vector has no n, or no p if it is one column.
            leading: number of dimensions in front of the batch, such as chains and draws.

        Returns:
            ``(..., rows, p)``, with the batch before rows where its elements have transformations of their own.
        """
        rows = self.matrices(name, values)
        return rows.flatten(leading, -2) if self.independent == "none" else rows

    def known_up_to(self) -> str:
        """Return a clause that names the sites and the transformations."""
        if self.kind == "turns":
            return f"{_quoted(self.sites)} is an angle without bounds, known only up to whole turns"
        verb, their = ("is", "its") if len(self.sites) == 1 else ("are", "their")
        changes = {"signs": "the signs", "permutations": "the signs and the order", "rotations": "rotations"}
        what = f"{changes[self.kind]} of {self._columns(their)}" + (", together" if len(self.sites) > 1 else "")
        if self.is_one_sign:
            sign = "signs" if self.independent == "all" and len(self.sites) > 1 else "sign"
            what = f"{their} {sign}" + (", together" if len(self.sites) > 1 else "")
        if self.proper and self.kind != "rotations":
            what += ", without reflections"
        if self.reordered:
            what += f", with {_quoted(self.reordered)} in the same order"
        for scale, *others in self.positive:
            with_site = f", with those of {self._columns_of(others[0])}" if others else ""
            what += f", and `{scale}` up to its signs{with_site}"
        return f"{_quoted(self.sites)} {verb} known only up to {what}"

    def _columns(self, their: str) -> str:
        of_kind: dict[str, list[str]] = {}
        for name in self.sites:
            of_kind.setdefault(self._kind_of_columns(name), []).append(name)
        if len(of_kind) == 1:
            return f"{their} {next(iter(of_kind))}"
        return " and ".join(f"the {kind} of {_quoted(tuple(names))}" for kind, names in of_kind.items())

    def _columns_of(self, name: str) -> str:
        return f"the {self._kind_of_columns(name)} of `{name}`"

    def _kind_of_columns(self, name: str) -> str:
        if name in dict(self.axes):
            return f"elements along dimension {dict(self.axes)[name]}"
        return "rows" if name in self.transposed else "columns"

    def sentence(self) -> str:
        """Return a sentence about the symmetry for the summary table of draws as they were sampled."""
        their = "its" if len(self.sites) == 1 else "their"
        if self.kind == "turns":
            return (
                f"{self.known_up_to()}: mean and R-hat of the angle are not meaningful; see those of its cos and sin."
            )
        return (
            f"{self.known_up_to()}: means and R-hat of {their} entries are not meaningful; see "
            f"pyro_manifold.diagnostics.summarise_invariants({self._arguments()})."
        )

    def _arguments(self) -> str:
        """Return the arguments of `summarise_invariants`: one product if there are no more than three factors."""
        first, *others = [self._as_matrix(name) for name in self.sites]
        as_product = len(others) < 2 and len(self.scales) < 2 and not set(self.scales) & set(dict(self.axes))
        if not as_product or not (others or self.scales):
            return f'{first}, kind="{self.kind}"'
        return ", ".join([first, *(f"scales={name}" for name in self.scales), *(f"right={name}" for name in others)])

    def _as_matrix(self, name: str) -> str:
        """Return the expression that makes matrices of the draws of a site."""
        if name in dict(self.whole):
            count = dict(self.whole)[name]
            return name + {0: "[..., None, None]", 1: "[..., None]"}.get(count, f".flatten(-{count})[..., None]")
        if name in self.vectors:
            return name + ("[..., None]" if name == self.sites[0] else "[..., None, :]")
        if name in dict(self.axes):
            return f"{name}.movedim({dict(self.axes)[name]}, -1)"
        return name + (".mT" if name in self.transposed else "")


def _quoted(names: tuple[str, ...]) -> str:
    *others, last = [f"`{name}`" for name in names]
    if len(names) > _MOST_NAMED:
        others, last = others[: _MOST_NAMED - 1], f"{len(names) - _MOST_NAMED + 1} more"
    return f"{', '.join(others)} and {last}" if others else last
