"""`dapo_ref/distributed/shards.py`: partitions cut for another number of processes."""

from types import SimpleNamespace

import pytest
import torch

from dapo_ref.distributed.shards import _cut


def partitions_of(whole: torch.Tensor, processes: int) -> list[dict[str, torch.Tensor]]:
    """As ZeRO-3 leaves them: padded to a multiple of the processes, and cut."""
    size = -(-len(whole) // processes)
    padded = torch.nn.functional.pad(whole, (0, size * processes - len(whole)), value=-1.0)
    return [{"weight": part} for part in padded.split(size)]


def parameter(numel: int, processes: int) -> SimpleNamespace:
    """One that is spread over so many processes."""
    return SimpleNamespace(ds_numel=numel, ds_tensor=torch.empty(-(-numel // processes)))


@pytest.mark.parametrize("numel", [1, 3, 7, 12, 16])
@pytest.mark.parametrize("before", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("after", [1, 2, 3, 4, 7])
def test_partitions_for_another_number_of_processes_are_the_parameter(
    numel: int, before: int, after: int
) -> None:
    whole = torch.arange(1.0, numel + 1)
    written = partitions_of(whole, before)
    cut = [_cut(written, "weight", parameter(numel, after), rank) for rank in range(after)]
    assert {len(part) for part in cut} == {-(-numel // after)}
    found = torch.cat(cut)
    assert torch.equal(found[:numel], whole)
    assert not found[numel:].any()  # the padding


def test_a_process_reads_only_what_its_partition_takes() -> None:
    written = partitions_of(torch.arange(1.0, 13), 4)  # 1–3, 4–6, 7–9, 10–12
    for other in (0, 3):
        written[other]["weight"] = torch.empty(3, device="meta")  # cannot be read
    found = _cut(written, "weight", parameter(12, 3), 1)
    assert found.tolist() == [5.0, 6.0, 7.0, 8.0]
