"""Which server holds what."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastic.train.ps.parameter_placement import CUT_BYTES, ParameterExtent, ParameterPiece, place_parameters

extents = st.lists(
    st.builds(
        ParameterExtent, st.text(min_size=1, max_size=4), st.integers(0, 3 * CUT_BYTES), st.sampled_from([1, 2, 4, 8])
    ),
    unique_by=lambda extent: extent.name,
    max_size=20,
)


@given(extents, st.integers(1, 9))
def test_every_number_of_every_parameter_is_on_exactly_one_server(given: list[ParameterExtent], servers: int) -> None:
    for extent in given:
        pieces = [piece for piece in place_parameters(given, servers) if piece.name == extent.name]
        assert [piece.start for piece in pieces] == [0, *(piece.stop for piece in pieces[:-1])]
        assert pieces[-1].stop == extent.size
        assert all(0 <= piece.server < servers for piece in pieces)


@given(extents, st.integers(1, 9), st.randoms())
def test_where_a_piece_goes_does_not_depend_on_the_order_of_the_parameters(
    given: list[ParameterExtent], servers: int, random: object
) -> None:
    assert set(place_parameters(given, servers)) == set(place_parameters(given[::-1], servers))


def test_a_large_parameter_is_cut_and_shared_out_evenly() -> None:
    size = CUT_BYTES
    assert place_parameters([ParameterExtent("w", size, 4)], 2) == (
        ParameterPiece("w", 0, size // 2, 0),
        ParameterPiece("w", size // 2, size, 1),
    )


def test_a_small_parameter_is_one_piece_and_the_servers_have_about_the_same() -> None:
    placed = place_parameters(
        [
            ParameterExtent("w", 10, 4),
            ParameterExtent("b", 1, 4),
            ParameterExtent("v", 8, 4),
            ParameterExtent("c", 1, 4),
        ],
        2,
    )
    assert {piece.name: piece.server for piece in placed} == {"w": 0, "v": 1, "b": 1, "c": 1}


def test_one_server_has_everything_in_one_piece() -> None:
    assert place_parameters([ParameterExtent("w", 10 * CUT_BYTES, 4)], 1) == (
        ParameterPiece("w", 0, 10 * CUT_BYTES, 0),
    )
