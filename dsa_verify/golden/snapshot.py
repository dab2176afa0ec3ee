"""Records as syrupy snapshots: what a test compares, and the one place that writes or removes one."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from syrupy.data import Snapshot, SnapshotCollection
from syrupy.extensions.single_file import SingleFileSnapshotExtension

from dsa_verify.errors import GoldenError
from dsa_verify.golden import canonical, store
from dsa_verify.golden.compare import RecordDifference, differences


class RecordStorage(SingleFileSnapshotExtension):
    """One record a file: its canonical text, compared within tolerance. The index of a snapshot is the file's path."""

    file_extension = "json"

    def serialize(self, data: Any, **_: Any) -> bytes:
        return canonical.text(data).encode()

    @classmethod
    def get_location(cls, *, test_location: Any, index: Any) -> str:
        return str(index)

    @classmethod
    def matches_test_location(cls, **_: Any) -> bool:
        return True  # records are named for what they pin, not for a test

    def read_snapshot_data_from_location(self, *, snapshot_location: str, **_: Any) -> bytes | None:
        record = store.read_file(Path(snapshot_location))
        return None if record is None else self.serialize(record)

    def matches(self, *, serialized_data: Any, snapshot_data: Any) -> bool:
        return not any(difference.kind == "drift" for difference in _differences(serialized_data, snapshot_data))

    def diff_lines(self, serialized_data: Any, snapshot_data: Any) -> Iterator[str]:
        if snapshot_data:
            yield from map(str, _differences(serialized_data, snapshot_data))


class GoldenExtension(RecordStorage):
    """What tests use, `assert record == snapshot(name=path)`: it compares, and `--snapshot-update` writes nothing."""

    @classmethod
    def write_snapshot_collection(cls, *, snapshot_collection: SnapshotCollection, **_: Any) -> None:
        raise GoldenError(
            "golden records are accepted by `dsa-verify golden update`, not by --snapshot-update; "
            f"{snapshot_collection.location} was not written"
        )


def write(folder: Path, *records: Mapping[str, Any]) -> list[Path]:
    """Write records in canonical form; all of them, or none and `GoldenError` where one is beyond its size."""
    storage = RecordStorage()
    contents = {store.path_of(folder, (one["surface"], one["scenario"])): storage.serialize(one) for one in records}
    for path, content in contents.items():
        if len(content) > store.LARGEST:
            raise GoldenError(
                f"{path} would have {len(content)} bytes, at most {store.LARGEST} are allowed; see golden/README.md"
            )
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        collection = SnapshotCollection(str(path))
        collection.add(Snapshot(path.stem, content))
        storage.write_snapshot_collection(snapshot_collection=collection)
    return list(contents)


def remove(path: Path) -> None:
    """Remove the file of a record that has no scenario any more."""
    RecordStorage().delete_snapshots(snapshot_location=str(path), snapshot_names={path.stem})


def _differences(serialized: bytes, snapshot: bytes) -> list[RecordDifference]:
    found, stored = (canonical.parse(text.decode(), "the record") for text in (serialized, snapshot))
    return differences(stored, found)
