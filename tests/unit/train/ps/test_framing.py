"""Messages: what is sent comes back, and whatever else comes is refused."""

from __future__ import annotations

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.errors import MessageError
from elastic.train.ps import framing, protocol
from elastic.train.ps.framing import DTYPES, FRAME_BYTES, MessageAssembly, TensorShape, frames


def sent(
    header: protocol.ValuesReply, tensors: list[torch.Tensor]
) -> tuple[protocol.ValuesReply, tuple[torch.Tensor, ...]]:
    assembly = MessageAssembly(protocol.ValuesReply)
    for frame in frames(header, tensors):
        assembly.feed(frame)
    return assembly.message()


NO_AMOUNTS = (float("nan"), float("inf"), -1.0)


def raw(header: object, body: bytes = b"") -> bytes:
    """A message made by hand, not padded."""
    packed = msgspec.msgpack.encode(header)
    return len(packed).to_bytes(4, "little") + packed + body


class TestRoundTrip:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_tensors_of_every_dtype_come_back_bit_for_bit(self, dtype: str) -> None:
        bits = torch.arange(48, dtype=torch.uint8).view(DTYPES[dtype])
        _, (back,) = sent(protocol.ValuesReply(), [bits])
        assert back.dtype == DTYPES[dtype]
        assert torch.equal(back.view(torch.uint8), bits.view(torch.uint8))

    @given(
        st.lists(st.tuples(st.sampled_from(list(DTYPES)), st.lists(st.integers(0, 5), max_size=4)), max_size=6),
        st.integers(0, 2**40),
    )
    def test_shapes_and_headers_come_back(self, given: list[tuple[str, list[int]]], step: int) -> None:
        tensors = [torch.ones(sizes, dtype=DTYPES[dtype]) for dtype, sizes in given]
        header, back = sent(protocol.ValuesReply(step=step), tensors)
        assert header == protocol.ValuesReply(step=step, shapes=tuple(map(TensorShape.of, tensors)))
        assert [tensor.shape for tensor in back] == [tensor.shape for tensor in tensors]
        assert all(map(torch.equal, back, tensors))

    def test_a_large_tensor_comes_in_frames_below_grpcs_own_limit(self) -> None:
        large = torch.arange(3 * FRAME_BYTES // 8 + 7)
        parts = list(frames(protocol.ValuesReply(), [large]))
        assert len(parts) == 4
        assert max(map(len, parts)) == FRAME_BYTES < 4 * 1024 * 1024
        assert torch.equal(sent(protocol.ValuesReply(), [large])[1][0], large)

    def test_a_header_longer_than_a_frame_is_cut_as_well(self) -> None:
        give = protocol.RegisterReply(wanted=tuple(range(2**20)))
        parts = list(frames(give))
        assembly = MessageAssembly(protocol.RegisterReply)
        for part in parts:
            assembly.feed(part)
        assert len(parts) > 1
        assert assembly.header == give

    def test_a_view_and_a_transpose_are_sent_as_they_look(self) -> None:
        looks = torch.arange(12).reshape(3, 4).t()[1:]
        assert torch.equal(sent(protocol.ValuesReply(), [looks])[1][0], looks)

    def test_a_message_may_be_cut_anywhere(self) -> None:
        whole = b"".join(frames(protocol.ValuesReply(step=5), [torch.arange(5.0)]))
        for size in (1, 3, 7):
            assembly = MessageAssembly(protocol.ValuesReply)
            for start in range(0, len(whole), size):
                with pytest.raises(MessageError, match="ended before"):
                    assembly.message()
                assembly.feed(whole[start : start + size])
            assert torch.equal(assembly.message()[1][0], torch.arange(5.0))

    def test_the_tensors_of_a_message_are_nobody_elses(self) -> None:
        value = torch.zeros(3)
        _, (back,) = sent(protocol.ValuesReply(), [value])
        back += 1
        assert value.sum() == 0

    def test_other_dtypes_are_not_sent(self) -> None:
        with pytest.raises(MessageError, match="complex64"):
            list(frames(protocol.ValuesReply(), [torch.zeros(1, dtype=torch.complex64)]))


class TestRefused:
    @settings(max_examples=300)
    @given(st.lists(st.binary(max_size=64), max_size=5))
    def test_noise_is_a_message_error_or_not_complete(self, noise: list[bytes]) -> None:
        assembly = MessageAssembly(protocol.PushRequest)
        try:
            for frame in noise:
                assembly.feed(frame)
            assembly.message()
        except MessageError:
            return
        raise AssertionError("noise was taken for a message")

    @settings(max_examples=300)
    @given(st.data())
    def test_a_message_with_one_byte_changed_never_does_anything_else_than_come_or_be_refused(
        self, data: st.DataObject
    ) -> None:
        whole = bytearray(b"".join(frames(protocol.ValuesReply(step=7), [torch.arange(3.0), torch.arange(2)])))
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] = data.draw(st.integers(0, 255))
        assembly = MessageAssembly(protocol.ValuesReply)
        try:
            assembly.feed(bytes(whole))
            assembly.message()
        except MessageError:
            pass

    @pytest.mark.parametrize(
        ("shapes", "said"),
        [
            ([["float32", [2**40, 2**40]]], "more than"),
            ([["float32", [2**41]]], "cannot be read"),
            ([["float32", [0, 2**40, 2**40]]], "as wide"),
            ([["float32", [-1]]], "cannot be read"),
            ([["float128", [1]]], "no dtype"),
            ([["float32", [1] * 17]], "cannot be read"),
            ([["float32", "ab"]], "cannot be read"),
            ("no list", "cannot be read"),
        ],
    )
    def test_a_shape_that_no_tensor_has_is_refused_before_memory_is_asked_for(self, shapes: object, said: str) -> None:
        with pytest.raises(MessageError, match=said):
            MessageAssembly(protocol.ValuesReply).feed(raw({"shapes": shapes, "step": 0}))

    def test_unknown_fields_and_missing_ones_are_refused(self) -> None:
        for header in ({"more": 1}, {"step": "x"}, [1], 5):
            with pytest.raises(MessageError, match="cannot be read"):
                MessageAssembly(protocol.ValuesReply).feed(raw(header))
        with pytest.raises(MessageError, match="cannot be read"):
            MessageAssembly(protocol.RowsRequest).feed(raw({"session": "0-a"}))

    @pytest.mark.parametrize(
        "changed",
        [
            {"pieces": [["w", [4], "complex64", 0, 4, True]]},
            {"tables": [["rows", 10, 2, "int64", 0, 1.0]]},
            {"tables": [["rows", 10, 2, "text", 0, 1.0]]},
            *({"tables": [["rows", 10, 2, "float32", 0, number]]} for number in NO_AMOUNTS),
            *({"sgd": {"weight_decay": number}} for number in NO_AMOUNTS),
            *({"sgd": {"momentum": number}} for number in (*NO_AMOUNTS, 1.0)),
        ],
    )
    def test_a_model_of_other_numbers_is_refused(self, changed: dict[str, object]) -> None:
        good = {"session": "0-a", "mode": "async", "sgd": {}, "pieces": [], "tables": []}
        MessageAssembly(protocol.RegisterRequest).feed(raw(good))
        with pytest.raises(MessageError, match="cannot be read"):
            MessageAssembly(protocol.RegisterRequest).feed(raw(good | changed))

    @pytest.mark.parametrize("name", ["lr", "weight"])
    @pytest.mark.parametrize("number", NO_AMOUNTS)
    def test_a_push_with_an_infinite_rate_or_weight_is_refused(self, name: str, number: float) -> None:
        push = {"session": "0-a", "number": 1, "step": 0, "lr": 0.1, "weight": 1.0, "pieces": [], "tables": []}
        MessageAssembly(protocol.PushRequest).feed(raw(push | {"pull": False}))
        with pytest.raises(MessageError, match="cannot be read"):
            MessageAssembly(protocol.PushRequest).feed(raw(push | {"pull": False, name: number}))

    def test_a_header_that_is_too_long_is_refused_by_its_length_alone(self) -> None:
        with pytest.raises(MessageError, match="longer than"):
            MessageAssembly(protocol.ValuesReply).feed((framing.HEADER_BYTES_MAX + 1).to_bytes(4, "little"))

    def test_more_bytes_than_announced_fewer_and_none_are_refused(self) -> None:
        (whole,) = frames(protocol.ValuesReply(), [torch.arange(3)])
        with pytest.raises(MessageError, match="1 bytes more"):
            MessageAssembly(protocol.ValuesReply).feed(whole + b"x")
        complete = MessageAssembly(protocol.ValuesReply)
        complete.feed(whole)
        with pytest.raises(MessageError, match="1 bytes more"):
            complete.feed(b"x")
        with pytest.raises(MessageError, match="an empty frame"):
            MessageAssembly(protocol.ValuesReply).feed(b"")
        short = MessageAssembly(protocol.ValuesReply)
        short.feed(whole[:-1])
        with pytest.raises(MessageError, match="ended before"):
            short.message()

    def test_a_body_longer_than_the_limit_is_refused_by_its_header_alone(self) -> None:
        (whole,) = frames(protocol.ValuesReply(), [torch.arange(3)])
        with pytest.raises(MessageError, match="more than 16"):
            MessageAssembly(protocol.ValuesReply, body_max=16).feed(whole)

    def test_deeply_nested_noise_is_refused(self) -> None:
        with pytest.raises(MessageError):
            MessageAssembly(protocol.ValuesReply).feed((50_000).to_bytes(4, "little") + b"\x91" * 50_000)
