"""A small valid source of every kind that the library reads, with its reader."""

import gzip
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fredholm.tasks.fields.open import open_fields, open_functions, read_fields, read_places
from fredholm.tasks.forecasts import open_long
from fredholm.tasks.graphs.open import open_graphs
from fredholm.tasks.image_texts.open import open_image_texts
from fredholm.tasks.images import open_images, read_image_arrays, read_images
from fredholm.tasks.masks.npz_file import images_of_npz
from fredholm.tasks.masks.open import open_masks
from fredholm.tasks.masks.read import read_mask
from fredholm.tasks.points.open import open_points, read_points
from fredholm.tasks.sentences.open import open_sentences
from fredholm.tasks.series import open_series
from fredholm.tasks.series.open import read_series
from fredholm.tasks.text import MarkedTokenizer, open_text

Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Sample:
    """A source of data.

    Args:
        name: kind of source.
        files: content of all files by their path in a folder; None: see `make`.
        read: reads the source from that folder to its last byte.
        changed: prefix of the names of the files that are damaged; "": all.
    """

    name: str
    files: Files
    read: Callable[[Path], object]
    changed: str = ""


def npz(**arrays: Any) -> bytes:
    """The arrays as a compressed .npz file."""
    written = io.BytesIO()
    np.savez_compressed(written, **arrays)
    return written.getvalue()


def npy(array: np.ndarray) -> bytes:
    """An array as an .npy file."""
    written = io.BytesIO()
    np.save(written, array)
    return written.getvalue()


def picture(pixels: np.ndarray, kind: str = "png", **settings: Any) -> bytes:
    """Pixels uint8 `(H, W)` or `(H, W, 3 or 4)` as an image file."""
    from PIL import Image

    written = io.BytesIO()
    Image.fromarray(pixels).save(written, {"jpg": "jpeg", "tif": "tiff"}.get(kind, kind), **settings)
    return written.getvalue()


def idx(values: np.ndarray) -> bytes:
    """Unsigned bytes as an idx file."""
    sides = b"".join(side.to_bytes(4, "big") for side in values.shape)
    return bytes([0, 0, 8, values.ndim]) + sides + values.astype(np.uint8).tobytes()


def lines(*rows: object) -> bytes:
    """The rows as lines of text."""
    return "".join(f"{row}\n" for row in rows).encode()


def on(name: str, read: Callable[[Path], object]) -> Callable[[Path], object]:
    """A reader for a folder that reads the file of this name."""
    return lambda folder: read(folder / name)


def all_images(folder: Path) -> None:
    """Opens labelled images and reads every one."""
    found = open_images(folder, image_size=(8, 8))
    for part in (found.train, found.valid, found.test):
        if part is not None:
            part.images(torch.arange(len(part)))


def all_pairs(folder: Path) -> None:
    """Opens images with texts and reads every one."""
    found = open_image_texts(folder, image_size=(8, 8))
    found.images(torch.arange(len(found)))


def all_masks(folder: Path) -> None:
    """Opens masks and reads every image."""
    found = open_masks(folder, image_size=(8, 8))
    found.images(torch.arange(len(found)))
    found.masks(torch.arange(len(found)))


