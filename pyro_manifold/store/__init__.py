"""Storage of runs on disk: file formats, writing and reading, independent of kernels and without pickle."""

from pyro_manifold.store.archive import Archive, Array, DamagedError, checksum_of, numbered, numbered_path, packed
from pyro_manifold.store.files import locked, remove_unfinished, was_being_written, write_durably, write_roughly
from pyro_manifold.store.fingerprint import fingerprint
from pyro_manifold.store.manifest import FORMAT, Manifest, Site, holds_a_run, machine, new_identity, read_json, versions
from pyro_manifold.store.nested import array_of, flattened, unflattened
from pyro_manifold.store.reading import (
    CHUNK,
    MOST_DRAWS,
    SITES,
    STATISTICS,
    StoredRun,
    StoredTensors,
    shard_folder,
    stored_runs,
)
from pyro_manifold.store.saving import Saved, Serialisable, check_entries, plain, restored
