"""Small clouds in files."""

from pathlib import Path

import numpy as np

CUBE = [(x, y, z) for x in (0, 1) for y in (0, 1) for z in (0, 1)]
CUBE_FACES = [
    *((0, 1, 3), (0, 3, 2), (4, 6, 7), (4, 7, 5), (0, 4, 5), (0, 5, 1)),
    *((2, 3, 7), (2, 7, 6), (0, 2, 6), (0, 6, 4), (1, 5, 7), (1, 7, 3)),
]
FLAT_FACES = [(0, 1, 3), (0, 3, 2)]


def write_off(path: Path, vertices: object = CUBE, faces: object = CUBE_FACES, scale: float = 1.0) -> Path:
    """Writes a mesh; without faces, a point cloud."""
    pos, triangles = np.array(vertices, float).reshape(-1, 3) * scale, np.array(faces, int).reshape(-1, 3)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["OFF", f"{len(pos)} {len(triangles)} 0"]
    lines += [" ".join(f"{value:.6f}" for value in vertex) for vertex in pos]
    lines += ["3 " + " ".join(map(str, triangle)) for triangle in triangles]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_xyz(path: Path, values: np.ndarray) -> Path:
    """Writes lines of numbers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(" ".join(f"{value:.6f}" for value in row) + "\n" for row in values))
    return path


def balls_and_rods(seed: int, count: int = 8, num_points: int = 12) -> tuple[list[np.ndarray], list[int]]:
    """Clouds of two kinds: round ones and elongated ones."""
    drawn = np.random.default_rng(seed)
    stretch = [np.ones(3), np.array([4.0, 0.2, 0.2])]
    labels = [i % 2 for i in range(count)]
    return [drawn.normal(size=(num_points + i % 3, 3)) * stretch[label] for i, label in enumerate(labels)], labels


def write_folder(root: Path, count: int = 8, *, folders: tuple[str, ...] = ("{label}",), kind: str = ".xyz") -> None:
    """Writes balls and rods into folders named after their class."""
    for part, folder in enumerate(folders):
        clouds, labels = balls_and_rods(part, count)
        for i, (cloud, label) in enumerate(zip(clouds, labels, strict=True)):
            path = root / folder.format(label=("ball", "rod")[label]) / f"{i}{kind}"
            if kind == ".off":
                write_off(path, cloud, [])
            else:
                write_xyz(path, cloud)
