"""Single instructions of an NVIDIA GPU, at a fraction of the cost of Triton's own functions.

Errors are those of the PTX manual. Triton's interpreter does not support assembly and uses the functions themselves.
"""

# pyright: reportGeneralTypeIssues=false
import triton
import triton.language as tl

from fredholm.evaluation.triton.machine import INTERPRETING

HAS_ASSEMBLY = tl.constexpr(not INTERPRETING)


@triton.jit
def _done(x, INSTRUCTION: tl.constexpr):
    """Applies one instruction elementwise."""
    text: tl.constexpr = INSTRUCTION + " $0, $1;"
    return tl.inline_asm_elementwise(
        text,  # pyright: ignore[reportArgumentType]
        "=f,f",
        [x],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def reciprocal(x):
    """1 / x to an ulp; 0 from 2^126 on. A division would cost eight times as much."""
    if HAS_ASSEMBLY:
        return _done(x, "rcp.approx.ftz.f32")
    else:
        return 1.0 / x


@triton.jit
def exp2(x):
    """2^x to two ulps; 0 below 2^-126, which saves two instructions."""
    if HAS_ASSEMBLY:
        return _done(x, "ex2.approx.ftz.f32")
    else:
        return tl.exp2(x)


@triton.jit
def log2(x):
    """log2 x of a normal number to 2^-22, relative or, near 1, absolute; to the last bit it would cost 30 times."""
    if HAS_ASSEMBLY:
        return _done(x, "lg2.approx.ftz.f32")
    else:
        return tl.log2(x)


@triton.jit
def tanh(x):
    """tanh x to a relative 2^-11."""
    if HAS_ASSEMBLY:
        return _done(x, "tanh.approx.f32")
    else:
        return 2.0 / (1.0 + tl.exp(tl.minimum(-2.0 * x, 80.0))) - 1.0


@triton.jit
def settled(sums):
    """A barrier for sums between two loops: without it the assembler lets no matrix products overlap."""
    if HAS_ASSEMBLY:
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=f,f", [sums], dtype=tl.float32, is_pure=False, pack=1)
    else:
        return sums


@triton.jit
def product(x, y):
    """x y, rounded: fused into a following difference, it would differ from the number that was compared."""
    if HAS_ASSEMBLY:
        return tl.inline_asm_elementwise(
            "mul.rn.f32 $0, $1, $2;", "=f,f,f", [x, y], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return x * y


@triton.jit
def larger(x, y):
    """The larger one; NaN stays NaN."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def smaller(x, y):
    """The smaller one; NaN stays NaN."""
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)
