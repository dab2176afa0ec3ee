"""Golden records as syrupy snapshots: `assert record == snapshot(name=...)`, `pytest --snapshot-update` to accept."""

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from syrupy.assertion import SnapshotAssertion
from syrupy.data import SnapshotCollections
from syrupy.extensions.base import AbstractSyrupyExtension

from dsa_verify.errors import GoldenError
from dsa_verify.golden import canonical, review, store
from dsa_verify.golden.compare import differences


class GoldenExtension(AbstractSyrupyExtension):
    """Stores a record where `dsa-verify golden` does and matches it as that does, within tolerance.

    The index of a snapshot is `surface/scenario`. Set `folder` in a subclass. Orphans are the review's to find, so that
    syrupy never deletes a record because a run did not reach it.
    """

    folder: Path
    file_extension = "json"
    write_immediately = True

    def serialize(self, data: Any, **_: Any) -> str:
        return canonical.text(data)

    @classmethod
    def get_location(cls, *, test_location: Any, index: Any) -> str:
        return str(store.path_of(cls.folder, tuple(str(index).split("/"))))  # pyright: ignore[reportArgumentType]

    @classmethod
    def matches_test_location(cls, **_: Any) -> bool:
        return True

    def read_snapshot_data_from_location(self, *, snapshot_location: str, **_: Any) -> str | None:
        path = Path(snapshot_location)
        found = store.read(self.folder, (path.parent.name, path.stem))
        return None if found is None else canonical.text(found)

    def matches(self, *, serialized_data: Any, snapshot_data: Any) -> bool:
        found, wanted = (canonical.parse(text, "record") for text in (serialized_data, snapshot_data))
        return not any(difference.kind == "drift" for difference in differences(wanted, found))

    def diff_lines(self, serialized_data: Any, snapshot_data: Any):
        if not snapshot_data:
            return
        found, wanted = (canonical.parse(text, "record") for text in (serialized_data, snapshot_data))
        yield from map(str, differences(wanted, found))

    @classmethod
    def write_snapshot_collection(cls, *, snapshot_collection: Any, **_: Any) -> None:
        for snapshot in snapshot_collection:
            part = canonical.parse(snapshot.data, "record")
            del part["digest"]
            store.write(cls.folder, review.complete(part, {}, {}, {}))

    def discover_snapshots(self, **_: Any) -> SnapshotCollections:
        return SnapshotCollections()

    def read_snapshot_collection(self, **_: Any) -> Any:
        raise NotImplementedError("records are found by their name")

    def delete_snapshots(self, **_: Any) -> None:
        """Never: see the class."""


def golden_snapshot(snapshot: SnapshotAssertion, folder: Path) -> SnapshotAssertion:
    """syrupy's fixture over the records of a folder: `assert record == golden_snapshot(...)(name="surface/scenario")`.

    Raises `GoldenError` where `--snapshot-update` is refused: as `dsa-verify golden update` is, and by xdist workers,
    of which each would find the folder changed by the others.
    """
    if snapshot.update_snapshots or snapshot.update_new_snapshots_only:
        _allow_update(folder)
    return snapshot.use_extension(type("Records", (GoldenExtension,), {"folder": folder}))


@lru_cache  # once a process: afterwards the folder holds what this session wrote
def _allow_update(folder: Path) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        raise GoldenError("golden records are updated by one process; run pytest with -n 0")
    store.guard(folder)