_R = np.random.default_rng(0)
_IMAGES = _R.integers(0, 256, (12, 6, 5), dtype=np.uint8)
_LABELS = np.arange(12) % 3
_COLOUR = _R.integers(0, 256, (6, 7, 3), dtype=np.uint8)
_SPLIT = np.array(["train"] * 8 + ["test"] * 4)
_TABLE = ["time,a,b,series,label"] + [
    f"{t},{t / 7:.3f},{'' if t == 3 else -t},s{i},{'xy'[i % 2]}" for i in range(6) for t in range(5)
]
_HOURS = ["time,load"] + [f"2026-01-{d + 1:02d}T{h:02d}:00,{h * 0.5 + d}" for d in range(3) for h in range(24)]
_TS = [
    "# made up",
    "@problemName toy",
    "@timeStamps false",
    "@dimensions 2",
    "@classLabel true up down",
    "@data",
    *(f"{i},1.5,?,2:0,{i},-3,4:{'up' if i % 2 else 'down'}" for i in range(8)),
]
_TIMED = [
    "@timeStamps true",
    "@classLabel true a b",
    "@data",
    *("(2026-01-01T00:00,1),(2026-01-01T01:00,2):(2026-01-01T00:30,3):" + "ab"[i % 2] for i in range(6)),
]
_SENTENCES = ["text,label", *(f'"film {i}, seen",{["good", "bad"][i % 2]}' for i in range(12))]
_OBJECTS = [json.dumps({"text": f"film {i}", "label": i % 2, "group": f"g{i // 2}"}) for i in range(12)]
_FIELD = ["field,x,y,value", *(f"f{i},{k / 4},{k % 3},{i + k * 0.5}" for i in range(4) for k in range(5))]
_OFF = lines("OFF", "4 4 6", "0 0 0", "1 0 0", "0 1 0", "0 0 1", "3 0 2 1", "3 0 1 3", "3 0 3 2", "3 1 2 3")
_OBJ = lines("v 0 0 0", "v 1 0 0", "v 0 1 0", "v 0 0 1", "f 1 3 2", "f 1 2 4", "f 1 4 3", "f 2 3 4")
_PLY = (
    lines(
        "ply", "format binary_little_endian 1.0", "element vertex 5", "property float x", "property float y",
        "property float z", "property float weight", "property uchar label", "end_header",
    )
    + b"".join(_R.random(4).astype("<f4").tobytes() + bytes([i % 2]) for i in range(5))
)  # fmt: skip
_ASCII_PLY = lines(
    "ply", "format ascii 1.0", "element vertex 3", "property float x", "property float y", "property float z",
    "element face 1", "property list uchar int vertex_indices", "end_header", "0 0 0", "1 0 0", "0 1 0", "3 0 1 2",
)  # fmt: skip
_STL = bytes(80) + (2).to_bytes(4, "little") + b"".join(_R.random(12).astype("<f4").tobytes() + b"\0\0" for _ in "ab")
_GRAPH = {
    "edge_index": np.array([[0, 1, 2, 3, 4, 5, 6, 7], [1, 2, 0, 4, 5, 3, 7, 6]]),
    "features": _R.random((8, 3)).astype(np.float32),
    "graph": np.array([0, 0, 0, 1, 1, 1, 2, 2]),
    "labels": np.array(["a", "b", "a"]),
    "split": np.array(["train", "train", "test"]),
    "edge_weights": np.ones(8),
}
_NODES = {"x_indptr": np.arange(7), "x_indices": np.arange(6) % 4, "x_data": np.ones(6, np.float32)}
_TU = {
    "T_A.txt": lines("1, 2", "2, 1", "3, 4", "4, 3", "5, 6"),
    "T_graph_indicator.txt": lines(1, 1, 2, 2, 3, 3),
    "T_graph_labels.txt": lines(1, -1, 1),
    "T_node_labels.txt": lines(0, 1, 2, 0, 1, 2),
    "T_node_attributes.txt": lines(*(f"{i}.5, -{i}" for i in range(6))),
    "T_edge_labels.txt": lines(0, 0, 1, 1, 0),
}
_CSV_GRAPH = {
    "edges.csv": lines("source,target,weight", "a,b,1", "b,c,0.5", "c,d,2", "d,a,1"),
    "nodes.csv": lines("id,size,label,split", "a,1,x,train", "b,2,y,train", "c,3,x,valid", "d,4,,"),
}
_CSV_GRAPHS = {
    "edges.csv": lines("graph,source,target,kind", "g,a,b,1", "h,a,b,2", "h,b,c,3"),
    "nodes.csv": lines("graph,id,size", "g,a,1", "g,b,2", "h,a,3", "h,b,4", "h,c,5"),
    "graphs.csv": lines("graph,label,split", "g,x,train", "h,y,test"),
}
_MASK = (np.arange(42).reshape(6, 7) % 3).astype(np.uint8)
_DARCY = {
    f"darcy_{split}_16_{name}": _R.random((2, 16, 16)).astype(np.float32)
    for split in ("train", "test")
    for name in ("x", "y")
}
_VOXELS = {
    "X_train": _R.integers(0, 256, (3, 3375), dtype=np.uint8),
    "X_test": _R.integers(0, 256, (2, 3375), dtype=np.uint8),
    "y_train": np.array([0, 1, 0]),
    "y_test": np.array([1, 0]),
    "classes": np.array(["bed", "desk"]),
}
_STAYS = npz(
    offsets=np.array([0, 2, 2, 5]),
    time_min=np.array([0, 30, 5, 10, 10]),
    var=np.array([0, 1, 0, 0, 1]),
    value=np.arange(5.0),
    var_names=np.array(["HR", "pH"]),
    static=np.array([[50, 1, 2], [-1, 0, 3], [61, 1, 4]]),
    static_names=np.array(["Age", "Gender", "ICUType"]),
    outcomes=np.array([[1, 0], [2, 1], [3, 0]]),
    outcome_names=np.array(["RecordID", "In-hospital_death"]),
)


