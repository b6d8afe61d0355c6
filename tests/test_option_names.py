from fredholm.cli.option_names import with_option_names
from fredholm.tasks import ImageClassification
from fredholm.training import Run, TrainingConfig

CONFIG = Run.Config(task=ImageClassification.Config(), training=TrainingConfig(epochs=1))


def test_settings_become_options() -> None:
    told = {
        "pass image_size, the height and width": "pass --task.image-size, the height and width",
        "test_fraction=0.3 has no effect; leave it.": "--task.test-fraction=0.3 has no effect; leave it.",
        "try a lower learning_rate.": "try a lower --training.learning-rate.",
        "embed_dim is 3, and image_size None": "--task.model.embed-dim is 3, and --task.image-size None",
    }
    for text, expected in told.items():
        assert with_option_names(text, CONFIG) == expected


def test_names_of_files_and_arrays_and_other_words_stay() -> None:
    for text in (
        "data/image_size/a.png: cannot be read",
        "image_size.csv is a file",
        "has no array 'image_size'",
        "the seed, the data and the model differ",
        "my_image_size is 3",
        "pass --task.image_size",
    ):
        assert with_option_names(text, CONFIG) == text
