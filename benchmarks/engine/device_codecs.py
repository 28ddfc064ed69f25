"""What nvCOMP makes of a store's large fields: bytes and decompression speed on a GPU, in its own streams.

The values that chunks hold are compressed by nvCOMP, as they are and with their bytes shuffled, decompressed again on
the device and compared. A store's own frames are blosc's, which nvCOMP does not read; `DeviceDecoder` does, and is
among the ways of `reading.py`.
"""

from __future__ import annotations

import time
from typing import Any

import field_codecs
import measuring
import numpy as np

from ooc_mdp.store import Store

__all__ = ["compare", "show"]

ALGORITHMS = ("LZ4", "Snappy", "Zstd", "GDeflate", "Deflate", "ANS", "Bitcomp", "Cascaded")
_TYPED = ("Bitcomp", "Cascaded")
"""Those that look at values rather than at bytes."""
_TYPES = {1: "|u1", 2: "<u2", 4: "<u4", 8: "<u8"}


def compare(store: Store, device: str, partitions: int, deadline: float) -> list[dict[str, Any]]:
    """Each field with each algorithm; what does not work says why."""
    if device == "cpu":
        return [{"skipped": "needs a CUDA device"}]
    try:
        import cupy
        from nvidia import nvcomp
    except ImportError as error:
        return [{"skipped": f"nvCOMP for Python is not installed: {error}"}]
    found: list[dict[str, Any]] = []
    chosen = field_codecs.spread_over(store, partitions)
    with cupy.cuda.Device(int(device.partition(":")[2] or 0)):
        for name in (name for name in field_codecs.LARGE if name in store.fields):
            values = np.concatenate(list(field_codecs.stored_values(store, name, chosen)))
            flat = cupy.asarray(values.view(np.uint8))
            shuffled = cupy.ascontiguousarray(flat.reshape(-1, values.itemsize).T).reshape(-1)
            for algorithm in ALGORITHMS:
                for shuffle, data in (("none", flat), ("shuffle", shuffled)):
                    if (shuffle == "shuffle" and algorithm in _TYPED) or time.monotonic() > deadline:
                        continue
                    what = {"field": name, "encoding": store.fields[name].encoding, "value_bytes": values.nbytes}
                    what |= {"codec": algorithm, "shuffle": shuffle}
                    typed = {"data_type": _TYPES[values.itemsize]} if algorithm in _TYPED else {}
                    try:
                        found.append(what | measure(nvcomp, data, algorithm, typed))
                    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
                        found.append(what | {"skipped": str(error)[:200]})
    return found


def measure(nvcomp: Any, data: Any, algorithm: str, typed: dict[str, str]) -> dict[str, float]:
    """Ratio and speed of one algorithm."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    codec = nvcomp.Codec(algorithm=algorithm, cuda_stream=stream.ptr, **typed)
    stored = codec.encode(nvcomp.as_array(data, stream.ptr))

    def decode() -> Any:
        out = codec.decode(stored)
        stream.synchronize()
        return out

    out = cupy.asarray(decode()).reshape(-1).view(cupy.uint8)
    if not bool((out == data).all()):
        raise RuntimeError("the bytes that come out are not those that went in")
    seconds = field_codecs.fastest(decode, time.perf_counter)
    size = int(stored.buffer_size)
    return {"stored_bytes": size, "ratio": data.size / size, "decompressed_bytes_per_second": data.size / seconds}


def show(found: list[dict[str, Any]]) -> None:
    if found and "field" not in found[0]:
        print(f"\nnvCOMP: not measured, {found[0]['skipped']}")
        return
    fields = list(dict.fromkeys(c["field"] for c in found))
    by: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for c in found:
        by.setdefault((c["codec"], c["shuffle"]), {})[c["field"]] = c
    rows = [(f"nvCOMP {codec}, {shuffle}", *(_cell(cells.get(name)) for name in fields)) for (codec, shuffle), cells
            in by.items()]  # fmt: skip
    print("\nratio | GB/s of values decompressed on the device")
    measuring.print_table(("codec", *fields), rows)
    for c in found:
        if "skipped" in c:
            print(f"nvCOMP {c['codec']}, {c['shuffle']}, {c['field']}: {c['skipped']}")


def _cell(c: dict[str, Any] | None) -> str:
    if c is None or "skipped" in c:
        return "-"
    return f"{c['ratio']:.2f} | {c['decompressed_bytes_per_second'] / 1e9:.1f}"


if __name__ == "__main__":
    raise SystemExit("reading.py runs it")
