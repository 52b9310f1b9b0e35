"""Record of the symmetries of a posterior in the folder of a stored run, to align them without the model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from pyro_manifold.diagnostics.symmetry_of_columns import Independence, Symmetry
from pyro_manifold.store import FORMAT, StoredRun, read_json, write_durably

_NAME = "symmetries.json"
_KINDS = ("signs", "permutations", "rotations", "turns")


def has_record(folder: Path) -> bool:
    """Return whether the symmetries of the run of a folder are recorded."""
    return (folder / _NAME).exists()


def record_symmetries(folder: Path, found: Sequence[Symmetry] | None) -> None:
    """Write the symmetries of a run to its folder; None if they are not known."""
    listed = None if found is None else [each._asdict() for each in found]
    write_durably({folder / _NAME: json.dumps({"format": FORMAT, "symmetries": listed}).encode()})


def recorded_symmetries(run: StoredRun) -> list[Symmetry]:
    """Read the symmetries of a run.

    Raises:
        ValueError: if they are not recorded or not known, or the file is damaged.
    """
    if not has_record(run.folder):
        raise ValueError(
            f"open_run(align=True): the symmetries of the run in '{run.folder}' are not recorded, as it has hardly any "
            "draws yet or an earlier version made it: wait, go on with it by MCMC(..., resume=True), or align the "
            "draws of a site with pyro_manifold.diagnostics.align_rotations and its like."
        )
    path = run.folder / _NAME
    listed = read_json(path).get("symmetries")
    if listed is None:
        raise ValueError(
            f"open_run(align=True): the symmetries of the run in '{run.folder}' are not known, as save_params left out "
            "sites or its density could not be evaluated: align the draws of a site with "
            "pyro_manifold.diagnostics.align_signs, align_signs_and_permutations or align_rotations."
        )
    try:
        return [_symmetry(each, set(run.manifest.sites)) for each in listed]
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): remove it, and resume the run.") from error


def _symmetry(values: dict[str, Any], sites: set[str]) -> Symmetry:
    """Return a symmetry from its entries; raise an error for impossible ones."""
    kind, independent = values["kind"], values["independent"]
    if kind not in _KINDS or independent not in get_args(Independence):
        raise ValueError(f"kind {str(kind)[:40]}, independent {str(independent)[:40]}")
    groups = {name: tuple(values[name]) for name in ("sites", "vectors", "reordered", "transposed")}
    positive = tuple(tuple(names) for names in values["positive"])
    # Records of earlier versions have none of these.
    whole, axes = (tuple((str(name), int(k)) for name, k in values.get(key, ())) for key in ("whole", "axes"))
    named = {name for names in (*groups.values(), *positive, dict(whole), dict(axes)) for name in names}
    if not groups["sites"] or not named <= sites:
        raise ValueError(f"the sites are {sorted(sites)}")
    proper = bool(values.get("proper", False))  # records of earlier versions lack it
    return Symmetry(kind, independent=independent, positive=positive, whole=whole, axes=axes, proper=proper, **groups)
