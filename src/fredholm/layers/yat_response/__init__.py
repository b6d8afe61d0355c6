"""Yat responses of many units at once, block by block, with gradients that store little.

Every entry is Y = s T r with T = S + b, D = max(‖x‖² + ‖w‖² - 2 S, 0) + ε and r = T / D, from which

    ∂Y/∂S = 2 s r (1 + r)    ∂Y/∂b = 2 s r    ∂Y/∂‖x‖² = ∂Y/∂‖w‖² = ∂Y/∂ε = -s r²    ∂Y/∂s = Y / s

where D is not at its floor; where it is, ∂Y/∂S = 2 s r and those of ‖x‖² and ‖w‖² are 0. So r is all that the backward
needs. Without b it need not be stored: Y is the input of the next layer, and with C = ‖x‖² + ‖w‖² + ε and v = Y / (s C)
the definition says r² = v (1 + 2 r), so that

    r = v + σ √(v² + v),   σ = sign S,

free of cancellation, since S < 0 has v ≤ 1/8. A byte an entry holds σ, and 2 where D is at its floor. With b the sign
does not decide (C + 2 b may be negative) and r itself is stored, ±∞ where D is at its floor: there r = ±√(Y / (s ε)).
"""

from fredholm.layers.yat_response.dense_op import DenseInputs, yat_dense
from fredholm.layers.yat_response.response_op import ResponseInputs, yat_response

__all__ = ["DenseInputs", "ResponseInputs", "yat_dense", "yat_response"]
