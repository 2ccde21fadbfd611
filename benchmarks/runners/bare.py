"""The floor: the loop an expert writes in plain PyTorch. One module, ``torch.optim.SGD``, no tricks."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from benchmarks.runners.common import Clock, arguments, mean_loss, report, tensors, warm_up
from benchmarks.work import BATCH, EXAMPLES, Arrays, Work, module

Weights = dict[str, torch.Tensor]


def epochs(model: nn.Module, part: nn.Module, x: torch.Tensor, y: torch.Tensor, lr: float, count: int) -> None:
    """``count`` passes of SGD on the parameters of ``part``; the others are frozen."""
    model.train().requires_grad_(False)
    part.requires_grad_(True)
    optimiser = torch.optim.SGD(part.parameters(), lr=lr)
    for _ in range(count):
        for at in range(0, len(x), BATCH):
            optimiser.zero_grad()
            functional.cross_entropy(model(x[at : at + BATCH]), y[at : at + BATCH]).backward()
            optimiser.step()


def copied(weights: Weights) -> Weights:
    """A copy that training will not change."""
    return {name: p.clone() for name, p in weights.items()}


class Federation:
    """The server's weights, the clients' heads, and one module that all of them use in turn."""

    def __init__(self, arrays: Arrays) -> None:
        self.work: Work = arrays.work
        self.arrays = arrays
        self.x, self.y = tensors(arrays)
        self.model = module(self.work, arrays.weights)
        self.first_head = copied(self.model.head.state_dict())
        self.shared = copied(self.model.state_dict())
        self.heads: dict[int, Weights] = {}

    def client(self, client: int) -> None:
        """One client's turn: the module starts from the server's weights and ends with the client's."""
        x, y = self.x[self.arrays.rows(client)], self.y[self.arrays.rows(client)]
        work, model = self.work, self.model
        model.load_state_dict(self.shared)
        if work.kind == "average":
            epochs(model, model, x, y, work.lr, 1)
            return
        model.head.load_state_dict(self.heads.get(client, self.first_head))
        epochs(model, model.head, x, y, work.lr, work.head_epochs)
        self.heads[client] = copied(model.head.state_dict())
        if work.kind == "alternate":
            epochs(model, model[:-1], x, y, work.lr, work.body_epochs)

    def round(self, cohort: list[int]) -> None:
        """Every client's turn and, unless only heads are trained, the mean of what they found by their examples."""
        if self.work.kind == "finetune":
            self.heads.clear()
            for client in cohort:
                self.client(client)
            return
        mean = {name: torch.zeros_like(p) for name, p in self.shared.items()}
        for client in cohort:
            self.client(client)
            for name, p in self.model.state_dict().items():
                mean[name].add_(p, alpha=EXAMPLES / (EXAMPLES * len(cohort)))
        if self.work.kind == "alternate":
            mean |= {name: p for name, p in self.shared.items() if name.startswith("head.")}
        self.shared = mean

    def losses(self) -> tuple[float, float | None]:
        """The loss of the shared model and the mean loss of the clients' own, over all clients."""
        self.model.load_state_dict(self.shared)
        shared = mean_loss(self.model, self.x, self.y)
        if self.work.kind == "average":
            return shared, None
        total = 0.0
        for client in range(self.work.clients):
            self.model.head.load_state_dict(self.heads.get(client, self.first_head))
            rows = self.arrays.rows(client)
            total += mean_loss(self.model, self.x[rows], self.y[rows])
        return shared, total / self.work.clients


def main() -> None:
    """Run one work."""
    options, arrays = arguments()
    federation = Federation(arrays)
    if arrays.work.kind == "finetune":
        federation.client(0)
    clock = Clock()
    for cohort in arrays.cohorts[: warm_up(arrays.work) + options.rounds].tolist():
        federation.round(cohort)
        clock.tick()
    report(
        clock.seconds(arrays.work, options.rounds),
        *federation.losses(),
        version=torch.__version__,
        first_round=clock.first_round(),
    )


if __name__ == "__main__":
    main()
