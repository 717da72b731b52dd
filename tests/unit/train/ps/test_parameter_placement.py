"""Which server holds what."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastic.train.ps.parameter_placement import CUT_BYTES, place_parameters
from elastic.train.ps.protocol import PieceSpec


def whole(name: str, size: int, dtype: str = "float32") -> PieceSpec:
    return PieceSpec(name, (size,), dtype, 0, size, True)


wholes = st.lists(
    st.builds(
        whole,
        st.text(min_size=1, max_size=4),
        st.integers(0, 3 * CUT_BYTES),
        st.sampled_from(["uint8", "float16", "float32", "float64"]),
    ),
    unique_by=lambda piece: piece.name,
    max_size=20,
)


@given(wholes, st.integers(1, 9))
def test_every_number_of_every_parameter_is_on_exactly_one_server(given: list[PieceSpec], servers: int) -> None:
    placed = place_parameters(given, servers)
    assert len(placed) == servers
    for one in given:
        pieces = [piece for held in placed for piece in held if piece.name == one.name]
        assert [piece.start for piece in pieces] == [0, *(piece.stop for piece in pieces[:-1])]
        assert pieces[-1].stop == one.stop
        assert all((piece.sizes, piece.dtype, piece.trained) == (one.sizes, one.dtype, True) for piece in pieces)


@given(wholes, st.integers(1, 9), st.randoms())
def test_where_a_piece_goes_does_not_depend_on_the_order_of_the_parameters(
    given: list[PieceSpec], servers: int, random: object
) -> None:
    assert [held[::-1] for held in place_parameters(given, servers)] == place_parameters(given[::-1], servers)


def test_a_large_parameter_is_cut_and_shared_out_evenly() -> None:
    size = CUT_BYTES
    assert place_parameters([whole("w", size)], 2) == [
        [PieceSpec("w", (size,), "float32", 0, size // 2, True)],
        [PieceSpec("w", (size,), "float32", size // 2, size, True)],
    ]


def test_a_small_parameter_is_one_piece_and_the_servers_have_about_the_same() -> None:
    w, b, v, c = whole("w", 10), whole("b", 1), whole("v", 8), whole("c", 1)
    assert place_parameters([w, b, v, c], 2) == [[w], [b, v, c]]


def test_one_server_has_everything_in_one_piece() -> None:
    large = whole("w", 10 * CUT_BYTES)
    assert place_parameters([large], 1) == [[large]]
