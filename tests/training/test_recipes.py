import dataclasses
import json
import re
from pathlib import Path

import pytest

from fredholm.storage.config_json import from_json, to_json
from fredholm.tasks import TASKS
from fredholm.training import Run
from fredholm.training.recipes import MODALITIES, Listing, list_recipes, open_recipe, recipes_by_modality

RECIPES = Path(__file__).resolve().parents[2] / "recipes"

OWN = '''
"""A file of one's own.

Modality:  weather
Data:      what the file trains on,
           in two lines
Time:      a minute

Time is no entry here.
"""
from fredholm.training import Run
from tests.training.toy_task import ToyTask, toy_run

def mine() -> Run.Config:
    """A small run.

    More about it.

    Get:   from the moon; then --task.data FILE
    Time:  a second
    """
    return toy_run(epochs=1)

def wrong() -> Run.Config:
    return 3

def needs(seed: int) -> Run.Config: ...

def helper() -> int: ...

def _private() -> Run.Config: ...
'''


@pytest.fixture
def own_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file ./recipes/own.py, next to a file that must not be run and one that is not valid Python."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "own.py").write_text(OWN)
    (tmp_path / "recipes" / "dangerous.py").write_text(
        'from pathlib import Path\nPath("ran").touch()\n\ndef tempting() -> "Run.Config": ...\n'
    )
    (tmp_path / "recipes" / "broken.py").write_text("def (")
    (tmp_path / "recipes" / "nul.py").write_text("x = 1\0")
    return tmp_path / "recipes" / "own.py"


@pytest.mark.usefixtures("own_recipes")
def test_recipes_are_found_by_their_annotation_without_running_files() -> None:
    listed = list_recipes([Path("recipes")])
    assert listed["mine"].summary == "A small run."
    assert {"mine", "wrong"} <= listed.keys()
    assert not {"needs", "helper", "_private", "tempting"} & listed.keys()
    assert not Path("ran").exists()


@pytest.mark.usefixtures("own_recipes")
def test_docstring_entries_of_a_function_take_precedence_over_those_of_its_file() -> None:
    listed = list_recipes([Path("recipes")])
    assert listed["mine"] == Listing(
        Path("recipes/own.py"),
        "A small run.",
        modality="weather",
        data="what the file trains on, in two lines",
        source="from the moon; then --task.data FILE",
        time="a second",
    )
    assert (listed["wrong"].source, listed["wrong"].time) == ("", "a minute")


@pytest.mark.usefixtures("own_recipes")
def test_recipes_are_listed_by_modality_and_those_without_one_last() -> None:
    Path("recipes/bare.py").write_text("def bare() -> 'Run.Config': ...\n".replace("'", ""))
    groups = recipes_by_modality([Path("recipes"), RECIPES])
    known = [modality for modality in groups if modality in MODALITIES]
    assert [*groups] == [*known, "weather", ""]
    assert known == [modality for modality in MODALITIES if modality in groups]
    assert {"digits", "mnist"} <= groups["images"].keys()
    assert [*groups["weather"]] == ["mine", "wrong"]
    assert [*groups[""]] == ["bare"]


def test_the_error_for_missing_data_says_where_to_get_them(own_recipes: Path) -> None:
    recipe = open_recipe(f"{own_recipes}:mine")
    with pytest.raises(
        ValueError, match="nothing is at toy, the data of mine; to get them: from the moon; then --task"
    ):
        recipe.refuse_absent_data(recipe.config)
    other = dataclasses.replace(recipe.config, task=dataclasses.replace(recipe.config.task, data="elsewhere"))
    recipe.refuse_absent_data(other)  # other data are checked by the task
    Path("toy.train.txt").touch()
    recipe.refuse_absent_data(recipe.config)  # a name may be a prefix of the names of files


@pytest.mark.parametrize("reference", ["digits", "images", "recipes/own.py:wrong_but_built_in"])
def test_built_in_data_are_never_missing(reference: str, own_recipes: Path) -> None:
    own_recipes.write_text(
        OWN.replace("def mine", "def wrong_but_built_in").replace("    Get:   from the moon; then", "    ")
    )
    recipe = open_recipe(reference)
    recipe.refuse_absent_data(recipe.config)


