import torch

from fredholm import IntegralOperator, kernels
from fredholm.domains import Grid, Points, Sequence
from fredholm.operators.sampled_signals import draw, signals_of, split


def operator(pos_dim: int = 1) -> IntegralOperator:
    return IntegralOperator(kernels.MLP(2, 1, pos_dim, width=3, num_frequencies=2))


def test_every_signal_comes_with_its_own_points():
    u, pos, weights = torch.randn(3, 4, 2), torch.rand(3, 4, 1), torch.rand(3, 4)
    mask = torch.tensor([[True] * 4, [False] * 4, [True, False, False, True]])
    first, last = signals_of("test", operator(), [(u, Points(pos, weights, mask))])
    assert torch.equal(first.u, u[:1])
    assert torch.equal(first.domain.pos, pos[:1])
    assert torch.equal(first.domain.weights, weights[:1])
    assert last.drawn.tolist() == [0, 3]
    assert torch.equal(last.domain.pos[:, last.drawn], pos[2:, [0, 3]])
    assert torch.equal(last.domain.weights, (weights * mask)[2:])
    assert not last.u[:, 1:3].any()


def test_a_torus_stays_one():
    (signal,) = signals_of("test", operator(2), [(torch.randn(1, 4, 2), Grid(2, 2, periodic=True))])
    assert signal.domain.is_periodic
    assert draw([signal], 2, 3, None)[1].is_periodic


def test_what_is_kept_apart_is_not_learned_from():
    many = signals_of("test", operator(), [torch.randn(11, 3, 2)])
    train, test = split(many, None)
    assert (len(train), len(test)) == (9, 2)
    assert {id(s.u) for s in train}.isdisjoint(id(s.u) for s in test)
    ((one,), (other,)) = split(many[:1], None)
    assert sorted(one.drawn.tolist() + other.drawn.tolist()) == [0, 1, 2]
    assert len(other.drawn) == 1
    ((one,), (other,)) = split(signals_of("test", operator(), [torch.randn(1, 1, 2)]), None)
    assert one.drawn.tolist() == other.drawn.tolist() == [0]


def test_a_draw_takes_different_points_with_what_lies_there():
    signals = signals_of("test", operator(), [torch.arange(12.0).reshape(1, 6, 2), (torch.zeros(1, 4, 2), Sequence(4))])
    u, domain = draw(signals[:1], 5, 4, torch.Generator().manual_seed(0))
    assert u.shape == (5, 4, 2)
    for entry, pos in zip(u[..., 0] / 2, domain.pos[..., 0], strict=True):
        assert len(set(entry.tolist())) == 4
        torch.testing.assert_close(pos.float(), entry / 256)
    assert draw(signals, 20, 9, None)[0].shape == (20, 4, 2)  # as many points as the smaller has
