"""`elastic-ctl version`: what its lines show."""

from __future__ import annotations

import pytest

from launcher.ctl.version import Versions


@pytest.mark.parametrize("known", [True, False])
def test_cuda_and_nccl_have_a_line_each_where_they_are_installed(known: bool) -> None:
    versions = Versions(
        elastic_launch="0.1.0",
        schema=1,
        python="3.12.0",
        system="Linux",
        cuda="12.8" if known else None,
        nccl="2.27.3" if known else None,
        packages={"torch": "2.9.0", "grpcio": None},
        etcd={"10.0.0.5:2379": "3.6.5"},
    )
    rows = {line.rsplit(maxsplit=1)[0]: line.rsplit(maxsplit=1)[1] for line in versions.lines()}
    assert rows["torch"] == "2.9.0"
    assert {name: rows[name] for name in ("CUDA", "NCCL") if name in rows} == (
        {"CUDA": "12.8", "NCCL": "2.27.3"} if known else {}
    )
