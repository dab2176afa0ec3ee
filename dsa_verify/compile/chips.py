"""TPU chips that kernels are compiled for: how libtpu names them, and the memory that one device of each has."""

from dataclasses import dataclass

from dsa_verify.errors import unknown_name

GIB, MIB = 2**30, 2**20


@dataclass(frozen=True)
class Chip:
    """One target. `topology` is the smallest that every libtpu takes; a device is one core, half a chip on tpu7x.

    mesh: a topology of 16 devices, for whole layers.
    hbm_bytes: what the compiler lets one program use of a device's HBM, a quarter to one and a quarter GiB less than
      there is. vmem_bytes: vector memory of one core.
    """

    name: str
    topology: str
    mesh: str
    hbm_bytes: int
    vmem_bytes: int


# HBM: what libtpu 0.0.42 names when it refuses temporaries. VMEM: what it names when it refuses a kernel's scratch,
# seen on v6e (128 MiB) and tpu7x (64 MiB); for v5e a scratch of 100 MiB was seen to be taken, no refusal.
CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v5e", "v5e:2x2", "v5e:4x4", int(15.75 * GIB), 128 * MIB),
        Chip("v6e", "v6e:2x2", "v6e:4x4", int(31.25 * GIB), 128 * MIB),
        Chip("tpu7x", "tpu7x:2x2x1", "tpu7x:2x2x2", int(94.75 * GIB), 64 * MIB),
    )
}


def chip_named(name: str) -> Chip:
    """Look a chip up; raises `ConfigError` with the nearest names when there is none."""
    if name not in CHIPS:
        raise unknown_name("target", name, CHIPS)
    return CHIPS[name]
