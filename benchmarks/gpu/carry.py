"""Pack vLLM 0.32 for a machine with a Hopper GPU and no network, in one archive of 35 to 46 MB.

    carry.py FOLDER [PYTHON]    PYTHON: 3.12 with pip, of the machine's architecture

There: torch 2.11 for CUDA 13 (vLLM pins 2.13, but its libraries are built for the stable interface
of torch and load there, too), transformers 5.17, triton 3.6. Unpack ``site.tar.xz`` to a folder and
name it in a ``.pth`` file of that Python; flags and variables that go with it: docs/gpu_results.md.

Left out are kernels for other GPUs (their code is replaced by zeros, which take no room in the
archive), for mixtures of experts and FlashAttention 2, and what no import of the server needs.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

VLLM = "vllm==0.32.0"
PACKAGES = Path(__file__).with_suffix(".txt")
"""What the server imports that torch and transformers do not bring."""
LIBRARIES = ("vllm/_C_stable_libtorch*", "vllm/vllm_flash_attn/_vllm_fa3_C*")
WITHOUT = (
    *("vllm/vllm_flash_attn/_vllm_fa2_C*", "vllm/vllm-rs", "vllm/third_party/deep_gemm"),
    *("vllm/third_party/fmha_sm100", "vllm/_moe_C*", "vllm/_flash*", "vllm/_deepselect*"),
    *("vllm/_qutlass*", "pycountry/locales", "mistral_common/data", "*.dist-info/RECORD"),
)
KEPT = 90
"""Compute capability, in tenths."""
CUBIN, MAGIC = 2, 0xBA55ED50


def main() -> None:
    """Make the archive."""
    folder = Path(sys.argv[1])
    python = sys.argv[2] if len(sys.argv) > 2 else sys.executable
    wheels, site = folder / "wheels", folder / "site"
    pip = [python, "-m", "pip", "download", "-q", "--no-deps", "-d", str(wheels)]
    subprocess.run([*pip, VLLM, "-r", str(PACKAGES)], check=True)
    shutil.rmtree(site, ignore_errors=True)
    for wheel in sorted(wheels.glob("*.whl")):
        subprocess.run([python, "-m", "zipfile", "-e", str(wheel), str(site)], check=True)
    for pattern in WITHOUT:
        for path in site.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for pattern in LIBRARIES:
        for path in site.glob(pattern):
            prune(path)
    archive = folder / "site.tar.xz"
    line = ["tar", "-C", str(site), "--exclude=__pycache__", "-cJf", str(archive), "."]
    subprocess.run(line, check=True)
    print(f"{archive}: {archive.stat().st_size / 1e6:.1f} MB")


def prune(library: Path) -> None:
    """Overwrite device code for other GPUs than ``KEPT`` with zeros; no length changes."""
    data = bytearray(library.read_bytes())
    for start, size in _fat_binaries(library):
        at, end = start, start + size
        while at + 16 <= end:
            magic, _, header, length = struct.unpack_from("<IHHQ", data, at)
            if magic != MAGIC:  # between two of them
                at += 8
                continue
            entry, at = at + header, at + header + length
            while entry < at:
                kind, _, head, payload = struct.unpack_from("<HHIQ", data, entry)
                [gpu] = struct.unpack_from("<I", data, entry + 28)
                if (kind, gpu) != (CUBIN, KEPT):
                    data[entry + head : entry + head + payload] = bytes(payload)
                entry += head + payload
    library.write_bytes(data)


def _fat_binaries(library: Path) -> Iterator[tuple[int, int]]:
    """Yield where sections with device code begin, and their sizes."""
    line = ["readelf", "-SW", str(library)]
    found = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    for words in (row.replace("[", " ").replace("]", " ").split() for row in found.splitlines()):
        if len(words) > 5 and words[1] in (".nv_fatbin", "__nv_relfatbin"):
            yield int(words[4], 16), int(words[5], 16)


if __name__ == "__main__":
    main()
