"""The sum of a round's uploads with central privacy: each clipped, the sum with noise, drawn once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moiety.server.mean import RunningSum
from moiety.transport.privacy import Gaussian, PrivacyState, add_noise, clip_upload, move_clip
from moiety.types import ClientUpdate, Params


class PrivateSum(RunningSum):
    """``(sum_i clip(x_i) + noise) / divisor``, summed in float64, in the order in which uploads are added.

    The divisor is fixed before the round: the number of clients that are expected where the aggregate is a mean, 1
    where it is a sum. So it tells nothing about who sent something. A round without uploads gives noise.
    """

    def __init__(
        self, privacy: Gaussian, state: PrivacyState, layout: Params, *, expected: int, mean: bool = True
    ) -> None:
        super().__init__()
        self.privacy, self.state, self.expected = privacy, state, expected
        self.divisor = expected if mean else 1
        self.below = 0.0
        self.types = {name: x.dtype for name, x in layout.items()}
        self.sums = {name: torch.zeros_like(x, dtype=torch.float64) for name, x in layout.items()}

    def add(self, updates: Sequence[ClientUpdate]) -> None:
        """Clip uploads and add them. Their weights are 1: ``check_uniform`` has seen it."""
        for update in updates:
            upload, norm = clip_upload(update.upload, self.state.clip)
            self.below += 0.5 if norm <= self.state.clip else -0.5
            for name, x in upload.items():
                self.sums[name] += x

    def release(self, state: PrivacyState) -> tuple[Params, PrivacyState]:
        """The noisy aggregate in the types of the uploads, and the state with the next clip.

        ``state`` has counted this sum already: its number names the draw. It must be on disk before, where there is
        one, so that no other sum has that number.
        """
        noisy = add_noise(self.privacy, self.sums, state.noise * state.clip, "sum", state.sums)
        aggregate = {name: (x / self.divisor).to(self.types[name]) for name, x in noisy.items()}
        return aggregate, state._replace(clip=move_clip(self.privacy, state, self.below, self.expected))