@pytest.mark.usefixtures("own_recipes")
def test_names_of_recipes_do_not_refer_to_files_of_the_working_folder() -> None:
    Path("recipes/zzz.py").write_text(
        f"from pathlib import Path\nPath('ran').touch()\n{OWN.replace('def mine', 'def digits')}"
    )
    assert open_recipe("digits").config.task.data == "digits"
    with pytest.raises(ValueError, match="no recipe or task called 'mine'"):
        open_recipe("mine")
    assert not Path("ran").exists()
    assert open_recipe("recipes/zzz.py:digits").config.task.data == "toy"
    assert Path("ran").exists()


def test_a_custom_recipe_may_define_its_task(own_recipes: Path) -> None:
    recipe = open_recipe(f"{own_recipes}:mine")
    assert recipe.name == "mine"
    assert [task.__name__ for task in recipe.tasks[len(TASKS) :]] == ["ToyTask"]
    assert isinstance(recipe.config, Run.Config)


def test_the_name_of_a_task_is_its_default_run() -> None:
    recipe = open_recipe("images")
    assert recipe.config.task.data == "digits"


@pytest.mark.usefixtures("own_recipes")
@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("digts", "no recipe or task called 'digts'; did you mean digits"),
        ("image", "no recipe or task called 'image'; did you mean images or image-text or mutag?"),
        ("qqqqq", "no recipe or task called 'qqqqq'; known are aids, character_trajectories, "),
        ("recipes/own.py:mien", "recipes/own.py has no function 'mien'; did you mean mine?"),
        ("recipes/own.py:wrong", "recipes/own.py:wrong returned a int; expected a fredholm.training.Run.Config"),
        ("recipes/none.py:mine", "recipes/none.py is no Python file; expected path/to/file.py:function"),
        ("recipes/broken.py:f", "recipes/broken.py:1 is not valid Python: "),
        ("recipes/nul.py:f", "recipes/nul.py is not valid Python: it has a NUL character"),
    ],
)
def test_errors_name_the_closest_match(reference: str, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        open_recipe(reference)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.py")), ids=lambda path: path.stem)
def test_recipes_of_the_project_state_the_expected_results(path: Path) -> None:
    head = path.read_text().split('"""')[1]
    for word in ("Command:", "Hardware:", "Time:", "Score:"):
        assert word in head
    trained = [name for name, listing in list_recipes().items() if listing.file.resolve() == path]
    needs_root = re.search(r"^from (benchmarks|recipes)\b", path.read_text(), re.MULTILINE) is not None
    itself = f"python -m recipes.{path.stem}" if needs_root else f"python recipes/{path.name}"
    commands = [f"fredholm train {name}" for name in trained] or [itself]
    assert any(command in head for command in commands)
    assert trained or '__name__ == "__main__"' in path.read_text()


VERBS = ("Compare", "Fit", "Measure", "Train")


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.py")), ids=lambda path: path.stem)
def test_the_first_line_of_each_recipe_is_a_sentence(path: Path) -> None:
    listed = [listing.summary for listing in list_recipes().values() if listing.file.resolve() == path]
    for line in (path.read_text().split('"""')[1].partition("\n")[0], *listed):
        assert line.split()[0] in VERBS
        assert line.endswith(".")
    assert all(line.startswith(("Train ", "Fit ")) for line in listed)


@pytest.mark.parametrize(
    "name", sorted(name for name, one in list_recipes().items() if one.file.resolve().parent == RECIPES)
)
def test_recipes_of_the_project_state_their_requirements(name: str) -> None:
    listing, data = list_recipes()[name], open_recipe(name).config.task.data
    assert listing.modality in MODALITIES
    for entry in (listing.data, listing.time):
        assert 0 < len(entry) <= 100  # one line per entry of a list
    if data == "digits":
        assert listing.source == ""
    else:
        assert "--task.data" in listing.source
    if data.startswith("../"):
        named = listing.data.partition(" in ../")[2]
        assert named
        assert data.startswith(f"../{named}") or f"../{named}".startswith(data)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.py")), ids=lambda path: path.stem)
def test_recipes_of_the_project_can_be_saved_as_json(path: Path) -> None:
    for name in [name for name, listing in list_recipes().items() if listing.file.resolve() == path]:
        recipe = open_recipe(name)
        known = [kind for task in recipe.tasks for kind in (task.Config, task.Facts, *task.parts)]
        assert from_json(json.loads(json.dumps(to_json(recipe.config))), Run.Config, known) == recipe.config
