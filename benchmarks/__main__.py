"""The command ``python -m benchmarks NAME [options]``."""

import sys
from collections.abc import Sequence
from typing import Any

import tyro

from benchmarks import (
    compiled,
    continuous_convolution,
    converted_layers,
    exact_mlp,
    generation,
    graphs,
    infinite_attention,
    infvit,
    itnet,
    language_models,
    large_domains,
    linear_infinite_attention,
    neighbours,
    neural_fields,
    one_kernel,
    pretrained,
    quantised,
    roofline,
    safe_runs,
    scan,
    tiles,
    training_step,
    yat_attention,
    yat_dense,
)
from benchmarks.harness import Benchmark, GateError

BENCHMARKS: tuple[Benchmark[Any], ...] = (
    exact_mlp.BENCHMARK,
    scan.BENCHMARK,
    converted_layers.BENCHMARK,
    large_domains.BENCHMARK,
    itnet.BENCHMARK,
    generation.BENCHMARK,
    language_models.BENCHMARK,
    yat_dense.BENCHMARK,
    yat_attention.BENCHMARK,
    continuous_convolution.BENCHMARK,
    infinite_attention.BENCHMARK,
    linear_infinite_attention.BENCHMARK,
    infvit.BENCHMARK,
    neural_fields.BENCHMARK,
    graphs.BENCHMARK,
    neighbours.BENCHMARK,
    one_kernel.BENCHMARK,
    compiled.BENCHMARK,
    pretrained.BENCHMARK,
    quantised.BENCHMARK,
    safe_runs.BENCHMARK,
    tiles.BENCHMARK,
    roofline.BENCHMARK,
    training_step.BENCHMARK,
)
"""All benchmarks, in the order of the list."""

USAGE = """usage: python -m benchmarks NAME [options]
       python -m benchmarks --list

`python -m benchmarks NAME --help` lists the options of a benchmark."""

FAILURE, USER_ERROR = 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one benchmark and prints its table.

    Returns:
        0; 2 for a user error, 1 if two results disagree. Errors are one line on stderr.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "--list"):
        print(_list() if arguments[:1] == ["--list"] else f"{USAGE}\n\n{_list()}")
        return 0 if arguments else USER_ERROR
    by_name = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    try:
        if arguments[0] not in by_name:
            raise ValueError(f"no benchmark {arguments[0]!r}; expected one of {', '.join(by_name)}")
        benchmark = by_name[arguments[0]]
        config = tyro.cli(
            benchmark.config,
            prog=f"python -m benchmarks {benchmark.name}",
            args=arguments[1:],
            config=(tyro.conf.OmitArgPrefixes,),
        )
        print(benchmark.run(config).markdown())
    except GateError as error:
        return _report_error(error, FAILURE)
    except (ValueError, ImportError) as error:
        return _report_error(error, USER_ERROR)
    return 0


def _list() -> str:
    return "\n".join(f"{benchmark.name:<23} {benchmark.purpose}" for benchmark in BENCHMARKS)


def _report_error(error: Exception, code: int) -> int:
    print(f"error: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