def columns(suffix: str, names: Mapping[str, list[str]] | None = None, **values: Any) -> bytes:
    """A table as a .parquet file, a .arrow stream, or, with the suffix "footer", a .arrow file.

    Args:
        suffix: format.
        names: class names by column, stored as Hugging Face's datasets does.
        values: values of every column.
    """
    import pyarrow
    import pyarrow.parquet

    table, written = pyarrow.table(values), io.BytesIO()
    if names is not None:
        features = {name: {"names": each, "_type": "ClassLabel"} for name, each in names.items()}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    if suffix == ".parquet":
        pyarrow.parquet.write_table(table, written)
        return written.getvalue()
    new = pyarrow.ipc.new_file if suffix == "footer" else pyarrow.ipc.new_stream
    with new(written, table.schema) as writer:
        writer.write_table(table)
    return written.getvalue()


def _saved(*files: str) -> bytes:
    """The file that datasets writes beside the files of a split."""
    return json.dumps({"_data_files": [{"filename": name} for name in files]}).encode()


def _tokenizer() -> bytes:
    return MarkedTokenizer.bytes().state.encode()


_CELLS = [{"bytes": picture(_COLOUR, kind), "path": None} for kind in ("png", "jpg", "png")]


def samples() -> tuple[Sample, ...]:
    """All samples."""
    found = [
        Sample("images.npz", {"a.npz": npz(x=_IMAGES, y=_LABELS, split=_SPLIT)}, on("a.npz", all_images)),
        Sample(
            "images in splits.npz",
            {"a.npz": npz(x_train=_IMAGES, y_train=_LABELS, x_test=_IMAGES, y_test=_LABELS, groups_train=_LABELS)},
            on("a.npz", all_images),
        ),
        Sample("images.npy", {"a.npy": npy(_IMAGES)}, on("a.npy", lambda p: read_image_arrays(p, 3, (8, 8)))),
        Sample("masks.npz", {"a.npz": npz(images=_IMAGES, masks=_IMAGES % 3)}, on("a.npz", all_masks)),
        Sample("masked.npy", {"a.npy": npy(_IMAGES)}, on("a.npy", lambda p: images_of_npz(p, 1))),
        Sample(
            "series.npz",
            {"a.npz": npz(values=_R.random((12, 4, 2)), labels=_LABELS, lengths=np.full(12, 3), is_test=_LABELS == 0)},
            on("a.npz", open_series),
        ),
        Sample(
            "joined series.npz",
            {"a.npz": npz(values=_R.random(9), offsets=np.array([0, 4, 9]), times=np.arange(9.0), targets=np.ones(2))},
            on("a.npz", open_series),
        ),
        Sample("series.npy", {"a.npy": npy(_R.random((3, 9)))}, on("a.npy", lambda p: read_series(p))),
        Sample("stays", {"set-a.npz": _STAYS, "set-b.npz": _STAYS}, open_series),
        Sample("fields.npz", {"a.npz": npz(values=_R.random((6, 4, 4)), split=_SPLIT[3:9])}, on("a.npz", open_fields)),
        Sample(
            "functions.npz",
            {
                "a.npz": npz(
                    values=_R.random(9),
                    pos=_R.random((9, 2)),
                    offsets=np.array([0, 4, 9]),
                    target_values=_R.random((2, 3)),
                    target_pos=_R.random((3, 2)),
                    example_times=np.arange(2),
                )
            },
            on("a.npz", open_functions),
        ),
        Sample("trajectories.npz", {"a.npz": npz(trajectories=_R.random((4, 3, 8)))}, on("a.npz", open_functions)),
        Sample("neuralop_pde.npz", {"neuralop_pde.npz": npz(**_DARCY)}, on("neuralop_pde.npz", open_functions)),
        Sample("places.npz", {"a.npz": npz(pos=_R.random((5, 2)))}, on("a.npz", lambda p: read_places(p, ("x", "y")))),
        Sample("fields.npy", {"a.npy": npy(_R.random((3, 4, 4)))}, on("a.npy", read_fields)),
        Sample("graphs.npz", {"a.npz": npz(**_GRAPH)}, on("a.npz", open_graphs)),
        Sample(
            "nodes.npz",
            {"a.npz": npz(**_NODES, edges=np.array([[0, 1], [2, 3]]), y=_LABELS[:6], train_idx=np.array([0, 1]))},
            on("a.npz", open_graphs),
        ),
        Sample(
            "TU.npz",
            {
                "a.npz": npz(
                    graph_indicator=np.array([0, 0, 1]),
                    graph_labels=np.array([0, 1]),
                    edges=np.array([[0, 1]]),
                    node_labels=np.array([0, 1, 2]),
                )
            },
            on("a.npz", open_graphs),
        ),
        Sample(
            "clouds.npz",
            {"a.npz": npz(x=_R.random((6, 5, 4)), y=_LABELS[:6], lengths=np.full(6, 4), classes=np.array(list("abc")))},
            on("a.npz", open_points),
        ),
        Sample(
            "joined clouds.npz",
            {"a.npz": npz(x_train=_R.random((9, 3)), offsets_train=np.array([0, 4, 9]), labels_train=np.arange(9) % 2)},
            on("a.npz", open_points),
        ),
        Sample("modelnet", {"modelnet10_voxel30.npz": npz(**_VOXELS)}, open_points),
        Sample(
            "pairs.npz",
            {"a.npz": npz(images=_IMAGES[..., None], text=np.array([f"t{i}" for i in range(12)]), label=_LABELS)},
            on("a.npz", all_pairs),
        ),
        Sample(
            "idx folder",
            {
                "train-images-idx3-ubyte": idx(_IMAGES),
                "train-labels-idx1-ubyte.gz": gzip.compress(idx(_LABELS)),
                "t10k-images-idx3-ubyte.gz": gzip.compress(idx(_IMAGES)),
                "t10k-labels-idx1-ubyte": idx(_LABELS),
            },
            all_images,
        ),
        Sample(
            "image folder",
            {
                "cat/1.png": picture(_COLOUR),
                "cat/2.jpg": picture(_COLOUR, "jpg"),
                "cat/3.bmp": picture(_COLOUR, "bmp"),
                "dog/1.webp": picture(_COLOUR, "webp"),
                "dog/2.tif": picture(_COLOUR, "tif", compression="tiff_lzw"),
                "dog/3.png": picture(np.dstack([_COLOUR, _COLOUR[..., :1]])),
                "dog/4.png": picture(_MASK.astype(np.uint16) * 9000),
            },
            all_images,
        ),
        Sample(
            "labelled folder",
            {
                "labels.csv": lines("file,label,split", "a.png,x,train", "b.png,y,train", "sub/c.png,x,test"),
                "a.png": picture(_COLOUR),
                "b.png": picture(_COLOUR),
                "sub/c.png": picture(_COLOUR),
            },
            all_images,
            changed="labels",
        ),
        Sample(
            "masks folder",
            {
                "images/a.jpg": picture(_COLOUR, "jpg"),
                "images/b.png": picture(_COLOUR),
                "masks/a.png": picture(_MASK),
                "masks/b.png": picture(_MASK),
                "classes.txt": lines("sky", "sea", "land"),
                "images.csv": lines("file,group", "images/a.jpg,g", "images/b.png,h"),
            },
            all_masks,
        ),
        Sample("mask", {"a.png": picture(_MASK)}, on("a.png", read_mask)),
        Sample(
            "image texts",
            {
                "train.jsonl": lines(
                    *(json.dumps({"images": "a.png", "text": f"t{i}", "label": i % 2}) for i in range(4))
                ),
                "test.jsonl.gz": gzip.compress(lines(json.dumps({"images": ["b.png"], "text": "t", "label": 1}))),
                "a.png": picture(_COLOUR),
                "b.png": picture(_COLOUR),
            },
            all_pairs,
        ),
        Sample("series.csv", {"a.csv": lines(*_TABLE)}, on("a.csv", open_series)),
        Sample("series.csv.gz", {"a.csv.gz": gzip.compress(lines(*_TABLE))}, on("a.csv.gz", open_series)),
        Sample("forecast.csv", {"a.csv": lines(*_HOURS)}, on("a.csv", open_long)),
        Sample("series.ts", {"a_TRAIN.ts": lines(*_TS), "a_TEST.ts": lines(*_TS)}, open_series),
        Sample("timed.ts", {"a.ts": lines(*_TIMED)}, on("a.ts", open_series)),
        Sample(
            "series.tsv", {"a.tsv": lines(*(f"{i % 2}\t{i}.5\t{-i}\tNaN" for i in range(6)))}, on("a.tsv", open_series)
        ),
        Sample("sentences.csv", {"a.csv": lines(*_SENTENCES)}, on("a.csv", open_sentences)),
        Sample(
            "sentences.tsv",
            {
                "train.tsv": lines("a\tlabel\tsentence", *(f"{i}\t{i % 2}\tsome {i}" for i in range(6))),
                "test.tsv.gz": gzip.compress(lines("a\tlabel\tsentence", "0\t1\tother")),
            },
            open_sentences,
        ),
        Sample("sentences.jsonl", {"a.jsonl": lines(*_OBJECTS)}, on("a.jsonl", open_sentences)),
        Sample("text.txt", {"a.train.txt": lines("one two", "", "three"), "a.test.txt": lines("four", "é")}, open_text),
        Sample(
            "text.txt.gz", {"a.txt.gz": gzip.compress(lines("one two", "", "three") * 9)}, on("a.txt.gz", open_text)
        ),
        Sample("tokenizer", {"tokenizer.json": _tokenizer()}, on("tokenizer.json", MarkedTokenizer.load)),
        Sample("fields.csv", {"a.csv": lines(*_FIELD)}, on("a.csv", open_fields)),
        Sample("functions", {"given.csv": lines(*_FIELD), "target.csv": lines(*_FIELD)}, open_functions),
        Sample("TU folder", _TU, open_graphs),
        Sample("graph.csv", _CSV_GRAPH, open_graphs),
        Sample("graphs.csv", _CSV_GRAPHS, open_graphs),
        Sample("mesh.off", {"a.off": _OFF}, on("a.off", read_points)),
        Sample("mesh.obj", {"a.obj": _OBJ}, on("a.obj", read_points)),
        Sample("mesh.stl", {"a.stl": _STL}, on("a.stl", read_points)),
        Sample("cloud.ply", {"a.ply": _PLY}, on("a.ply", read_points)),
        Sample("mesh.ply", {"a.ply": _ASCII_PLY}, on("a.ply", read_points)),
        Sample(
            "cloud.xyz",
            {"a.xyz": lines("# three", "0 0 0 1", "1,2,3,4"), "a.seg": lines(0, 1)},
            on("a.xyz", read_points),
        ),
        Sample(
            "cloud.csv",
            {"a.csv": lines("x,y,z,weight,label,f", "0,0,0,1,a,2", "1,0,0,1,b,3")},
            on("a.csv", read_points),
        ),
        Sample(
            "clouds",
            {"ball/1.off": _OFF, "ball/2.xyz": lines("0 0 0"), "rod/1.npz": npz(x=_R.random((4, 3)))},
            open_points,
        ),
    ]
    found += [
        Sample(
            f"sentences.{kind}",
            {f"a.{kind}": columns(suffix, {"label": ["x", "y"]}, text=list("abcdefghijkl"), label=[0, 1] * 6)},
            on(f"a.{kind}", open_sentences),
        )
        for kind, suffix in (("parquet", ".parquet"), ("arrow", ".arrow"), ("arrow", "footer"))
    ]
    found += [
        Sample(
            f"text.{kind}", {f"a.{kind}": columns(f".{kind}", text=["ab c", "d", "ef"] * 4)}, on(f"a.{kind}", open_text)
        )
        for kind in ("parquet", "arrow")
    ]
    found += [
        Sample(
            f"images.{kind}",
            {f"a.{kind}": columns(f".{kind}", image=_CELLS, label=[0, 1, 0])},
            on(f"a.{kind}", all_images),
        )
        for kind in ("parquet", "arrow")
    ]
    found += [
        Sample("text.jsonl", {"a.jsonl": lines('{"text": "a b"}', '{"text": "c", "n": 1}')}, on("a.jsonl", open_text)),
        Sample(
            "saved sentences",
            {
                "dataset_dict.json": b'{"splits": ["train", "test"]}',
                "train/state.json": _saved("data-0.arrow"),
                "train/data-0.arrow": columns(".arrow", text=list("abcdef"), label=["x", "y"] * 3),
                "test/state.json": _saved("data-0.arrow"),
                "test/data-0.arrow": columns(".arrow", text=["a", "b"], label=["x", "y"]),
            },
            open_sentences,
        ),
    ]
    found += [
        Sample(
            f"image.{kind}",
            {f"a.{kind}": picture(_COLOUR, kind)},
            on(f"a.{kind}", lambda p: read_images([p], 1, (8, 8))),
        )
        for kind in ("png", "jpg", "bmp", "webp", "tif")
    ]
    return tuple(found)
